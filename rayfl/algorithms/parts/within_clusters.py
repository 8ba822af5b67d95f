"""Any method within clusters of clients: the host plays a round in each of them as if its clients
were all there are.

A host sees a `ClusterFleet`, whose clients are those of one cluster, and has a state for each
cluster. The rounds of all clusters are played side by side: what they map at the same time with the
same phase is one map, so that places are as busy as without clusters. With one cluster a host does,
bit by bit, what it does alone. docs/design/013-within-clusters.md says why it is made like this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.algorithms.parts.taking_turns import Ask, Raised, take_turns
from rayfl.errors import ConfigError, broken
from rayfl.protocol import (
    SERVER,
    Algorithm,
    ClientId,
    DataRef,
    Fleet,
    Model,
    NobodyLeft,
    Phase,
    Ref,
    Replies,
    Report,
    Served,
    State,
)

Inputs = Mapping[ClientId, Mapping[str, Any]]


@dataclass(frozen=True)
class WithinClusters:
    """A host, and who is in which cluster.

    Parameters
    ----------
    host
        The method that is played in every cluster.
    clusters
        The cluster of each client, numbered from 0.
    """

    host: Algorithm
    clusters: Mapping[ClientId, int]

    @property
    def count(self) -> int:
        """How many clusters there are."""
        return max(self.clusters.values()) + 1

    def init(self, fleet: Fleet, model: Ref) -> tuple[State, ...]:
        """The host's state in each cluster; all begin with the same weights."""

        def begin(_: int, view: Fleet) -> State:
            return self.host.init(view, model)

        return tuple(self._play(fleet, begin, range(self.count)))

    def round(self, states: Sequence[State], fleet: Fleet, t: int) -> tuple[State, ...]:
        """One round of every cluster that somebody was drawn from; the others stay as they are, and
        so does one all of whose clients diverged."""

        def play_round(m: int, view: Fleet) -> State | NobodyLeft:
            try:
                return self.host.round(states[m], view, t)
            except NobodyLeft as void:
                return void

        drawn = sorted({self.clusters[k] for k in fleet.sample(t)})
        after = dict(zip(drawn, self._play(fleet, play_round, drawn), strict=True))
        voids = [found for found in after.values() if isinstance(found, NobodyLeft)]
        if len(voids) == len(drawn):
            raise voids[0]
        kept = {m: found for m, found in after.items() if not isinstance(found, NobodyLeft)}
        return tuple(kept.get(m, state) for m, state in enumerate(states))

    def model(self, states: Sequence[State], fleet: Fleet, client: ClientId) -> Ref:
        """What the host has for a client of one of the clusters."""
        m = self.clusters[client]
        return self.host.model(states[m], self.view(fleet, m), client)

    def further_models(
        self, states: Sequence[State], fleet: Fleet, client: ClientId
    ) -> Mapping[str, Model]:
        """The host's further models for a client."""
        m = self.clusters[client]
        return self.host.further_models(states[m], self.view(fleet, m), client)

    def view(self, fleet: Fleet, m: int) -> ClusterFleet:
        """The fleet as cluster `m` sees it, for whoever plays no round."""

        def ask(wish: Any) -> Any:
            (answer,) = answer_wishes(fleet, [wish])
            if isinstance(answer, Raised):
                raise answer.error
            return answer

        return ClusterFleet(fleet, self, m, ask, Said())

    def _play(
        self, fleet: Fleet, play: Callable[[int, Fleet], Any], chosen: Sequence[int]
    ) -> list[Any]:
        """Play some clusters side by side."""
        said = Said()

        def play_one(m: int, ask: Ask) -> Any:
            return play(m, ClusterFleet(fleet, self, m, ask, said))

        played = take_turns([partial(play_one, m) for m in chosen], partial(answer_wishes, fleet))
        said.tell(fleet)
        return played


# -- what all clusters want at the same time -------------------------------------------------------


@dataclass(frozen=True)
class MapWish:
    """A map that a cluster waits for."""

    phase: Phase
    clients: Sequence[ClientId]
    each: Inputs
    shared: Mapping[str, Any]


def answer_wishes(fleet: Fleet, wishes: Sequence[Any]) -> list[Any]:
    """Carry out what clusters wait for: maps of one phase together, anything else one by one."""
    answers: list[Any] = [None] * len(wishes)
    maps: dict[Phase, list[int]] = {}
    for place, wish in enumerate(wishes):
        if isinstance(wish, MapWish):
            maps.setdefault(wish.phase, []).append(place)
        else:
            answers[place] = _try(wish)
    for places in maps.values():
        joint = [wishes[place] for place in places]
        got = _try(partial(_map_together, fleet, joint))
        for place in places:
            answers[place] = got if isinstance(got, Raised) else _share(got, wishes[place])
    return answers


