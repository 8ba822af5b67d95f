"""Building blocks that several families of networks share."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from rayfl.models.norm import Norm

GROUPS = 32
"""Most groups of a GroupNorm (Wu and He, ECCV 2018); fewer where the channels do not divide by it."""


def normaliser(norm: Norm, track_running_stats: bool = True) -> Callable[[int], nn.Module]:
    """The layer that normalises so many channels.

    Without running statistics BatchNorm uses those of the batch in evaluation too, and nothing of it is averaged.
    """
    if norm == "group":
        return lambda channels: nn.GroupNorm(math.gcd(GROUPS, channels), channels)
    return lambda channels: nn.BatchNorm2d(channels, track_running_stats=track_running_stats)


def normalised(convolution: nn.Conv2d, norm: Callable[[int], nn.Module]) -> list[nn.Module]:
    """A convolution, its normalisation and a ReLU."""
    return [convolution, norm(convolution.out_channels), nn.ReLU(inplace=True)]


def pooled() -> list[nn.Module]:
    """Average over all positions, then one vector an image."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
