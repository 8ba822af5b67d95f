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
from typing import Any, Protocol

from rayfl.fleet.executor import Done
from rayfl.fleet.sums.exact_sums import Grid, Partial
from rayfl.fleet.sums.shared_memory import Page
from rayfl.protocol import ClientId


@dataclass(frozen=True)
class Expected:
    """The mean that is expected of some clients."""

    weights: dict[ClientId, float]
    grid: Grid

    def part(self, clients: Collection[ClientId]) -> Expected:
        """The share of some of them."""
        return Expected({client: self.weights[client] for client in clients}, self.grid)


@dataclass(frozen=True)
class Answer:
    """What a call of an actor brings back: outcomes, their sum where one was expected, small
    states, and pages."""

    done: list[Done]
    sum: Partial | None = None
    states: Mapping[ClientId, bytes] = field(default_factory=dict)
    pages: Mapping[ClientId, Mapping[str, Page]] = field(default_factory=dict)
    """Where large updates lie for all to see, as far as they were made there."""
    kept: Mapping[ClientId, Any] = field(default_factory=dict)
    """Handles of the large states, where a keeper has collected them."""

    @property
    def elsewhere(self) -> list[ClientId]:
        """Clients whose state is still at the actor."""
        known = {*self.states, *self.kept}
        return [done.client for done in self.done if done.state_bytes and done.client not in known]


@dataclass(frozen=True)
class Early:
    """The sums that the calls of one map made on an expectation."""

    expected: Expected | None
    answers: list[Answer] = field(default_factory=list)

    def sums(self, weights: Mapping[ClientId, float], grid: Grid) -> list[Partial] | None:
        """All of them, if they are just those of this mean."""
        if self.expected is None or self.expected.grid != grid or self.expected.weights != weights:
            return None
        # One actor without a sum (an update of its has diverged, say), and all are asked for
        # theirs.
        made = [answer.sum for answer in self.answers if answer.sum is not None]
        return made if len(made) == len(self.answers) else None


class Sized(Protocol):
    """What is asked about clients."""

    def size(self, client: ClientId) -> int: ...


class Expectation:
    """Expects the next mean to be by size and on the grid of the last one, once one was."""

    def __init__(self, sizes: Sized) -> None:
        self.sizes = sizes
        self.grid: Grid | None = None
        self.latest: dict[ClientId, float] = {}

    def of(self, clients: Collection[ClientId]) -> Expected | None:
        """What is expected of a map over these clients; nothing as long as no mean was by size."""
        # A mean of one needs no sum, and the server's tasks have no sizes.
        if self.grid is None or len(clients) < 2 or min(clients) < 0:
            return None
        self.latest = self.by_size(clients)
        return Expected(self.latest, self.grid)

    def by_size(self, clients: Collection[ClientId]) -> dict[ClientId, float]:
        """Weights as `Replies.checked_weights` gives them: scaled by a power of two that brings the
        sum below one."""
        sizes = {client: self.sizes.size(client) for client in sorted(clients)}
        exponent = math.frexp(float(sum(sizes.values())))[1]
        return {client: math.ldexp(float(size), -exponent) for client, size in sizes.items()}

    def learn(self, weights: Mapping[ClientId, float], grid: Grid) -> None:
        """Take note of a mean that was asked for."""
        if weights != self.latest:
            self.latest = self.by_size(weights)
        # A method with weights of its own is left alone until it asks for sizes again.
        self.grid = grid if weights == self.latest else None
