"""Sums that are made before they are asked for.

A method averages what a map returned, mostly by size: with weights and a grid that the round before
lets one expect. Actors of small models add their updates up at once, in the call that trained them;
if the mean is the expected one, the call for partial sums is saved. If not, nothing is lost but
their arithmetic. Bits cannot differ: weights and grid are compared, and exact sums are what they
are whoever makes them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rayfl.fleet.sums.exact_sums import Grid, Partial
from rayfl.protocol import ClientId


@dataclass(frozen=True)
class Expected:
    """The mean that is expected of some clients."""

    weights: dict[ClientId, float]
    grid: Grid

    def part(self, clients: Collection[ClientId]) -> Expected:
        """The share of some of them."""
        return Expected({client: self.weights[client] for client in clients}, self.grid)


@dataclass
class EarlySums:
    """The sums that the calls of one map made on an expectation; None for a call that made none."""

    expected: Expected | None
    made: list[Partial | None] = field(default_factory=list)
    complete: bool = False
    """Whether the map is over. A sum of only those that are made again is no part of any mean."""

    def expect_of(self, clients: Collection[ClientId]) -> Expected | None:
        """What a call with these clients is to add up."""
        if self.expected is None or self.complete:
            return None
        return self.expected.part(clients)

    def add(self, partial: Partial | None) -> None:
        if not self.complete:
            self.made.append(partial)

    def find(self, weights: Mapping[ClientId, float], grid: Grid) -> list[Partial] | None:
        """All of them, if they are just those of this mean."""
        if self.expected is None or self.expected.grid != grid or self.expected.weights != weights:
            return None
        # One call without a sum (an update of its has diverged, say), and all are asked for theirs.
        made = [partial for partial in self.made if partial is not None]
        return made if len(made) == len(self.made) else None


class Sized(Protocol):
    """What is asked about clients."""

    def size(self, client: ClientId) -> int: ...


class MeanExpectation:
    """Expects the next mean to be by size and on the grid of the last one, once one was."""

    def __init__(self, sizes: Sized) -> None:
        self.sizes = sizes
        self.grid: Grid | None = None
        self.latest: dict[ClientId, float] = {}

    def expect(self, clients: Collection[ClientId]) -> Expected | None:
        """What is expected of a map over these clients; nothing as long as no mean was by size."""
        # A mean of one needs no sum, and the server's tasks have no sizes.
        if self.grid is None or len(clients) < 2 or min(clients) < 0:
            return None
        self.latest = self.weigh_by_size(clients)
        return Expected(self.latest, self.grid)

    def weigh_by_size(self, clients: Collection[ClientId]) -> dict[ClientId, float]:
        """Weights as `Replies.checked_weights` gives them: scaled by a power of two that brings the
        sum below one."""
        sizes = {client: self.sizes.size(client) for client in sorted(clients)}
        exponent = math.frexp(float(sum(sizes.values())))[1]
        return {client: math.ldexp(float(size), -exponent) for client, size in sizes.items()}

    def learn(self, weights: Mapping[ClientId, float], grid: Grid) -> None:
        """Take note of a mean that was asked for."""
        if weights != self.latest:
            self.latest = self.weigh_by_size(weights)
        # A method with weights of its own is left alone until it asks for sizes again.
        self.grid = grid if weights == self.latest else None
