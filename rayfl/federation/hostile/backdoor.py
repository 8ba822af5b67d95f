"""Clients that teach the model to take every image with a certain patch for one class.

T. Gu, B. Dolan-Gavitt and S. Garg: "BadNets", 2017, for the patch; E. Bagdasaryan, A. Veit, Y. Hua,
D. Estrin and V. Shmatikov: "How to backdoor federated learning", AISTATS 2020, for `scale`, which
makes what a hostile client has learnt outweigh the others."""

from __future__ import annotations

from typing import Annotated

from numpy.random import Generator
from pydantic import Field

from rayfl.arrays import Vector
from rayfl.component import Count, Fraction, Positive, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints, Pixels
from rayfl.federation.hostile.base import Hostility
from rayfl.federation.hostile.updates import move_by


@component
class Backdoor(Hostility):
    """Some images of hostile clients get a square patch in the lower right corner, and `target` for
    a label. `test/backdoor_success` is how many test images of other classes, with the patch on
    them, the model takes for it."""

    target: Annotated[int, Field(ge=0)] = 0
    """The class."""
    share: Fraction = 0.5
    """Which share of a hostile client's samples is poisoned, rounded down."""
    size: Count = 3
    """Pixels of a side of the patch."""
    value: Annotated[int, Field(ge=0, le=255)] = 255
    """How bright it is, in every channel."""
    scale: Positive = 1.0
    """How much larger hostile updates are; 1 is what training gives."""

    @property
    def tampers(self) -> bool:
        return self.scale != 1.0

    @property
    def aim(self) -> int:
        return self.target

    def poison_labels(self, given: Ints, rows: Ints, classes: int, rng: Generator) -> Ints:
        poisoned = rng.permutation(rows)[: int(self.share * len(rows) + 1e-9)]
        given[poisoned] = self.target
        return poisoned

    def stamp(self, x: Pixels) -> None:
        side = min(x.shape[1:3])
        if self.size > side:
            rule = f"hostile.size is at most an image's side, {side} pixels"
            raise ConfigError(broken(rule, self.size))
        x[:, -self.size :, -self.size :] = self.value

    def change(self, update: Vector, start: Vector, rng: Generator) -> Vector:
        return move_by(start, update, self.scale)
