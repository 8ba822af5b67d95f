"""A small convolutional network and a client that trains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rayfl.learn.fit import carry_out
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit
from rayfl.learn.resident import Layout, Resident
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Client, Vector

LAYOUTS: tuple[Layout, ...] = ("channels_last", "channels_first")


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def conv_net(classes: int = 3) -> nn.Module:
    """Convolutions, one of them grouped, BatchNorm and a linear head, for 8 x 8 images of two
    channels."""
    return seeded(
        lambda: nn.Sequential(
            *(
                nn.Conv2d(2, 6, 3, padding=1, bias=False),
                nn.BatchNorm2d(6),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ),
            *(nn.Conv2d(6, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, classes)),
        )
    )


IMAGE = (8, 8, 2)
"""What `shrinking_net` looks at."""


def shrinking_net() -> nn.Module:
    """8 x 8 images become single pixels: of the third kernel four taps are reached, of the fourth
    one."""
    return seeded(
        lambda: nn.Sequential(
            *(
                nn.Conv2d(2, 4, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
            ),
            # A bias ahead of batch norm has no slope but rounding, which Adam would make large.
            *(nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
        )
    )


def linear_net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 3)))


def dropout_net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 3)))


def learner(build: Callable[[], nn.Module] = linear_net, **settings: Any) -> Learner:
    return Learner(build, LocalTraining(**settings), Normalisation(), evaluation_batch=16)


def client(size: int, place: Learner, seed: int = 0, labels: bool = True) -> Client:
    """A client with images that are brighter the higher their class."""
    made, rng = np.random.default_rng(size), np.random.default_rng(seed)
    y = made.integers(0, 3, size)
    x = np.clip(made.normal(60 + 60 * y[:, None, None, None], 40, (size, 8, 8, 2)), 0, 255).astype(
        np.uint8
    )
    x.flags.writeable = False
    place.begin_visit(rng)
    return Client(0, x, y if labels else None, {}, rng, place, classes=3)


def start(build: Callable[[], nn.Module] = linear_net) -> Vector:
    """The first weights of a network."""
    return Resident(build(), torch.device("cpu")).dump()


def train(visited: Client, weights: Vector, **wish: Any) -> Vector:
    """The weights that a wish ends with."""
    found: Vector = carry_out(visited, Fit(weights, **wish)).weights
    return found
