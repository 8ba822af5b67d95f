"""What every network is: a trunk that turns images into features, and a head that turns features
into logits."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from rayfl.errors import ConfigError, broken

Shape = tuple[int, int, int]
"""(height, width, channels) of one image."""


class Network(nn.Module):
    """`forward(x) = head(features(x))` for float images x (N, channels, height, width).

    Methods that put another head on the same trunk assign `head`; `feature_dim` is the width that
    it must take."""

    def __init__(self, trunk: nn.Module, head: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """The vector before the head, one row an image."""
        vectors: Tensor = self.trunk(x)
        return vectors

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


class Architecture(Protocol):
    """What a model component does: build a network for images of one shape, drawing weights from
    torch's generator."""

    def build(self, shape: Shape, classes: int) -> Network: ...


def initialise(spec: Architecture, shape: Shape, classes: int, seed: int) -> Network:
    """The network that this seed gives: the same bits each time, with torch's own generator left as
    it was."""
    if min(shape) < 1 or classes < 1:
        raise ConfigError(
            broken(
                "a network needs positive image sides, channels and classes", f"{shape}, {classes}"
            )
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return spec.build(shape, classes)


def add_linear_head(trunk: nn.Module, width: int, classes: int) -> Network:
    """The trunk with the usual head, one linear layer."""
    return Network(trunk, nn.Linear(width, classes), width)


def measure_features(trunk: nn.Module, shape: Shape, name: str) -> int:
    """Length of the vector that the trunk makes of an image of this shape; refused where the image
    is too small."""
    height, width, channels = shape
    training = trunk.training
    trunk.eval()
    try:
        # Two images: batch statistics of a single one may be undefined.
        with torch.no_grad():
            vectors: Tensor = trunk(torch.zeros(2, channels, height, width))
    except (RuntimeError, ValueError) as error:
        rule = f"images must be large enough for every convolution and pooling of '{name}'"
        remedy = "Use larger images or a network that shrinks them less (mlp, a resnet)"
        raise ConfigError(broken(rule, f"{height}x{width}x{channels}", remedy)) from error
    trunk.train(training)
    return vectors.shape[1]


def parameter_count(module: nn.Module) -> int:
    """How many trainable numbers a module holds; running statistics do not count."""
    return sum(p.numel() for p in module.parameters())
