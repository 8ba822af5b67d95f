"""Encoders whose networks are torchvision's and whose weights come from a file: ImageNet, SimCLR,
AugNet, any other."""

from __future__ import annotations

import zipfile
from pathlib import Path

from rayfl.component import Count, component
from rayfl.errors import DataError, broken
from rayfl.models.encoders.base import IMAGENET_MEAN, IMAGENET_STD, Sight, TorchEncoder
from rayfl.models.encoders.optional_packages import find_package_folder
from rayfl.models.network import Shape
from rayfl.models.torchvision_nets import cut_network
from rayfl.models.weight_files import (
    Weights,
    find_weights,
    load_exactly,
    read_weight_bytes,
    read_weights,
    strip_prefix,
)

_Triple = tuple[float, float, float]


@component
class StateDict:
    """Any torchvision network with weights in its layout (timm's ResNets share it), as a file that
    PyTorch or safetensors wrote. Features are what the last linear layer would read."""

    network: str
    path: str
    prefix: str = ""
    side: Count | None = 224
    mean: _Triple = IMAGENET_MEAN
    std: _Triple = IMAGENET_STD

    def build(self, shape: Shape) -> TorchEncoder:
        sight = Sight(self.side, self.mean, self.std)
        weights = strip_prefix(read_weights(self.path), self.prefix, self.path)
        return _build_pretrained(self.network, self.network, weights, shape, sight)


@component
class ImageNetResNet18:
    """torchvision's ResNet-18, trained on ImageNet with labels; 512 features. `weights` may be a
    path."""

    weights: str = "imagenet"
    side: Count | None = 224

    def build(self, shape: Shape) -> TorchEncoder:
        weights = find_weights(self.weights, "resnet18")
        return _build_pretrained("imagenet_resnet18", "resnet18", weights, shape, Sight(self.side))


@component
class SimCLR:
    """SimCLR's ResNet-50 (Chen et al., ICML 2020) from a lightning-bolts checkpoint; 2048 features,
    no projection.

    Images keep their resolution by default, as they do where a client's own tensor is encoded.
    """

    path: str
    prefix: str = "encoder."
    side: Count | None = None

    def build(self, shape: Shape) -> TorchEncoder:
        weights = strip_prefix(read_weights(self.path), self.prefix, self.path)
        return _build_pretrained("simclr", "resnet50", weights, shape, Sight(self.side))


@component
class AugNet:
    """AugNet's ResNet-50 (Chen et al., arXiv 2106.06250), trained without labels.

    `path` is its model.pth or the wheel of the package imgsim; without it the installed package is
    looked up. None of the package's code runs."""

    path: str | None = None
    side: Count | None = 224

    def build(self, shape: Shape) -> TorchEncoder:
        if self.path:
            path = Path(self.path).expanduser()
        else:
            path = find_package_folder("imgsim") / "model.pth"
        read = _read_wheel_weights if path.suffix == ".whl" else read_weights
        weights = strip_prefix(read(path), "module.pre.", str(path))
        return _build_pretrained("augnet", "resnet50", weights, shape, Sight(self.side))


def _build_pretrained(
    kind: str,
    network: str,
    weights: Weights,
    shape: Shape,
    sight: Sight,
) -> TorchEncoder:
    """An encoder from a torchvision network, all of whose tensors but the head's come from
    `weights`."""
    height, width, _ = shape
    seen = (sight.side or height, sight.side or width, 3)
    built, head = cut_network(network, seen, classes=1)
    load_exactly(built.trunk, weights, f"the weights of '{kind}'", skip=(head,))
    return TorchEncoder(kind, built.trunk, shape, sight)


def _read_wheel_weights(wheel: Path) -> Weights:
    """The weight file inside a wheel, read without installing it."""
    member = "imgsim/model.pth"
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(member)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        rule = f"a wheel of imgsim must exist and hold {member}"
        raise DataError(broken(rule, f"{wheel} ({error})")) from error
    return read_weight_bytes(content, f"{wheel}/{member}")
