"""Partitions that give every client the same distribution."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.random import Generator

from rayfl.component import Count, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.interfaces import UNUSED, Assignment, Pool
from rayfl.federation.partition.dealing import (
    check_enough_samples,
    count_classes,
    deal_counts,
    deal_in_turn,
)


@component
class Iid:
    """A shuffle cut into equal parts.

    `remainder` says what becomes of the last `samples mod clients`: `spread` gives one each to as
    many clients, `last` gives all to the last client (FedDS), `drop` gives them to nobody
    (FedCorr)."""

    remainder: Literal["spread", "last", "drop"] = "spread"

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        check_enough_samples(pool, 1)
        samples = len(pool.labels)
        order = rng.permutation(samples)
        owner = np.empty(samples, np.int64)
        owner[order] = deal_in_turn(pool.clients, samples)
        # The last of the shuffle, hence random samples of random classes.
        extra = order[samples - samples % pool.clients :]
        if self.remainder == "drop":
            owner[extra] = UNUSED
        elif self.remainder == "last":
            owner[extra] = pool.clients - 1
        return Assignment(owner)


@component
class IidPerClass:
    """Equally many samples of each class for every client: min(cap, floor(n_c / clients)); the rest
    stays unused."""

    cap: Count | None = None

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        sizes = count_classes(pool)
        most = self.cap or len(pool.labels)
        each = np.minimum(sizes // pool.clients, most)
        if not each.any():
            rule = (
                "iid_per_class: some class has at least one sample "
                f"for each of {pool.clients} clients"
            )
            found = f"classes of {sizes.max()} samples at most"
            raise ConfigError(broken(rule, found, "Ask for fewer clients, or use iid"))
        counts = np.repeat(each[:, None], pool.clients, axis=1)
        return Assignment(deal_counts(pool, counts, rng))
