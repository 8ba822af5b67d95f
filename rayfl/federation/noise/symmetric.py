"""Symmetric label noise: a corrupted sample takes a uniformly random class."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.random import Generator

from rayfl.component import Fraction, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.federation.noise.rates import Rate, RhoTau
from rayfl.federation.noise.selection import Counting, choose_samples, draw_class


@component
class Symmetric:
    """A share `rate` of each client's samples gets a uniformly random label.

    `targets`: `others` are all classes but the true one; `all` includes it, so that 1 / classes of
    the corrupted samples stay right (FedCorr); `present` are the other classes that the client
    itself holds (FedDS's code). `count` is explained at `Counting`."""

    rate: Rate
    targets: Literal["others", "all", "present"] = "others"
    count: Counting = "exact"

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        nominal = self.rate.per_client(truth.clients, rng)
        picked = choose_samples(truth, nominal, self.count, rng)
        given = truth.labels.copy()
        if self.targets == "all":
            given[picked] = rng.integers(truth.classes, size=len(picked))
        elif self.targets == "present":
            given[picked] = _draw_present_class(truth, picked, rng)
        else:
            given[picked] = _draw_other_class(truth, picked, rng)
        return Corruption(given, nominal)


@component
class Uniform:
    """FB-NLL's uniform model, after FedCorr: a client is noisy with probability `rho`, then each of
    its samples with a probability ~ U(beta, 1) gets a label uniform over all classes, the true one
    included."""

    rho: Fraction = 0.4
    beta: Fraction = 0.2

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        rate = RhoTau(rho=self.rho, tau=self.beta)
        noise = Symmetric(rate=rate, targets="all", count="bernoulli")
        return noise.corrupt(truth, rng)


def _draw_other_class(
    truth: Truth,
    picked: Ints,
    rng: Generator,
) -> Ints:
    """Uniform over the classes that are not the sample's own."""
    classes = truth.classes
    if classes < 2:
        raise ConfigError(broken("symmetric noise needs at least two classes", classes))
    # A random turn of 1 .. classes-1 never ends where it began.
    turn = rng.integers(1, classes, size=len(picked))
    return (truth.labels[picked] + turn) % classes


def _draw_present_class(
    truth: Truth,
    picked: Ints,
    rng: Generator,
) -> Ints:
    """Uniform over the other classes of the sample's client."""
    present = np.zeros((truth.clients, truth.classes), np.bool_)
    present[truth.owner, truth.labels] = True
    owner = truth.owner[picked]
    # Only clients that have something to corrupt can break the rule.
    alone = owner[present.sum(axis=1)[owner] < 2]
    if len(alone):
        rule = "symmetric noise with targets: present needs two classes on every noisy client"
        found = f"one class on client {alone[0]}"
        raise ConfigError(broken(rule, found, "Write targets: others"))
    return draw_class(present, owner, rng, other_than=truth.labels[picked])
