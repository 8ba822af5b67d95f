"""Partitions by the classes that a client may hold: a number of them, or a fixed profile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rayfl.component import Count, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.partition.dealing import check_enough_samples, count_classes, deal_counts
from rayfl.federation.views import Assignment, Pool

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

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        if self.per_client > pool.classes:
            raise ConfigError(
                broken(
                    f"classes.per_client is at most the number of classes ({pool.classes})",
                    self.per_client,
                )
            )
        check_enough_samples(pool, 1)
        counts = _share_evenly(_draw_held_classes(pool, self.per_client, rng), count_classes(pool))
        sizes = counts.sum(axis=0)
        if not sizes.all():
            raise ConfigError(
                broken(
                    "classes: every client receives a sample of one of its classes",
                    f"nothing for client {int(sizes.argmin())} of {pool.clients}",
                    "Ask for fewer clients, or raise per_client",
                )
            )
        return Assignment(deal_counts(pool, counts, rng))


@component
class FedMatch10:
    """Ten types of clients (id mod 10), each with half of its samples from one class: the profile
    of FedMatch.

    All clients have the same size, the largest that the classes allow; the rest stays unused."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        if pool.classes != len(_PROFILE):
            raise ConfigError(
                broken(f"fedmatch10 needs {len(_PROFILE)} classes", pool.classes, "Use dirichlet")
            )
        types = (np.arange(pool.classes)[:, None] - np.arange(pool.clients)) % len(_PROFILE)
        shares = np.array(_PROFILE)[types]
        # the addend guards whole numbers against their floating-point neighbours below
        size = int(np.min(count_classes(pool) / shares.sum(axis=1)) + 1e-9)
        counts = np.floor(shares * size + 1e-9).astype(np.int64)
        if not counts.any():
            raise ConfigError(
                broken(
                    f"fedmatch10: every class has enough samples for {pool.clients} clients",
                    f"{count_classes(pool).min()} in the rarest",
                    "Ask for fewer clients",
                )
            )
        return Assignment(deal_counts(pool, counts, rng))


def _draw_held_classes(pool: Pool, per_client: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A table (classes, clients) with `per_client` marks in each column."""
    # the first few classes of each client come round robin, so that none is left without a holder
    dealt = min(per_client, -(-pool.classes // pool.clients))
    first = np.arange(pool.clients)[:, None] * dealt + np.arange(dealt)
    liking = rng.random((pool.clients, pool.classes))
    liking[
        rng.permutation(pool.clients)[:, None], rng.permutation(pool.classes)[first % pool.classes]
    ] = -1
    # the marked classes sort first, random likings decide the rest
    chosen = np.argsort(liking, axis=1)[:, :per_client]
    holds = np.zeros((pool.classes, pool.clients), np.bool_)
    holds[chosen, np.arange(pool.clients)[:, None]] = True
    return holds


def _share_evenly(holds: NDArray[np.bool_], sizes: Ints) -> Ints:
    """Each class's size shared by its holders, one more for the first ones where it does not
    divide."""
    # a class without a holder must not divide by zero
    among = np.maximum(holds.sum(axis=1), 1)[:, None]
    rank = np.cumsum(holds, axis=1) - 1
    counts: Ints = holds * (sizes[:, None] // among + (rank < sizes[:, None] % among))
    return counts
