"""MobileNet v1 for small images (Howard et al., arXiv 1704.04861), as FedRN uses it for CIFAR-100
and WebVision."""

from __future__ import annotations

from torch import nn

from rayfl.component import component
from rayfl.models.blocks import (
    NormLayer,
    build_conv_block,
    build_global_pooling,
    choose_norm,
)
from rayfl.models.network import Network, Shape, add_linear_head
from rayfl.models.norm import Norm

_STEM = 32
_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
"""(channels, stride) of the thirteen separable blocks."""


@component
class MobileNet:
    """Depthwise-separable blocks after a stem of stride 1; normalised with the batch, as in FedRN's
    experiments."""

    norm: Norm = "batch"
    track_running_stats: bool = False

    def build(self, shape: Shape, classes: int) -> Network:
        norm = choose_norm(self.norm, self.track_running_stats)
        # No bias before a normalisation, which would take it away again.
        stem = nn.Conv2d(shape[2], _STEM, 3, padding=1, bias=False)
        layers = build_conv_block(stem, norm)
        inputs = _STEM
        for outputs, stride in _BLOCKS:
            layers += _build_separable(inputs, outputs, stride, norm)
            inputs = outputs
        trunk = nn.Sequential(*layers, *build_global_pooling())
        return add_linear_head(trunk, inputs, classes)


def _build_separable(
    inputs: int,
    outputs: int,
    stride: int,
    norm: NormLayer,
) -> list[nn.Module]:
    """A 3x3 convolution per channel, then a 1x1 convolution across channels."""
    depthwise = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
    pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
    return [
        *build_conv_block(depthwise, norm),
        *build_conv_block(pointwise, norm),
    ]
