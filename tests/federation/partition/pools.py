"""Pools of labels as the papers deal them out, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import Assignment, Pool
from rayfl.federation.partition import PARTITIONS

SVHN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)


def pool_of(sizes: Sequence[int], clients: int, groups: Ints | None = None) -> Pool:
    """`sizes[c]` samples of each class in one fixed random order."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return Pool(np.random.default_rng(7).permutation(labels), len(sizes), clients, groups)


def assign(spec: Any, pool: Pool, seed: int = 0) -> Assignment:
    return PARTITIONS.build(spec).assign(pool, np.random.default_rng(seed))


def held(pool: Pool, owner: Ints) -> Ints:
    """How many samples of each class each client has: (clients, classes)."""
    used = owner >= 0
    cells = owner[used] * pool.classes + pool.labels[used]
    return np.bincount(cells, minlength=pool.clients * pool.classes).reshape(-1, pool.classes)


def sizes_of(pool: Pool, owner: Ints) -> Ints:
    sizes: Ints = held(pool, owner).sum(axis=1)
    return sizes
