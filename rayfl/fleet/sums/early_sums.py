"""Sums that are made before they are asked for.

A method averages what a map returned, mostly by size or equally: with weights and a grid that the
round before lets one expect. Actors of small models add their updates up at once, in the call that
trained them; if the mean is the expected one, the call for partial sums is saved. If not, nothing
is lost but their arithmetic. Bits cannot differ: weights and grid are compared, and exact sums are
what they are whoever makes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rayfl.fleet.sums.exact_sums import Grid, Partial
from rayfl.protocol import ClientId


@dataclass(frozen=True)
class Expected:
    """The mean that is expected of the updates of one name."""

    weights: dict[ClientId, float]
    grid: Grid

    def part(self, clients: Collection[ClientId]) -> Expected:
        """The share of some of them."""
        return Expected({client: self.weights[client] for client in clients}, self.grid)


ExpectedMeans = Mapping[str, Expected]
"""By the name of the updates."""
MadeSums = Mapping[str, Partial]


@dataclass
class EarlySums:
    """The sums that the calls of one map made on expectations; none of a call that made none."""

    expected: ExpectedMeans
    made: list[MadeSums] = field(default_factory=list)
    complete: bool = False
    """Whether the map is over. A sum of only those that are made again is no part of any mean."""

    def expect_of(self, clients: Collection[ClientId]) -> ExpectedMeans:
        """What a call with these clients is to add up."""
        if self.complete:
            return {}
        return {key: mean.part(clients) for key, mean in self.expected.items()}

    def add(self, partials: MadeSums) -> None:
        if not self.complete:
            self.made.append(partials)

    def find(self, key: str, weights: Mapping[ClientId, float], grid: Grid) -> list[Partial] | None:
        """All of them, if they are just those of this mean."""
        if self.expected.get(key) != Expected(dict(weights), grid):
            return None
        # One call without a sum (an update of its has diverged, say), and all are asked for theirs.
        made = [partials[key] for partials in self.made if key in partials]
        return made if len(made) == len(self.made) else None


class Sized(Protocol):
    """What is asked about clients."""

    def size(self, client: ClientId) -> int: ...


Weigh = Callable[[Collection[ClientId]], dict[ClientId, float]]


class MeanExpectation:
    """Expects the next means to be by the same rule and on the grid of the last ones of their
    names."""

    def __init__(self, sizes: Sized) -> None:
        self.sizes = sizes
        self.known: dict[str, tuple[Weigh, Grid]] = {}
        self.latest: dict[str, Expected] = {}

    def expect(self, clients: Collection[ClientId]) -> dict[str, Expected]:
        """What is expected of a map over these clients; nothing as long as no mean was by a
        rule."""
        # A mean of one needs no sum, and the server's tasks have no sizes.
        if len(clients) < 2 or min(clients) < 0:
            return {}
        known = self.known.items()
        self.latest = {key: Expected(weigh(clients), grid) for key, (weigh, grid) in known}
        return self.latest

    def weigh_by_size(self, clients: Collection[ClientId]) -> dict[ClientId, float]:
        """Clients count by their samples."""
        return _scale({client: float(self.sizes.size(client)) for client in sorted(clients)})

    def weigh_equally(self, clients: Collection[ClientId]) -> dict[ClientId, float]:
        """All clients count the same."""
        return _scale(dict.fromkeys(sorted(clients), 1.0))

    def learn(self, key: str, weights: Mapping[ClientId, float], grid: Grid) -> None:
        """Take note of a mean that was asked for."""
        latest = self.latest.get(key)
        if latest is not None and latest.weights == weights:
            self.known[key] = (self.known[key][0], grid)
            return
        # A method with weights of its own is left alone until it asks for a rule's again.
        self.known.pop(key, None)
        for rule in (self.weigh_by_size, self.weigh_equally):
            if rule(weights) == weights:
                self.known[key] = (rule, grid)
                return


def _scale(weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """As `Replies.mean` scales them: by a power of two that brings the sum below one."""
    exponent = math.frexp(sum(weights.values()))[1]
    return {client: math.ldexp(weight, -exponent) for client, weight in weights.items()}
