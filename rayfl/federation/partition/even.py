"""Partitions that give every client the same distribution."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rayfl.component import Count, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.partition.dealing import (
    check_enough_samples,
    count_classes,
    deal_counts,
    deal_in_turn,
)
from rayfl.federation.views import UNUSED, Assignment, Pool


@component
class Iid:
    """A shuffle cut into equal parts.

    `remainder` says what becomes of the last `samples mod clients`: `spread` gives one each to as
    many clients, `last` gives all to the last client (FedDS), `drop` gives them to nobody
    (FedCorr)."""

    remainder: Literal["spread", "last", "drop"] = "spread"

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        check_enough_samples(pool, 1)
        order = rng.permutation(len(pool.labels))
        owner = np.empty(len(order), np.int64)
        owner[order] = deal_in_turn(pool.clients, len(order))
        # the last of the shuffle, hence random samples of random classes
        extra = order[len(order) - len(order) % pool.clients :]
        if self.remainder != "spread":
            owner[extra] = UNUSED if self.remainder == "drop" else pool.clients - 1
        return Assignment(owner)


@component
class IidPerClass:
    """Equally many samples of each class for every client: min(cap, floor(n_c / clients)); the rest
    stays unused."""

    cap: Count | None = None

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        each = np.minimum(count_classes(pool) // pool.clients, self.cap or len(pool.labels))
        if not each.any():
            raise ConfigError(
                broken(
                    f"iid_per_class: some class has at least one sample for each of {pool.clients} clients",
                    f"classes of {count_classes(pool).max()} samples at most",
                    "Ask for fewer clients, or use iid",
                )
            )
        return Assignment(deal_counts(pool, np.repeat(each[:, None], pool.clients, axis=1), rng))
