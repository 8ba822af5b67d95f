"""The coordinator's side of keepers: who keeps what, which calls are out, and the post that goes to
and fro."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayfl.fleet.executor import Task
from rayfl.fleet.on_ray.call_values import Batch, emptied
from rayfl.fleet.on_ray.keeper_process import (
    Fetching,
    Handle,
    Keeper,
    KeeperDied,
    Key,
    Order,
    Post,
    Tally,
    Trouble,
)
from rayfl.fleet.on_ray.socket_calls import LineError, first_of, taken
from rayfl.fleet.sums.early_sums import Answer, Expected
from rayfl.protocol import ClientId, Phase


class PlaceDied(ConnectionError):
    """The actor behind a keeper died; the keeper lives."""


class Kept:
    """The handle of a state that a keeper owns. When the last reference to it goes, the keeper may
    let go as well."""

    __slots__ = ("__weakref__", "gone", "keeper", "key")

    def __init__(self, keeper: int, key: Key, gone: list[Key]) -> None:
        self.keeper, self.key, self.gone = keeper, key, gone

    def __del__(self) -> None:
        # This may run in any thread, in the middle of anything: an append needs no lock.
        self.gone.append(self.key)


class Ticket:
    """A call that a keeper makes, and what came of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: Any = None

    def get(self) -> Any:
        """The answer. That the actor is dead shows here, as it does in `ray.get`."""
        if not isinstance(self.answer, Trouble):
            return self.answer
        raised = {"died": PlaceDied, "lost": KeeperDied, "failed": LineError}
        raise raised[self.answer.kind](self.answer.why)


@dataclass
class Outbox:
    """What one keeper is to be sent, and how many of its answers are still to come."""

    orders: list[Order | Fetching] = field(default_factory=list)
    common: dict[bytes, int] = field(default_factory=dict)
    shared: dict[Any, int] = field(default_factory=dict)
    gone: list[Key] = field(default_factory=list)
    out: int = 0

    def handle(self, value: Any) -> Handle:
        """A value's name in the post; a reference travels beside it, once for all calls."""
        return (
            (value.keeper, value.key)
            if type(value) is Kept
            else self.shared.setdefault(value, len(self.shared))
        )

    def emptied(self) -> tuple[bytes, list[Any]]:
        """The post and the references beside it. As bytes, which Ray does not look into: it would
        take longer over thousands of handles than everything else."""
        # Handles that go in another thread meanwhile are for the next time.
        gone = self.gone[: len(self.gone)]
        del self.gone[: len(gone)]
        post, shared = pickle.dumps(Post(self.orders, list(self.common), gone)), list(self.shared)
        self.orders, self.common, self.shared = [], {}, {}
        return post, shared


