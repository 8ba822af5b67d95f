"""Residual networks (He et al., CVPR 2016) with the stem for small images or the one for ImageNet.

The trunks are torchvision's, so that weight files in its layout fit them: self-supervised ones,
too."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from rayfl.component import Fraction, Natural, component
from rayfl.models.blocks import choose_norm
from rayfl.models.network import Network, Shape
from rayfl.models.norm import Norm
from rayfl.models.weight_files import find_weights, load_exactly, strip_prefix

_Stem = Literal["cifar", "imagenet"]
_Repeats = tuple[int, int, int, int]


@component
class ResNet18:
    """The stem "cifar" is a 3x3 convolution of stride 1 without pooling; "imagenet" is 7x7 of
    stride 2, then max-pool.

    `hidden` puts one hidden layer with dropout into the head (1024 in FedDS's released code).
    `weights` is "imagenet" or a file in torchvision's layout, whose tensors lie below `prefix`
    ("encoder." in a lightning-bolts checkpoint); the head stays random, and so does a stem that the
    file cannot fit."""

    stem: _Stem = "cifar"
    norm: Norm = "batch"
    track_running_stats: bool = True
    hidden: Natural = 0
    dropout: Fraction = 0.5
    weights: str | None = None
    prefix: str = ""

    block: ClassVar[str] = "BasicBlock"
    repeats: ClassVar[_Repeats] = (2, 2, 2, 2)

    def build(self, shape: Shape, classes: int) -> Network:
        trunk = _build_trunk(self, channels=shape[2])
        width = 512 if self.block == "BasicBlock" else 2048
        head = _build_head(width, self.hidden, self.dropout, classes)
        if self.weights is not None:
            source = find_weights(self.weights, type(self).__name__.lower())
            given = strip_prefix(source, self.prefix, self.weights)
            skip = ("fc.", "conv1.") if self.stem == "cifar" else ("fc.",)
            load_exactly(trunk, given, self.weights, skip)
        return Network(trunk, head, width)


@component
class ResNet10(ResNet18):
    """One basic block a stage."""

    repeats: ClassVar[_Repeats] = (1, 1, 1, 1)


@component
class ResNet34(ResNet18):
    """3, 4, 6 and 3 basic blocks."""

    repeats: ClassVar[_Repeats] = (3, 4, 6, 3)


@component
class ResNet50(ResNet18):
    """3, 4, 6 and 3 bottleneck blocks; features are 2048 wide."""

    block: ClassVar[str] = "Bottleneck"
    repeats: ClassVar[_Repeats] = (3, 4, 6, 3)


def _build_trunk(spec: ResNet18, channels: int) -> nn.Module:
    """torchvision's network without its classifier, its first layers exchanged where the images ask
    for it."""
    from torchvision.models import resnet

    norm = choose_norm(spec.norm, spec.track_running_stats)
    block = getattr(resnet, spec.block)
    trunk: nn.Module = resnet.ResNet(block, list(spec.repeats), norm_layer=norm)
    if spec.stem == "cifar":
        stem = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        # Small images have no resolution to give away.
        trunk.maxpool = nn.Identity()
    else:
        stem = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    # As torchvision draws the one that it takes the place of.
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    trunk.conv1 = stem
    trunk.fc = nn.Identity()
    return trunk


def _build_head(
    width: int,
    hidden: int,
    dropout: float,
    classes: int,
) -> nn.Module:
    if not hidden:
        return nn.Linear(width, classes)
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
