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
    it must take.

    Parameters
    ----------
    trunk
        Makes a vector of each image.
    head
        Makes logits of the vectors.
    feature_dim
        The width of the vectors.
    """

    def __init__(
        self,
        trunk: nn.Module,
        head: nn.Module,
        feature_dim: int,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """The vector before the head, one row an image of `x`."""
        vectors: Tensor = self.trunk(x)
        return vectors

    def forward(self, x: Tensor) -> Tensor:
        """The logits, one row an image of `x`."""
        logits: Tensor = self.head(self.features(x))
        return logits


class Architecture(Protocol):
    """What a model component does."""

    def build(self, shape: Shape, classes: int) -> Network:
        """Build a network, drawing weights from torch's generator.

        Parameters
        ----------
        shape
            (height, width, channels) of the images.
        classes
            How many logits it answers.
        """
        ...


def build_network(
    spec: Architecture,
    shape: Shape,
    classes: int,
    seed: int,
) -> Network:
    """The network that a seed gives: the same bits each time, with torch's own generator left as it
    was.

    Parameters
    ----------
    spec
        The component that builds it.
    shape
        (height, width, channels) of the images.
    classes
        How many logits it answers.
    seed
        Decides the weights.
    """
    if min(shape) < 1 or classes < 1:
        rule = "a network needs positive image sides, channels and classes"
        raise ConfigError(broken(rule, f"{shape}, {classes}"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return spec.build(shape, classes)


def add_linear_head(
    trunk: nn.Module,
    width: int,
    classes: int,
) -> Network:
    """The trunk with the usual head, one linear layer.

    Parameters
    ----------
    trunk
        Makes a vector of each image.
    width
        The length of the vectors.
    classes
        How many logits the head answers.
    """
    return Network(trunk, nn.Linear(width, classes), width)


def measure_features(
    trunk: nn.Module,
    shape: Shape,
    name: str,
) -> int:
    """Length of the vector that a trunk makes of an image; refused where the image is too small.

    Parameters
    ----------
    trunk
        Makes a vector of each image.
    shape
        (height, width, channels) of the images.
    name
        What a refusal calls the network.
    """
    height, width, channels = shape
    # Two images: batch statistics of a single one may be undefined.
    images = torch.zeros(2, channels, height, width)
    training = trunk.training
    # In training, running statistics would move.
    trunk.eval()
    try:
        with torch.no_grad():
            vectors: Tensor = trunk(images)
    except (RuntimeError, ValueError) as error:
        rule = f"images must be large enough for every convolution and pooling of '{name}'"
        remedy = "Use larger images or a network that shrinks them less (mlp, a resnet)"
        raise ConfigError(broken(rule, f"{height}x{width}x{channels}", remedy)) from error
    trunk.train(training)
    return vectors.shape[1]


def count_parameters(module: nn.Module) -> int:
    """How many trainable numbers `module` holds; running statistics do not count."""
    return sum(parameter.numel() for parameter in module.parameters())
