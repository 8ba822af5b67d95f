"""A network of convolutions that leave a single pixel of small images."""

from __future__ import annotations

from torch import nn

from rayfl.component import component
from rayfl.models.network import Network, Shape, add_linear_head


@component
class Shrinking:
    """Of 8 x 8 images: 4 x 4, 2 x 2, and then twice a single pixel, to which kernels of nine taps
    are applied."""

    width: int = 16

    def build(self, shape: Shape, classes: int) -> Network:
        channels = (shape[2], *[self.width] * 4)
        layers: list[nn.Module] = []
        for inputs, outputs, stride in zip(channels, channels[1:], (2, 2, 2, 1), strict=False):
            norm = nn.BatchNorm2d(outputs, track_running_stats=False)
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                norm,
                nn.ReLU(),
            ]
        return add_linear_head(nn.Sequential(*layers, nn.Flatten()), self.width, classes)