def _try(wish: Callable[[], Any]) -> Any:
    try:
        return wish()
    except Exception as error:
        return Raised(error)


def _map_together(fleet: Fleet, wishes: Sequence[MapWish]) -> Replies:
    """One map; an input that is not the same everywhere goes to the clients of its cluster."""
    first = wishes[0]
    same = {
        name: value
        for name, value in first.shared.items()
        if all(name in wish.shared and wish.shared[name] is value for wish in wishes)
    }
    each: dict[ClientId, Mapping[str, Any]] = {}
    for wish in wishes:
        own = {name: value for name, value in wish.shared.items() if name not in same}
        for k in wish.clients:
            inputs = {**own, **wish.each.get(k, {})}
            if inputs:
                each[k] = inputs
    clients = [k for wish in wishes for k in wish.clients]
    return fleet.map(first.phase, clients, each=each, **same)


def _share(got: Replies, wish: MapWish) -> Replies | Raised:
    """One cluster's part of a map; it is void where none of its clients is left."""
    part = got.among(wish.clients)
    if wish.clients and not part:
        return Raised(NobodyLeft(f"every one of a cluster's {len(wish.clients)} updates diverged"))
    return part


# -- what a host sees ------------------------------------------------------------------------------


@dataclass
class Said:
    """What hosts said of their clusters in one round; told when all are over."""

    logged: dict[str, list[float]] = field(default_factory=dict)
    estimates: dict[str, dict[ClientId, float]] = field(default_factory=dict)
    answers: dict[str, dict[ClientId, NDArray[Any]]] = field(default_factory=dict)

    def tell(self, fleet: Fleet) -> None:
        """Measures as means over the clusters that logged them; estimates of all clients at
        once."""
        for name, values in self.logged.items():
            mean = values[0] if len(values) == 1 else float(np.mean(values))
            fleet.log(**{name: mean})
        for name, believed in self.estimates.items():
            fleet.estimate(name, believed)
        for held, labels in self.answers.items():
            fleet.answered(held, labels)


class ClusterFleet(Fleet):
    """A fleet that has the clients of one cluster, and a server of its own.

    Parameters
    ----------
    fleet
        All clients.
    within
        Who is in which cluster.
    number
        Of this cluster.
    ask
        Carries out what is done elsewhere.
    said
        Takes what the host says.
    """

    def __init__(
        self, fleet: Fleet, within: WithinClusters, number: int, ask: Ask, said: Said
    ) -> None:
        self.clients = [k for k in fleet.clients if within.clusters.get(k) == number]
        self.shape = fleet.shape
        self.classes = fleet.classes
        self.training = fleet.training
        share = len(self.clients) / max(len(fleet.clients), 1)
        self.cohort = max(round(fleet.cohort * share), 1)
        self.ask = ask
        self._fleet = fleet
        self._number = number
        self._count = within.count
        self._members = frozenset(self.clients)
        self._said = said

    # Every cluster has tasks of the server, and so states of the server, of its own; those of the
    # first one of one are the server's.

    def outer(self, k: ClientId) -> ClientId:
        """The id that the whole fleet knows a client, or a task of the cluster's server, by."""
        if k >= 0:
            if k not in self._members:
                rule = "a method within a cluster visits the clients of its cluster"
                raise ConfigError(broken(rule, f"client {k}", "Choose among fleet.clients."))
            return k
        return SERVER - ((SERVER - k) * self._count + self._number)

    def inner(self, k: ClientId) -> ClientId:
        """The id that the host knows it by."""
        return k if k >= 0 else SERVER - (SERVER - k - self._number) // self._count

    # -- maps --------------------------------------------------------------------------------------

    def map(
        self,
        phase: Phase,
        clients: Iterable[ClientId],
        each: Inputs | None = None,
        **shared: Any,
    ) -> Replies:
        chosen = [self.outer(k) for k in sorted(set(clients))]
        wish = MapWish(phase, chosen, self._outer_inputs(each), shared)
        return ClusterReplies(self, self.ask(wish))

    def chain(
        self,
        phase: Phase,
        clients: Sequence[ClientId],
        w: Ref,
        each: Inputs | None = None,
        **shared: Any,
    ) -> Replies:
        order = [self.outer(k) for k in clients]
        own = self._outer_inputs(each)
        got = self.ask(partial(self._fleet.chain, phase, order, w, own, **shared))
        return ClusterReplies(self, got)

    def serve(self, phase: Phase, **inputs: Any) -> Served:
        return _ServedInCluster(self.map(phase, [SERVER], **inputs))

    def combine(self, *terms: tuple[float, Ref]) -> Ref:
        found: Ref = self.ask(partial(self._fleet.combine, *terms))
        return found

    def initial(self, i: int = 0) -> Ref:
        found: Ref = self.ask(partial(self._fleet.initial, i))
        return found

    def put(self, value: Any) -> Ref:
        found: Ref = self.ask(partial(self._fleet.put, value))
        return found

    def get(self, ref: Ref) -> Any:
        return self.ask(partial(self._fleet.get, ref))

    def _outer_inputs(self, each: Inputs | None) -> Inputs:
        return {self.outer(k): inputs for k, inputs in (each or {}).items()}

    # -- who and what ------------------------------------------------------------------------------

    def sample(self, t: int, among: Iterable[ClientId] | None = None) -> list[ClientId]:
        """Those of the round's participants who are in this cluster; of `among`, as many as the
        cluster's share of a cohort."""
        drawn = self._fleet.sample(t, among)
        if among is None:
            return [k for k in drawn if k in self._members]
        if len(drawn) <= self.cohort:
            return drawn
        # A uniform part of a uniform draw is one.
        chosen = self.rng(t, "part of a draw").choice(len(drawn), self.cohort, replace=False)
        return sorted(drawn[i] for i in chosen.tolist())

    def size(self, owner: ClientId | str) -> int:
        return self._fleet.size(owner)

    def state(self, client: ClientId, key: str) -> Ref | None:
        return self._fleet.state(self.outer(client), key)

    def data(self, name: str) -> DataRef:
        return self._fleet.data(name)

    def rng(self, t: int, purpose: str) -> np.random.Generator:
        # The first cluster's are those of a host without clusters.
        return self._fleet.rng(t, f"{purpose}/{self._number}" if self._number else purpose)

    # -- what the host says ------------------------------------------------------------------------

    def log(self, **metrics: float) -> None:
        for name, value in metrics.items():
            self._said.logged.setdefault(name, []).append(value)

    def estimate(self, name: str, values: Mapping[ClientId, float]) -> None:
        self._said.estimates.setdefault(name, {}).update(values)

    def answered(self, held: str, labels: Mapping[ClientId, NDArray[Any]]) -> None:
        self._said.answers.setdefault(held, {}).update(labels)

    def leave(self, name: str, array: NDArray[Any]) -> None:
        """Of several clusters, each leaves its own, `NAME/CLUSTER`."""
        self._fleet.leave(name if self._count == 1 else f"{name}/{self._number}", array)


