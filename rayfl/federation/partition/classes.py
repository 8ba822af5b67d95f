"""Partitions by the classes that a client may hold: a number of them, or a fixed profile."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from rayfl.component import Count, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Bools, Ints
from rayfl.federation.interfaces import Assignment, Pool
from rayfl.federation.partition.dealing import (
    check_enough_samples,
    count_classes,
    deal_counts,
)

_PROFILE = (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)
"""Shares of the classes k, k+1, ... of a client of type k, in the code of FedMatch (Jeong et al.
2021)."""


@component
class Classes:
    """Each client holds `per_client` classes, and a class is shared evenly by its holders (Li et
    al. 2022, NIID-Bench).

    Every class has a holder wherever clients x per_client allows it; classes without one stay
    unused."""

    per_client: Count = 2

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        if self.per_client > pool.classes:
            rule = f"classes.per_client is at most the number of classes ({pool.classes})"
            raise ConfigError(broken(rule, self.per_client))
        check_enough_samples(pool, 1)
        holds = _draw_held_classes(pool, self.per_client, rng)
        counts = _share_evenly(holds, count_classes(pool))
        sizes = counts.sum(axis=0)
        if not sizes.all():
            rule = "classes: every client receives a sample of one of its classes"
            found = f"nothing for client {int(sizes.argmin())} of {pool.clients}"
            remedy = "Ask for fewer clients, or raise per_client"
            raise ConfigError(broken(rule, found, remedy))
        return Assignment(deal_counts(pool, counts, rng))


@component
class FedMatch10:
    """Ten types of clients (id mod 10), each with half of its samples from one class: the profile
    of FedMatch.

    All clients have the same size, the largest that the classes allow; the rest stays unused."""

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        types = len(_PROFILE)
        if pool.classes != types:
            rule = f"fedmatch10 needs {types} classes"
            raise ConfigError(broken(rule, pool.classes, "Use dirichlet"))
        classes = np.arange(types)[:, None]
        clients = np.arange(pool.clients)
        shares = np.array(_PROFILE)[(classes - clients) % types]
        available = count_classes(pool)
        # The addend guards whole numbers against their floating-point neighbours below.
        size = int(np.min(available / shares.sum(axis=1)) + 1e-9)
        counts = np.floor(shares * size + 1e-9).astype(np.int64)
        if not counts.any():
            rule = f"fedmatch10: every class has enough samples for {pool.clients} clients"
            found = f"{available.min()} in the rarest"
            raise ConfigError(broken(rule, found, "Ask for fewer clients"))
        return Assignment(deal_counts(pool, counts, rng))


def _draw_held_classes(
    pool: Pool,
    per_client: int,
    rng: Generator,
) -> Bools:
    """A table (classes, clients) with `per_client` marks in each column."""
    # The first few classes of each client come round robin, so that none is left without a holder.
    due = -(-pool.classes // pool.clients)
    dealt = min(per_client, due)
    rows = np.arange(pool.clients)[:, None]
    turns = rows * dealt + np.arange(dealt)
    liking = rng.random((pool.clients, pool.classes))
    clients = rng.permutation(pool.clients)[:, None]
    classes = rng.permutation(pool.classes)
    first = classes[turns % pool.classes]
    liking[clients, first] = -1
    # The marked classes sort first, random likings decide the rest.
    order = np.argsort(liking, axis=1)
    chosen = order[:, :per_client]
    holds = np.zeros((pool.classes, pool.clients), np.bool_)
    holds[chosen, rows] = True
    return holds


def _share_evenly(holds: Bools, sizes: Ints) -> Ints:
    """Each class's size shared by its holders, one more for the first ones where it does not
    divide."""
    # A class without a holder must not divide by zero.
    holders = np.maximum(holds.sum(axis=1), 1)[:, None]
    rank = np.cumsum(holds, axis=1) - 1
    whole, rest = np.divmod(sizes[:, None], holders)
    counts: Ints = holds * (whole + (rank < rest))
    return counts
