"""A partition that no method likes."""

from __future__ import annotations

import numpy as np

from rayfl.component import component
from rayfl.federation.views import Assignment, Pool


@component
class OneSample:
    """Client 0 gets one sample, client 1 some of a single class, the others the rest."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        owner = rng.integers(2, pool.clients, len(pool.labels))
        same_class = np.flatnonzero(pool.labels == pool.labels[0])
        owner[same_class[:12]] = 1
        owner[same_class[12]] = 0
        return Assignment(owner)
