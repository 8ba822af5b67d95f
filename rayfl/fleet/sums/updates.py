"""The updates that one place holds, from the visit that made them until their map is forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rayfl.fleet.sums.exact_sums import Grid, Partial, partial_sum, whole_sum
from rayfl.fleet.sums.shared_memory import Page, Pages
from rayfl.protocol import ClientId, Vector

NamedVectors = Mapping[str, Vector]


class UpdateId(NamedTuple):
    """An update's name in the whole fleet: the number of its map, and who made it there."""

    number: int
    client: ClientId


class Updates:
    """What one place holds, by map and client; a mean may be over several maps."""

    def __init__(self) -> None:
        self._maps: dict[int, dict[ClientId, NamedVectors]] = {}

    def __iter__(self) -> Iterator[UpdateId]:
        for number, held in self._maps.items():
            for client in held:
                yield UpdateId(number, client)

    def keep(self, update: UpdateId, vectors: NamedVectors) -> None:
        self._maps.setdefault(update.number, {})[update.client] = vectors

    def vectors(self, update: UpdateId) -> NamedVectors:
        """All of an update, by name."""
        return self._maps[update.number][update.client]

    def vector(self, update: UpdateId, key: str) -> Vector:
        return self._maps[update.number][update.client][key]

    def clip(self, number: int, limits: Mapping[ClientId, Mapping[str, float]]) -> None:
        """Scale vectors of a map down to these largest values."""
        for client, most in limits.items():
            held = self._maps[number][client]
            clipped = {name: clip_vector(held[name], limit) for name, limit in most.items()}
            self.keep(UpdateId(number, client), {**held, **clipped})

    def free(self, number: int) -> None:
        """Drop what a map left here, if it left anything."""
        self._maps.pop(number, None)

    def partial(self, key: str, weights: Mapping[UpdateId, float], grid: Grid) -> Partial:
        """The sum of some updates that lie here."""
        return partial_sum(self._summands(key, weights), weights, grid)

    def whole(
        self, key: str, weights: Mapping[UpdateId, float], grid: Grid, total: float
    ) -> Vector:
        """The finished mean, where every update lies at this one place."""
        vectors = self._summands(key, weights)
        length = len(next(iter(vectors.values())))
        mean = np.empty(length, np.float32)
        whole_sum(vectors, weights, grid, total, mean)
        return mean

    def _summands(self, key: str, weights: Mapping[UpdateId, float]) -> dict[UpdateId, Vector]:
        return {update: self.vector(update, key) for update in weights}

    def find_pages(
        self, number: int, clients: Sequence[ClientId], pages: Pages
    ) -> dict[ClientId, dict[str, Page]]:
        """The pages of those updates of a map that lie on any."""
        if not pages.lent:  # as it is with small models, of which there are thousands
            return {}
        held = self._maps.get(number, {})
        found: dict[ClientId, dict[str, Page]] = {}
        for client in clients:
            for name, vector in held.get(client, {}).items():
                if (page := pages.page_of(vector)) is not None:
                    found.setdefault(client, {})[name] = page
        return found

    def bring_to_page(self, update: UpdateId, key: str, pages: Pages) -> Page | None:
        """The page of an update; one that lies elsewhere moves to one, if there is one left."""
        held = self.vectors(update)
        if (page := pages.page_of(held[key])) is not None:
            return page
        moved = pages.vector(len(held[key]))
        np.copyto(moved, held[key])
        self.keep(update, {**held, key: moved})
        return pages.page_of(moved)


def clip_vector(vector: Vector, limit: float) -> Vector:
    """A vector scaled so that its largest absolute value is `limit`: a new one, because the phase
    may have kept the old one as its state."""
    peak = float(np.abs(vector).max())
    scaled = vector * np.float64(limit / peak)
    # The product may round to a float32 just above.
    clipped: Vector = np.clip(scaled, -limit, limit).astype(np.float32)
    return clipped
