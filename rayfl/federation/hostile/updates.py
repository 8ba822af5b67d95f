"""Clients that train honestly and send something else. With x what a client began with and w what
it has trained:

    sign_flip   x - scale (w - x)
    scaled      x + scale (w - x)
    gaussian    x + deviation * noise, noise ~ N(0, 1)

In float64, number by number, and so the same bits in every place."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.random import Generator

from rayfl.arrays import Vector
from rayfl.component import NonNegative, Positive, component
from rayfl.federation.hostile.base import Hostility


def move_by(start: Vector, update: Vector, factor: float) -> Vector:
    """start + factor (update - start).

    >>> move_by(np.ones(1, np.float32), np.full(1, 3, np.float32), -2.0).tolist()
    [-3.0]
    """
    origin = start.astype(np.float64)
    # What no float32 can hold becomes infinite: an update that is left out as diverged.
    with np.errstate(over="ignore"):
        return (origin + factor * (update - origin)).astype(np.float32)


@component
class SignFlip(Hostility):
    """Hostile clients send the opposite of what they have learnt."""

    changes_updates: ClassVar[bool] = True
    scale: Positive = 1.0
    """How far they go the other way."""

    def change(self, update: Vector, start: Vector, rng: Generator) -> Vector:
        return move_by(start, update, -self.scale)


@component
class Scaled(Hostility):
    """Hostile clients exaggerate what they have learnt."""

    changes_updates: ClassVar[bool] = True
    scale: NonNegative = 10.0
    """How much larger their updates are; 1 is honest, 0 brings nothing."""

    def change(self, update: Vector, start: Vector, rng: Generator) -> Vector:
        return move_by(start, update, self.scale)


@component
class GaussianUpdate(Hostility):
    """Hostile clients send noise around what they began with."""

    changes_updates: ClassVar[bool] = True
    deviation: Positive = 1.0
    """Its standard deviation."""

    def change(self, update: Vector, start: Vector, rng: Generator) -> Vector:
        noise = self.deviation * rng.standard_normal(len(update))
        with np.errstate(over="ignore"):
            return (start + noise).astype(np.float32)
