"""Asymmetric label noise: a corrupted sample of one class takes the label of one certain other
class."""

from __future__ import annotations

from typing import Annotated

from numpy.random import Generator
from pydantic import Field

from rayfl.component import component
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.federation.noise.pairs import PairRule, make_flip_table
from rayfl.federation.noise.rates import Rate
from rayfl.federation.noise.selection import Counting, choose_samples

_Pairs = Annotated[dict[int, int], Field(min_length=1)]


@component
class Asymmetric:
    """A share `rate` of each client's samples of the source classes turns into its partner class.

    `pairs` is a mapping source: target, or a rule: `next` (y + 1), `previous` (y - 1, the
    "pairflip" of FedRN's code), `superclass_ring` (CIFAR-100), `cifar10-fedds` or `cifar10-fedcr`.
    `count` is explained at `Counting`; its n is the number of a client's samples that can flip, so
    `per_class_floor` is FedDS's, `per_class` FedCR's, `exact` FedRN's."""

    rate: Rate
    pairs: PairRule | _Pairs
    count: Counting = "exact"

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        nominal = self.rate.per_client(truth.clients, rng)
        target = make_flip_table(self.pairs, truth.classes)
        # Samples of other classes must not use up the count.
        able = target[truth.labels] != truth.labels
        picked = choose_samples(truth, nominal, self.count, rng, able)
        given = truth.labels.copy()
        given[picked] = target[given[picked]]
        return Corruption(given, nominal)
