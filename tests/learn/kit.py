"""Small clients for the tests of the kit: a linear network, or one with BatchNorm, and images of
three classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rayfl.learn.learner import Learner
from rayfl.learn.resident import Resident, Vector
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Client

CLASSES = 3
SIDE = 4


def build_linear(i: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES))


def build_normed(i: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 2, 3),
            nn.BatchNorm2d(2, affine=False),
            nn.Flatten(),
            nn.Linear(2 * (SIDE - 2) ** 2, CLASSES),
        )


def make_learner(build: Callable[..., nn.Module] = build_linear, **settings: Any) -> Learner:
    return Learner(build, LocalTraining(**settings), Normalisation(), evaluation_batch=16)


def make_client(
    size: int,
    learner: Learner | None = None,
    number: int = 0,
    labels: bool = True,
    seed: int = 0,
) -> Client:
    """A client with images that are brighter the higher their class, at the start of a visit."""
    place = learner or make_learner()
    made = np.random.default_rng(size + 100 * number)
    y = made.integers(0, CLASSES, size)
    light = 50 + 80 * y[:, None, None, None]
    x = made.normal(light, 30, (size, SIDE, SIDE, 1)).clip(0, 255).astype(np.uint8)
    x.flags.writeable = False
    rng = np.random.default_rng(seed)
    place.begin_visit(rng)
    return Client(number, x, y if labels else None, {}, rng, place, classes=CLASSES)


def first_weights(learner: Learner, i: int = 0) -> Vector:
    """Weights number `i` of the place's network."""
    return Resident(learner.build(i), learner.device, learner.training.layout).dump()
