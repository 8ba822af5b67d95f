"""Fully connected networks on flattened pixels."""

from __future__ import annotations

import itertools
import math

from torch import nn

from rayfl.component import Count, component
from rayfl.models.network import Network, Shape, linear_on


@component
class Linear:
    """Multinomial logistic regression: the features are the pixels."""

    def build(self, shape: Shape, classes: int) -> Network:
        return linear_on(nn.Flatten(), math.prod(shape), classes)


@component
class MLP:
    """Hidden layers with ReLU; (200, 200) is the "2NN" of McMahan et al. (AISTATS 2017)."""

    hidden: tuple[Count, ...] = (200, 200)

    def build(self, shape: Shape, classes: int) -> Network:
        widths = (math.prod(shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return linear_on(nn.Sequential(*layers), widths[-1], classes)
