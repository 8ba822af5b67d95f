"""What a map leaves behind: the recipe to make its updates again, and means of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rayfl.errors import ConfigError, broken
from rayfl.fleet.executor import Done, Task
from rayfl.fleet.sums.exact_sums import Grid
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import ClientId, Phase, Ref, Replies, Report

if TYPE_CHECKING:
    from rayfl.fleet.base import BaseFleet


@dataclass(frozen=True, eq=False)
class FinishedMap:
    """A map that is over: what it was made of, which is how a lost update is made again, and what
    came of those clients whose updates are finite. With the last reference to it its updates go."""

    number: int
    phase: Phase
    tasks: Mapping[ClientId, Task]
    shared: Mapping[str, Any]
    done: Mapping[ClientId, Done]


@dataclass(frozen=True, eq=False)
class Mean:
    """One weighted mean of updates, of one or several maps. The weights are positive, of a finite
    sum."""

    key: str
    weights: Mapping[UpdateId, float]
    maps: Mapping[int, FinishedMap]

    @cached_property
    def grid(self) -> Grid:
        """On which the sum is exact, by the largest value of every update."""
        bound = sum(
            weight * self.maps[number].done[client].peaks[self.key]
            for (number, client), weight in self.weights.items()
        )
        return Grid.bounded(bound, len(self.weights))

    @cached_property
    def nbytes(self) -> int:
        number, client = next(iter(self.weights))
        return self.maps[number].done[client].update_bytes[self.key]

    @cached_property
    def total(self) -> float:
        """The sum of the weights."""
        return sum(self.weights.values())

    @property
    def lone(self) -> UpdateId | None:
        """The update that this mean is, bit for bit, if it is of one."""
        return next(iter(self.weights)) if len(self.weights) == 1 else None

    @property
    def map_number(self) -> int | None:
        """The map that all updates are of; None if they are of several."""
        return next(iter(self.maps)) if len(self.maps) == 1 else None


class HeldReplies(Replies):
    """The reports of one map, or of several with no client in common, whose updates lie at their
    places."""

    def __init__(self, fleet: BaseFleet, *maps: FinishedMap) -> None:
        self._fleet, self._maps = fleet, maps
        reports: dict[ClientId, Report] = {}
        for finished in maps:
            if twice := reports.keys() & finished.done.keys():
                rule = "replies of several maps have no client in common"
                raise ConfigError(broken(rule, f"client {min(twice)} in two of them"))
            reports |= {client: outcome.report for client, outcome in finished.done.items()}
        super().__init__(reports)

    def __or__(self, others: HeldReplies) -> HeldReplies:
        """One mean over both."""
        both = HeldReplies(self._fleet, *self._maps, *others._maps)
        both.diverged = self.diverged + others.diverged
        return both

    def mean(self, weights: Mapping[ClientId, float], key: str = "w") -> Ref:
        chosen = self.checked_weights(weights)
        shares: dict[UpdateId, float] = {}
        for finished in self._maps:
            for client, weight in chosen.items():
                if client in finished.done:
                    shares[UpdateId(finished.number, client)] = weight
        numbers = {number for number, _ in shares}
        maps = {made.number: made for made in self._maps if made.number in numbers}
        return self._fleet.reduce(Mean(key, shares, maps))

    def ref(self, client: ClientId, key: str = "w") -> Ref:
        """One client's update: the mean of one is that one, bit for bit."""
        return self.mean({client: 1.0}, key)

    def examine(self, phase: Phase, **inputs: Any) -> dict[ClientId, Report]:
        # Negative ids are the server's: it draws from its own streams, one for every update.
        fleet = self._fleet
        tasks = {
            UpdateId(finished.number, client): Task(-1 - client, fleet.round, {}, {})
            for finished in self._maps
            for client in finished.done
        }
        maps = {finished.number: finished for finished in self._maps}
        done = fleet.examine(phase, tasks, inputs, maps)
        outcomes = sorted(done, key=lambda outcome: outcome.client)
        fleet.refuse_errors(outcomes)
        fleet.account_server(outcomes)
        return {outcome.client: outcome.report for outcome in outcomes}
