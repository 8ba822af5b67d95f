"""Clients that train honestly on labels that they have turned round."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.random import Generator
from pydantic import Field

from rayfl.component import Fraction, component
from rayfl.federation.arrays import Ints
from rayfl.federation.hostile.base import Hostility
from rayfl.federation.noise.pairs import PairRule, make_flip_table

_Pairs = Annotated[dict[int, int], Field(min_length=1)]


@component
class LabelFlip(Hostility):
    """Label y of a hostile client, noise included, becomes another class: C - 1 - y, or what
    `pairs` says."""

    pairs: Literal["mirror"] | PairRule | _Pairs = "mirror"
    """`mirror`: C - 1 - y (the middle of an odd number of classes stays); or as for asymmetric
    noise."""
    share: Fraction = 1.0
    """Which share of a client's samples is flipped, rounded down."""

    def poison_labels(self, given: Ints, rows: Ints, classes: int, rng: Generator) -> Ints:
        mirrored = np.arange(classes)[::-1]
        table = mirrored if self.pairs == "mirror" else make_flip_table(self.pairs, classes)
        flipped = rng.permutation(rows)[: int(self.share * len(rows) + 1e-9)]
        given[flipped] = table[given[flipped]]
        return rows[:0]