class ClusterReplies(Replies):
    """Replies of one cluster's clients and server."""

    def __init__(self, fleet: ClusterFleet, got: Replies) -> None:
        super().__init__({fleet.inner(k): got[k] for k in got})
        self.diverged = tuple(fleet.inner(k) for k in got.diverged)
        self._fleet = fleet
        self._got = got

    def __or__(self, other: Replies) -> Replies:
        assert isinstance(other, ClusterReplies)
        return ClusterReplies(self._fleet, self._got | other._got)

    def among(self, clients: Iterable[ClientId]) -> Replies:
        return ClusterReplies(self._fleet, self._got.among(map(self._fleet.outer, clients)))

    def ref(self, client: ClientId, key: str | None = None) -> Ref:
        found: Ref = self._fleet.ask(partial(self._got.ref, self._fleet.outer(client), key))
        return found

    def start(self, key: str | None = None) -> Ref:
        return self._got.start(key)

    def mean(self, weights: Mapping[ClientId, float], key: str | None = None) -> Ref:
        outer = {self._fleet.outer(k): weight for k, weight in weights.items()}
        found: Ref = self._fleet.ask(partial(self._got.mean, outer, key))
        return found

    def examine(
        self,
        phase: Phase,
        clients: Iterable[ClientId] | None = None,
        each: Inputs | None = None,
        **inputs: Any,
    ) -> dict[ClientId, Report]:
        fleet = self._fleet
        chosen = None if clients is None else [fleet.outer(k) for k in clients]
        own = {fleet.outer(k): more for k, more in (each or {}).items()}
        found = fleet.ask(partial(self._got.examine, phase, chosen, own, **inputs))
        return {fleet.inner(k): report for k, report in found.items()}

    @property
    def last(self) -> Ref:
        found: Ref = self._fleet.ask(lambda: self._got.last)
        return found


class _ServedInCluster(Served):
    """What the server's phase left for one cluster."""

    def __init__(self, got: Replies) -> None:
        super().__init__(got[SERVER], {})
        self._got = got

    def __getitem__(self, name: str) -> Ref:
        return self._got.ref(SERVER, name)


__all__ = ["ClusterFleet", "ClusterReplies", "WithinClusters", "answer_wishes"]
