"""Dirichlet skew: over the labels, class by class (Yurochkin et al., Bayesian nonparametric
federated learning, ICML 2019; MOON, NIID-Bench and FedDS's code), and over the sizes alone.

FedDS cites Hsu, Qi & Brown (2019, arXiv:1909.06335), whose sampler is another one: clients of equal
size, each with class shares ~ Dirichlet(alpha p). At alpha 0.5, with 100 clients on MNIST, it gives
a client 3.3 classes and its largest one a share of .81; class by class it is 8.1 classes and .43,
as FedDS's code has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from rayfl.component import Natural, Positive, component
from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.interfaces import Assignment, Pool
from rayfl.federation.partition.dealing import (
    count_classes,
    cut_by_shares,
    deal_counts,
    redraw_until,
)


@component
class Dirichlet:
    """For each class, shares over the clients ~ Dirichlet(alpha), redrawn until everyone holds
    `min_size` samples.

    `cap` sets to 0 the share of a client that already holds samples / clients, as FedDS, MOON and
    NIID-Bench do. `label_blind` draws over the position in the pool in place of the label: FedRN's
    released sampler, which yields clients of unequal size and nearly equal class distribution."""

    alpha: Positive
    min_size: Natural = 10
    cap: bool = True
    label_blind: bool = False

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        # The noise and the methods still see the true labels: only this deal is blind.
        if self.label_blind:
            pool = _hide_labels(pool)
        sizes = count_classes(pool)
        alphas = np.full(pool.clients, self.alpha)

        def draw() -> Ints:
            shares = rng.dirichlet(alphas, size=pool.classes)
            if self.cap:
                return deal_capped(shares, sizes, rng)
            return cut_by_shares(shares, sizes, rng)

        counts = redraw_until(draw, pool, self.min_size)
        return Assignment(deal_counts(pool, counts, rng))


@component
class Quantity:
    """Sizes ~ Dirichlet(alpha), the labels of every client drawn alike."""

    alpha: Positive
    min_size: Natural = 10

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        # One class for all: a Dirichlet over labels that sees no labels skews sizes only.
        unlabelled = replace(pool, labels=np.zeros_like(pool.labels), classes=1)
        sizes = count_classes(unlabelled)
        alphas = np.full(pool.clients, self.alpha)

        def draw() -> Ints:
            shares = rng.dirichlet(alphas, size=1)
            return cut_by_shares(shares, sizes, rng)

        counts = redraw_until(draw, unlabelled, self.min_size)
        return Assignment(deal_counts(unlabelled, counts, rng))


def deal_capped(
    shares: Floats,
    sizes: Ints,
    rng: Generator,
) -> Ints:
    """Counts (classes, clients), where a class passes by the clients that already hold their fair
    share.

    Parameters
    ----------
    shares
        A table (classes, clients).
    sizes
        How many samples each class has.
    rng
        Cuts every class that has any.
    """
    counts = np.zeros(shares.shape, np.int64)
    clients = shares.shape[1]
    fair = sizes.sum() / clients
    # Classes depend on one another through `held`, so this loop over them cannot be one array.
    held = np.zeros(clients, np.int64)
    for c, size in enumerate(sizes):
        if size == 0:
            continue
        room = held < fair
        open_shares = shares[c] * room
        # A tiny alpha may put all of a class on clients that are full: those with room then share
        # alike.
        if not open_shares.any():
            open_shares = room.astype(np.float64)
        counts[c] = cut_by_shares(open_shares / open_shares.sum(), size, rng)
        held += counts[c]
    return counts


def _hide_labels(pool: Pool) -> Pool:
    """The pool with labels that follow the position: 0 .. 0, 1 .. 1, ..."""
    samples = len(pool.labels)
    position = np.arange(samples, dtype=np.int64)
    return replace(pool, labels=position * pool.classes // max(samples, 1))
