"""The updates that lie at one place, each under the map that made it and the client whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from rayfl.fleet.sums.exact_sums import Grid, Partial, partial_sum, whole_sum
from rayfl.fleet.sums.shared_memory import Page, Pages
from rayfl.protocol import ClientId, Vector


class UpdateId(NamedTuple):
    """Which update: the number of the map that made it, and the client."""

    number: int
    client: ClientId


class Updates:
    """What one place holds until it is told to free it."""

    def __init__(self) -> None:
        self._held: dict[UpdateId, Mapping[str, Vector]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, which: UpdateId, named: Mapping[str, Vector]) -> None:
        self._held[which] = named

    def named(self, which: UpdateId) -> Mapping[str, Vector]:
        """All vectors of one update."""
        return self._held[which]

    def vector(self, which: UpdateId, key: str) -> Vector:
        return self._held[which][key]

    def partial(self, key: str, weights: Mapping[UpdateId, float], grid: Grid) -> Partial:
        """The exact sum of some of them."""
        return partial_sum(self._vectors(key, weights), weights, grid)

    def whole(self, key: str, weights: Mapping[UpdateId, float], grid: Grid) -> Vector:
        """The finished mean, where every update lies at this one place."""
        vectors = self._vectors(key, weights)
        mean = np.empty(len(next(iter(vectors.values()))), np.float32)
        whole_sum(vectors, weights, grid, sum(weights.values()), mean)
        return mean

    def _vectors(self, key: str, which: Iterable[UpdateId]) -> dict[UpdateId, Vector]:
        return {update: self._held[update][key] for update in which}

    def pages_of(self, which: Iterable[UpdateId], pages: Pages) -> dict[ClientId, dict[str, Page]]:
        """The pages of those updates that lie on any."""
        if not pages.lent:  # as it is with small models, of which there are thousands
            return {}
        found: dict[ClientId, dict[str, Page]] = {}
        for update in which:
            for name, vector in self._held.get(update, {}).items():
                page = pages.page_of(vector)
                if page is not None:
                    found.setdefault(update.client, {})[name] = page
        return found

    def page(self, which: UpdateId, key: str, pages: Pages) -> Page | None:
        """The page of an update; one that lies elsewhere moves to one, if there is one left."""
        held = self._held[which]
        page = pages.page_of(held[key])
        if page is not None:
            return page
        moved = pages.vector(len(held[key]))
        np.copyto(moved, held[key])
        self._held[which] = {**held, key: moved}
        return pages.page_of(moved)

    def free(self, number: int) -> None:
        """Let go of what a map left."""
        for which in [which for which in self._held if which.number == number]:
            del self._held[which]