class Keepers:
    """All of a fleet's keepers; of none, it is a way round nothing."""

    def __init__(self, number: int) -> None:
        remote = ray.remote(Keeper)
        self.actors = [
            remote.options(num_cpus=0, max_restarts=0, scheduling_strategy=where).remote(i)
            for i, where in enumerate(spread(number))
        ]
        self.boxes = [Outbox() for _ in self.actors]
        self.exchanges: dict[Any, int] = {}
        # Whoever drops a ticket has stopped waiting.
        self.tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self.numbers = count()
        self.rest()
        if number > 1:
            self._told([actor.meet.remote(self.actors) for actor in self.actors])

    def __bool__(self) -> bool:
        return bool(self.actors)

    def engage(self, actors: Mapping[int, Any]) -> None:
        """Make actors known to the keepers of their places."""
        if self:
            self._told(
                [
                    self.actors[self.of(place)].engage.remote(place, actor)
                    for place, actor in actors.items()
                ]
            )

    def of(self, place: int) -> int:
        """Which keeper a place belongs to."""
        return place % len(self.actors)

    # -- calls -------------------------------------------------------------------------------------------------

    def run(
        self,
        place: int,
        number: int,
        phase: Phase,
        tasks: Sequence[Task],
        shared: Mapping[str, Any],
        freed: Sequence[int],
        part: Expected | None,
    ) -> Ticket:
        """Have a place's actor called; `send` lets it go."""
        box = self.boxes[self.of(place)]
        common, known = self._common(phase, shared)
        values = dict(known)
        batch = Batch.packed(tasks, values)
        # Only a method's own values can be of classes that plain pickle, twice as fast, would not
        # carry.
        dumps = ray.cloudpickle.dumps if batch.inputs or batch.state else pickle.dumps
        own = dumps((number, batch, freed, part))
        ticket = self._ticket(box)
        handles = [box.handle(value) for value in values]
        at = box.common.setdefault(common, len(box.common))
        box.orders.append(Order(ticket.number, place, number, at, own, handles))
        return ticket

    def collect(self, place: int, number: int, clients: Sequence[ClientId]) -> list[Any]:
        """Have the states collected of a call that went another way: what tells that they are, and
        their handles."""
        keeper = self.of(place)
        ticket = self._ticket(self.boxes[keeper])
        self.boxes[keeper].orders.append(Fetching(ticket.number, place, number, clients))
        return [ticket, *self._handles(keeper, ticket.number, clients).values()]

    def send(self) -> None:
        """Let the post go; and somebody wait for answers at every keeper that owes any."""
        waited_for = set(self.exchanges.values())
        for keeper, box in enumerate(self.boxes):
            if box.orders or (box.out and keeper not in waited_for):
                post, shared = box.emptied()
                self.exchanges[
                    self.actors[keeper].exchange.remote(post, *([shared] if shared else ()))
                ] = keeper

    def ready(self, references: Sequence[Any]) -> list[Any]:
        """The next calls to take an answer from: the first, or all that keepers have answered."""
        if not self:
            return [first_of(references)]
        while True:
            self.send()
            if found := [
                reference
                for reference in references
                if type(reference) is Ticket and reference.answer
            ]:
                return found
            others = [reference for reference in references if type(reference) is not Ticket]
            first = first_of([*others, *self.exchanges])
            if first not in self.exchanges:
                return [first]
            self._hear(first)

    def taken(self, reference: Any) -> Any:
        """What a call answered, by whichever way it went."""
        return reference.get() if type(reference) is Ticket else taken(reference)

    def rest(self) -> None:
        """Nothing of a map that is over is held on to."""
        self.latest: tuple[Any, Any, bytes, dict[Any, int]] = (None, None, b"", {})

    def _common(self, phase: Phase, shared: Mapping[str, Any]) -> tuple[bytes, dict[Any, int]]:
        """What all calls of a map share, packed for the first of them."""
        # By identity: to compare large inputs takes as long as to pack them.
        if self.latest[0] is not phase or self.latest[1] is not shared:
            values: dict[Any, int] = {}
            inputs = emptied(shared, values)
            self.latest = phase, shared, ray.cloudpickle.dumps((phase, inputs)), values
        return self.latest[2:]

    def _ticket(self, box: Outbox) -> Ticket:
        box.out += 1
        ticket = Ticket(next(self.numbers))
        self.tickets[ticket.number] = ticket
        return ticket

    def _hear(self, exchange: Any) -> None:
        """Take what a keeper sends."""
        keeper = self.exchanges.pop(exchange)
        (packed,) = self._told([exchange])
        for number, found in pickle.loads(packed):
            self.boxes[keeper].out -= 1
            answer = found if isinstance(found, Trouble) else self._answer(keeper, number, found)
            # Nobody waits any more for a call of a map that was broken off; its states go with its
            # answer.
            if (ticket := self.tickets.pop(number, None)) is not None:
                ticket.answer = answer

    def _answer(self, keeper: int, number: int, packed: bytes) -> Answer:
        if not packed:
            return Answer([])
        answer: Answer = pickle.loads(packed)
        leaving = answer.elsewhere
        return replace(answer, kept=self._handles(keeper, number, leaving)) if leaving else answer

    def _handles(
        self, keeper: int, ticket: int, clients: Sequence[ClientId]
    ) -> dict[ClientId, Kept]:
        gone = self.boxes[keeper].gone
        return {client: Kept(keeper, (ticket, client), gone) for client in clients}

    # -- states ------------------------------------------------------------------------------------------------

    def direct(self, values: Collection[Any]) -> list[Any]:
        """References instead of handles, for calls that go to actors directly."""
        return [self._lent(value) if type(value) is Kept else value for value in values]

    def get(self, handle: Any) -> Any:
        """What a handle or a reference stands for."""
        return ray.get(self.direct([handle])[0])

    def _lent(self, kept: Kept) -> Any:
        ((state,),) = self._told([self.actors[kept.keeper].lend.remote([kept.key])])
        return state

    # -- processes ---------------------------------------------------------------------------------------------

    def tallies(self) -> list[Tally]:
        """What each keeper has, and what it took."""
        return self._told([actor.tally.remote() for actor in self.actors])

    def dismiss(self) -> None:
        for actor in self.actors:
            ray.kill(actor)

    def _told(self, references: list[Any]) -> list[Any]:
        """What keepers answer."""
        try:
            return list(ray.get(references))
        except (RayActorError, ActorUnschedulableError) as error:
            raise KeeperDied(str(error)) from error


def spread(number: int) -> list[Any]:
    """Over the nodes that have processors. What belongs to a trial of a sweep stays in its
    placement group, and ends with it. Elsewhere each is bound to its node: who asks for no
    processor is put on any one by all gentler rules."""
    if not number or ray.util.get_current_placement_group() is not None:
        return [None] * number
    nodes = sorted(
        node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
    )
    return [
        NodeAffinitySchedulingStrategy(nodes[i % len(nodes)], soft=False) for i in range(number)
    ]
