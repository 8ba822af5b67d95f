"""Each site a client of its own."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from rayfl.component import component
from rayfl.errors import ConfigError, broken
from rayfl.federation.interfaces import Assignment, Pool

_MOST_NAMED = 20


@component
class WholeSites:
    """Client k is the k-th site in alphabetical order, and has its name.

    Nothing is drawn. A site whose samples are all at the server is no client."""

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        if pool.groups is None or not pool.sites:
            rule = "partition 'sites' needs data whose sites have names"
            remedy = "Write data: {..., sites: ...}, or use 'groups' where there are group ids"
            raise ConfigError(broken(rule, "none", remedy))
        present, owner = np.unique(pool.groups, return_inverse=True)
        names = tuple(pool.sites[site] for site in present.tolist())
        if len(names) != pool.clients:
            more = ", ..." if len(names) > _MOST_NAMED else ""
            listed = ", ".join(names[:_MOST_NAMED])
            rule = f"partition 'sites' makes a client of each site ({listed}{more})"
            remedy = f"Write clients: {len(names)}"
            raise ConfigError(broken(rule, f"clients: {pool.clients}", remedy))
        return Assignment(owner.astype(np.int64), names=names)
