"""Shards of label-sorted data (McMahan et al. 2017, arXiv:1602.05629)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from rayfl.component import Count, component
from rayfl.federation.interfaces import UNUSED, Assignment, Pool
from rayfl.federation.partition.dealing import check_enough_samples, shuffle_by_key


@component
class Shards:
    """Sort by label (ties in seeded random order), cut into clients x `per_client` equal shards,
    deal them at random.

    Samples beyond the last whole shard stay unused. All of them are of the last class (of
    mini-WebVision's 65,944 images over 1,000 shards, 944), as in FedRN's code."""

    per_client: Count = 2

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        check_enough_samples(pool, self.per_client)
        samples = len(pool.labels)
        shards = pool.clients * self.per_client
        size = samples // shards
        # Dealing whole shards keeps client ids and classes independent of each other.
        turns = np.repeat(np.arange(pool.clients), self.per_client)
        dealt = rng.permutation(turns)
        order = shuffle_by_key(pool.labels, rng)
        owner = np.full(samples, UNUSED, np.int64)
        owner[order[: shards * size]] = np.repeat(dealt, size)
        return Assignment(owner)
