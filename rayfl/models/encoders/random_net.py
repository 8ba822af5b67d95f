"""An untrained network as an encoder: the control that shows what pre-training is worth."""

from __future__ import annotations

from rayfl.component import Count, Natural, component
from rayfl.models.encoders.base import Sight, TorchEncoder
from rayfl.models.network import Shape, build_network
from rayfl.models.resnet import ResNet50


@component
class RandomResNet50:
    """A ResNet-50 with He-normal convolutions, drawn from a seed; its normalisation keeps mean 0
    and variance 1."""

    seed: Natural = 0
    side: Count | None = None

    def build(self, shape: Shape) -> TorchEncoder:
        height, width, _ = shape
        spec = ResNet50(stem="imagenet")
        # Grey images are shown in three channels; the head is not used.
        network = build_network(spec, (height, width, 3), 1, self.seed)
        return TorchEncoder("random", network.trunk, shape, Sight(self.side))
