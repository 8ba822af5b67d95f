"""Building blocks that several families of networks share."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from rayfl.models.norm import Norm

NormLayer = Callable[[int], nn.Module]
"""Makes the layer that normalises so many channels."""

_GROUPS = 32
"""Most groups of a GroupNorm (Wu and He, ECCV 2018); fewer where the channels do not divide by
it."""


def choose_norm(norm: Norm, track_running_stats: bool = True) -> NormLayer:
    """The layer that normalises so many channels.

    Parameters
    ----------
    norm
        BatchNorm or GroupNorm.
    track_running_stats
        Without running statistics BatchNorm uses those of the batch in evaluation too, and nothing
        of it is averaged.
    """
    if norm == "group":
        return lambda channels: nn.GroupNorm(math.gcd(_GROUPS, channels), channels)
    return lambda channels: nn.BatchNorm2d(channels, track_running_stats=track_running_stats)


def build_conv_block(convolution: nn.Conv2d, norm: NormLayer) -> list[nn.Module]:
    """A `convolution`, its normalisation `norm` and a ReLU."""
    normalisation = norm(convolution.out_channels)
    return [convolution, normalisation, nn.ReLU(inplace=True)]


def pool_before_relu(*layers: nn.Module) -> list[nn.Module]:
    """Layers that end in a ReLU, and then the maximum of every 2 x 2.

    The maximum is taken first: which of four is the largest, and what reaches it backward, is the
    same to the last bit, and the ReLU has a quarter of the work."""
    *others, relu = layers
    return [*others, nn.MaxPool2d(2), relu]


def build_global_pooling() -> list[nn.Module]:
    """Average over all positions, then one vector an image."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
