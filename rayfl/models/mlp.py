"""Fully connected networks on flattened pixels; like the convolutional ones, they import torch when
they are built."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rayfl.component import Count, component

if TYPE_CHECKING:
    from torch import nn

    from rayfl.models.network import Network, Shape


@component
class Linear:
    """Multinomial logistic regression: the features are the pixels."""

    def build(self, shape: Shape, classes: int) -> Network:
        from torch import nn

        from rayfl.models.network import add_linear_head

        return add_linear_head(nn.Flatten(), math.prod(shape), classes)


@component
class MLP:
    """Hidden layers with ReLU; (200, 200) is the "2NN" of McMahan et al. (AISTATS 2017)."""

    hidden: tuple[Count, ...] = (200, 200)

    def build(self, shape: Shape, classes: int) -> Network:
        from torch import nn

        from rayfl.models.network import add_linear_head

        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(shape)
        for width in self.hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        return add_linear_head(nn.Sequential(*layers), inputs, classes)
