"""Pre-activation ResNet-18 for small images (He et al., ECCV 2016), in the layouts that noisy-label
papers use."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.component import component
from rayfl.models.blocks import (
    NormLayer,
    build_conv_block,
    build_global_pooling,
    choose_norm,
)
from rayfl.models.network import Network, Shape, add_linear_head
from rayfl.models.norm import Norm

_WIDTHS = (64, 128, 256, 512)


@component
class PreActResNet18:
    """A 3x3 stem, four stages of two blocks, average pooling.

    `stem_norm=True, final_norm=False` is the layout of CTRR's released code (Yi et al., CVPR 2022);
    the default is the canonical one, which normalises once more before pooling."""

    stem_norm: bool = False
    final_norm: bool = True
    norm: Norm = "batch"
    track_running_stats: bool = True

    def build(self, shape: Shape, classes: int) -> Network:
        norm = choose_norm(self.norm, self.track_running_stats)
        inputs = _WIDTHS[0]
        stem = nn.Conv2d(shape[2], inputs, 3, padding=1, bias=False)
        layers: list[nn.Module] = [stem]
        if self.stem_norm:
            layers = build_conv_block(stem, norm)
        for width in _WIDTHS:
            layers.append(_PreActBlock(inputs, width, norm))
            layers.append(_PreActBlock(width, width, norm))
            inputs = width
        if self.final_norm:
            layers += [norm(inputs), nn.ReLU(inplace=True)]
        trunk = nn.Sequential(*layers, *build_global_pooling())
        _draw_he_normal(trunk)
        return add_linear_head(trunk, inputs, classes)


class _PreActBlock(nn.Module):
    """Normalise, activate, convolve, twice; where the width grows, the stride is 2 and a 1x1
    convolution of the activated input is the shortcut."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        norm: NormLayer,
    ) -> None:
        super().__init__()
        grows = inputs != outputs
        stride = 2 if grows else 1
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if grows:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The residual of `x` added to its shortcut."""
        active = F.relu(self.norm1(x))
        carried: Tensor = x if self.shortcut is None else self.shortcut(active)
        inner = self.conv1(active)
        residual: Tensor = self.conv2(F.relu(self.norm2(inner)))
        return residual + carried


def _draw_he_normal(module: nn.Module) -> None:
    """Draw every convolution from He's normal distribution over the fan-out."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
