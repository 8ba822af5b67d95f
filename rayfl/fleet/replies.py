"""The replies of maps, and what a fleet needs to know in order to reduce their updates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from rayfl.errors import ConfigError, PhaseError, broken
from rayfl.fleet.absurd import Norms
from rayfl.fleet.executor import NOTHING, Done, Task
from rayfl.fleet.sums.exact_sums import Grid
from rayfl.fleet.sums.shared_memory import FLOAT_BYTES
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import ClientId, Phase, Ref, Replies, Report

if TYPE_CHECKING:
    from rayfl.fleet.base import BaseFleet


FEW = 5
"""A message names no more clients."""
DIVERGED = "its update is not finite"
LEFT_OUT = "it was left out of this round"
ABSURD = "its update was absurd, and dropped"


@dataclass(frozen=True, eq=False)
class FinishedMap:
    """A map that is over: what it was made of, which is how a lost update is made again, and what
    came of those clients whose updates are finite. With the last reference to it its updates go."""

    number: int
    phase: Phase
    tasks: Mapping[ClientId, Task]
    shared: Mapping[str, Any]
    done: Mapping[ClientId, Done]
    chain: bool = False
    clips: Mapping[ClientId, Norms] = field(default_factory=dict)
    """How large the vectors of some updates are at most."""


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
        """The size of one update, and so of the mean."""
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


def find_reasons(
    tasks: Iterable[ClientId], done: Mapping[ClientId, Done], alive: Mapping[ClientId, Done]
) -> dict[ClientId, str]:
    """Why each of those is not among the replies who is not."""
    gone = {}
    for client in sorted(set(tasks) - set(alive)):
        outcome = done.get(client)
        if outcome is None or outcome.unfinished is not None:
            gone[client] = LEFT_OUT
        else:
            gone[client] = ABSURD if outcome.finite else DIVERGED
    return gone


def describe_void(clients: int, gone: Mapping[ClientId, str]) -> str:
    """Why a map of so many clients has no replies."""
    reasons = set(gone.values())
    if reasons == {DIVERGED}:
        return f"every one of {clients} updates diverged"
    return f"nobody is left of {clients} clients ({'; '.join(sorted(reasons))})"


def refuse_odd_sizes(key: str, sizes: Mapping[ClientId, int]) -> NoReturn:
    """Name whose vectors are not as long as most."""
    (usual, _), *_ = Counter(sizes.values()).most_common(1)
    odd = {client: size for client, size in sizes.items() if size != usual}
    shown = [f"{odd[client] // FLOAT_BYTES} of client {client}" for client in sorted(odd)[:FEW]]
    rule = f"updates '{key}' of one mean are equally long, {usual // FLOAT_BYTES} numbers mostly"
    remedy = "Have the phase return all of the weights, whatever the client's data are."
    raise PhaseError(broken(rule, ", ".join(shown), remedy))


class FleetReplies(Replies):
    """Replies of one map, or of several joined ones, over any fleet."""

    def __init__(
        self,
        fleet: BaseFleet,
        maps: Mapping[ClientId, FinishedMap],
        gone: Mapping[ClientId, str],
    ) -> None:
        super().__init__({client: found.done[client].report for client, found in maps.items()})
        self._fleet = fleet
        self._maps = maps
        self._gone = gone
        if gone:
            self.diverged = tuple(sorted(k for k, why in gone.items() if why == DIVERGED))

    def __or__(self, other: Replies) -> Replies:
        assert isinstance(other, FleetReplies)
        both = sorted(set(self) & set(other))
        if both:
            rule = "maps are joined over different clients"
            raise ConfigError(broken(rule, f"client {both[0]} in both"))
        maps = {**self._maps, **other._maps}
        return FleetReplies(self._fleet, maps, {**self._gone, **other._gone})

    def among(self, clients: Iterable[ClientId]) -> Replies:
        chosen = set(clients)
        maps = {client: found for client, found in self._maps.items() if client in chosen}
        gone = {client: why for client, why in self._gone.items() if client in chosen}
        return FleetReplies(self._fleet, maps, gone)

    def ref(self, client: ClientId, key: str | None = None) -> Ref:
        return self.mean({client: 1.0}, key)

    def refs(self, client: ClientId) -> dict[str, Ref]:
        """References to all updates of one client, by name."""
        return {name: self.ref(client, name) for name in self._done(client).update_bytes}

    def start(self, key: str | None = None) -> Ref:
        name = self._key(key, self)
        found = {client: self._find_input(client, name) for client in self}
        refs = [value for value in found.values() if isinstance(value, Ref)]
        # By identity: a reference's handle may be an array.
        known = {(id(ref.handle), ref.key) for ref in refs}
        if len(refs) < len(found) or len(known) != 1:
            rule = f"every client began with one and the same model, as the input '{name}'"
            got = f"{len(known)} models, for {len(refs)} of {len(found)} clients"
            raise ConfigError(broken(rule, got, f"Give the map a reference as {name}=..."))
        return refs[0]

    def _find_input(self, client: ClientId, name: str) -> Any:
        finished = self._maps[client]
        return finished.tasks[client].inputs.get(name, finished.shared.get(name))

    def mean(self, weights: Mapping[ClientId, float], key: str | None = None) -> Ref:
        strangers = sorted(set(weights) - set(self))
        if strangers:
            remedy = self._reason_of_absence(strangers[0])
            raise ConfigError(
                broken("mean takes clients that replied", f"client {strangers[0]}", remedy)
            )
        chosen = check_weights(weights)
        name = self._key(key, chosen)
        by_update = {self._id(client): weight for client, weight in chosen.items()}
        return self._fleet.reduce(Mean(name, by_update, self._numbered(by_update)))

    def _reason_of_absence(self, client: ClientId) -> str:
        if client in self._gone:
            why = self._gone[client]
            return f"{why[0].upper()}{why[1:]}, and so it is not in the replies."
        return "Take the weights of those that are in the replies, or join maps: (a | b).mean(...)."

    def _key(self, key: str | None, clients: Iterable[ClientId]) -> str:
        """Which update is meant, found in every one of these clients'."""
        chosen = list(clients)
        if key is None:
            # Of joined maps, others may have left updates of other names.
            names = list(self._done(chosen[0]).update_bytes)
            key = "w" if "w" in names or len(names) != 1 else names[0]
        sizes: dict[ClientId, int] = {}
        for client in chosen:
            left = self._done(client).update_bytes
            if key not in left:
                known = ", ".join(left) or "no update"
                rule = f"client {client} left {known}; a mean says which is meant"
                raise ConfigError(broken(rule, f"'{key}'", "Name the update: mean(weights, key)."))
            sizes[client] = left[key]
        if len(set(sizes.values())) > 1:
            refuse_odd_sizes(key, sizes)
        return key

    def _done(self, client: ClientId) -> Done:
        return self._maps[client].done[client]

    def _id(self, client: ClientId) -> UpdateId:
        return UpdateId(self._maps[client].number, client)

    def _numbered(self, which: Iterable[UpdateId]) -> dict[int, FinishedMap]:
        """The maps that these updates are of."""
        return {update.number: self._maps[update.client] for update in which}

    def examine(
        self,
        phase: Phase,
        clients: Iterable[ClientId] | None = None,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **inputs: Any,
    ) -> dict[ClientId, Report]:
        everybody = [client for client in self if self._done(client).update_bytes]
        chosen = everybody if clients is None else sorted(set(clients))
        own = each or {}
        tasks = {}
        for client in chosen:
            if client not in self:
                raise ConfigError(broken("clients that replied are examined", f"client {client}"))
            if not self._done(client).update_bytes:
                rule = "updates are examined"
                raise ConfigError(broken(rule, f"client {client}, which left none"))
            inputs_of = dict(own.get(client, NOTHING))
            visit = self._fleet.count_visit(client, examined=True)
            task = Task(client, self._fleet.round, inputs_of, NOTHING, visit, examined=True)
            tasks[self._id(client)] = task
        done = self._fleet.examine(phase, tasks, inputs, self._numbered(tasks))
        outcomes = sorted(done, key=lambda outcome: outcome.client)
        self._fleet.refuse_errors(outcomes)
        self._fleet.account_server(outcomes)
        return {outcome.client: outcome.report for outcome in outcomes}

    @property
    def last(self) -> Ref:
        if not self._maps:
            raise ConfigError(broken("`last` is asked of a chain", "one without a client"))
        finished = next(iter(self._maps.values()))
        order = [client for client in finished.tasks if client in self]
        if not finished.chain:
            raise ConfigError(broken("`last` is asked of a chain", "the replies of a map"))
        return self.ref(order[-1])


def check_weights(weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """The weights by ascending id, without zeros; refused when they cannot make a mean.

    Parameters
    ----------
    weights
        Of one mean, by client.
    """
    chosen = {client: float(weights[client]) for client in sorted(weights)}
    for client, weight in chosen.items():
        if not math.isfinite(weight) or weight < 0:
            rule = "weights of a mean are finite and not negative"
            raise ConfigError(broken(rule, f"{weight} (client {client})"))
    total = sum(chosen.values())
    if not 0 < total < math.inf:
        rule = f"weights of a mean have a {'finite' if total else 'positive'} sum"
        raise ConfigError(broken(rule, f"{total} over {len(chosen)}"))
    # Scaled by a power of two, which is exact, so that no product with a weight leaves the range of
    # float64.
    exponent = math.frexp(total)[1]
    return {
        client: math.ldexp(weight, -exponent) for client, weight in chosen.items() if weight > 0
    }
