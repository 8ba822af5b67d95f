"""A table of client states in shards, each with a process that owns its objects.

A Ray object belongs to whoever made the call that returned it, and owning one costs its owner more than a tenth of a
millisecond. Where hundreds of actors leave large states that would be all that the coordinator does. So calls to a
place go through its keeper, an actor beside the pool: it makes the call, collects what large states are left, and hands
on the answer. The coordinator's table names a state (`Kept`); whoever wants it gets it from keeper to actor.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError

from rayfl.fleet.expected import Answer
from rayfl.fleet.ray_line import DEATHS, taken
from rayfl.fleet.seam import ClientId

Key = tuple[int, ClientId]
"""A state's name at its keeper: the ticket of the call that left it, which no other call ever has, and the client."""

MOST_CALLS = 10_000  # at a time; keepers that wait for each other's answers must not run out of them


class KeeperDied(ObjectLostError):  # type: ignore[misc]
    """The states of a shard are only in the last checkpoint: the same case as a node that died with them."""

    def __init__(self, why: str = "") -> None:
        Exception.__init__(self, f"a keeper of client states died: {why}")

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return KeeperDied, (str(self),)


class PlaceDied(ConnectionError):
    """The actor behind a keeper died; the keeper lives."""


@dataclass(frozen=True)
class Died:
    """A keeper's answer when the actor that it called is dead. An exception would look like the keeper's own."""

    why: str


@dataclass(frozen=True)
class Tally:
    """Which process a keeper is, how many states it holds, and the processor seconds that it has had."""

    pid: int
    states: int
    seconds: float


class Kept:
    """The handle of a state that a keeper owns. When the last reference to it goes, the keeper may let go as well."""

    __slots__ = ("__weakref__", "gone", "keeper", "key")

    def __init__(self, keeper: int, key: Key, gone: list[Key]) -> None:
        self.keeper, self.key, self.gone = keeper, key, gone

    def __del__(self) -> None:
        self.gone.append(self.key)


Handle = tuple[int, Key] | None
"""What a call wants: a keeper's state, or the next of the references that travel beside it."""


class Keeper:
    """One shard: the actors that are called through it, and the states that they left."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.peers: Sequence[Any] = []
        self.actors: dict[int, Any] = {}
        self.kept: dict[Key, Any] = {}

    async def meet(self, peers: Sequence[Any]) -> None:
        """Know the other keepers, by number."""
        self.peers = peers

    async def engage(self, place: int, actor: Any) -> None:
        """From now on this actor is called for a place."""
        self.actors[place] = actor

    async def run(self, order: bytes, shared: Sequence[Any] = ()) -> bytes | Died:
        """What an actor answers to a message. Its large states have been collected by then."""
        ticket, place, number, message, handles, gone = pickle.loads(order)
        self._drop(gone)
        values = await self._values(handles, shared)
        try:
            left, answer = await self.actors[place].answer.remote(message, *values)
            if left:
                await self._collect(ticket, place, number, left)
        except DEATHS as error:
            return Died(str(error))
        found: bytes = answer
        return found

    async def collect(
        self, ticket: int, place: int, number: int, clients: Sequence[ClientId], gone: Collection[Key]
    ) -> bool | Died:
        """Take over the large states of a call that did not come this way."""
        self._drop(gone)
        try:
            await self._collect(ticket, place, number, clients)
        except DEATHS as error:
            return Died(str(error))
        return True

    async def lend(self, keys: Sequence[Key]) -> list[Any]:
        """The references of some states."""
        return [self.kept[key] for key in keys]

    async def tally(self) -> Tally:
        """What this keeper has, and what it took."""
        return Tally(os.getpid(), len(self.kept), time.process_time())

    async def _collect(self, ticket: int, place: int, number: int, clients: Sequence[ClientId]) -> None:
        method = self.actors[place].collect.options(num_returns=1 + len(clients))
        first, *states = method.remote(number, clients)
        # Only what the actor has handed over outlives it.
        await first
        self.kept.update(((ticket, client), state) for client, state in zip(clients, states, strict=True))

    async def _values(self, handles: Sequence[Handle], shared: Sequence[Any]) -> list[Any]:
        """References for an actor to be called with; Ray fetches what they refer to before the call begins."""
        wanted: dict[int, list[Key]] = defaultdict(list)
        for handle in handles:
            if handle is not None:
                wanted[handle[0]].append(handle[1])
        found = await asyncio.gather(*map(self._borrow, wanted, wanted.values()))
        lent = {keeper: iter(states) for keeper, states in zip(wanted, found, strict=True)}
        beside = iter(shared)
        return [next(beside) if handle is None else next(lent[handle[0]]) for handle in handles]

    async def _borrow(self, keeper: int, keys: Sequence[Key]) -> list[Any]:
        if keeper == self.number:
            return await self.lend(keys)
        try:
            states: list[Any] = await self.peers[keeper].lend.remote(keys)
        except RayActorError as error:
            raise KeeperDied(str(error)) from error
        return states

    def _drop(self, gone: Collection[Key]) -> None:
        for key in gone:
            # One whose actor died while it was collected was never here.
            self.kept.pop(key, None)


class Keepers:
    """The coordinator's side: who keeps what, and which calls are out. Without a keeper it is a way round nothing."""

    def __init__(self, number: int) -> None:
        remote = ray.remote(Keeper).options(
            num_cpus=0, max_concurrency=MOST_CALLS, max_restarts=0, scheduling_strategy=spread()
        )
        self.actors = [remote.remote(i) for i in range(number)]
        self.gone: list[list[Key]] = [[] for _ in self.actors]
        self.out: dict[Any, tuple[int, int]] = {}
        self.tickets = count()
        if number > 1:
            self._told([actor.meet.remote(self.actors) for actor in self.actors])

    def __bool__(self) -> bool:
        return bool(self.actors)

    def engage(self, actors: Mapping[int, Any]) -> None:
        """Make actors known to the keepers of their places."""
        if self:
            self._told([self._of(place).engage.remote(place, actor) for place, actor in actors.items()])

    def run(self, place: int, number: int, arguments: Sequence[Any], values: Collection[Any]) -> Any:
        """Call a place's actor through its keeper; what to take the answer from."""
        ticket = next(self.tickets)
        handles = [(value.keeper, value.key) if type(value) is Kept else None for value in values]
        shared = [value for value in values if type(value) is not Kept]
        # As bytes, which Ray does not look into; it would take longer over thousands of handles than all the rest.
        order = pickle.dumps((ticket, place, number, ray.cloudpickle.dumps(arguments), handles, self._gone(place)))
        reference = self._of(place).run.remote(order, *([shared] if shared else ()))
        self.out[reference] = place % len(self.actors), ticket
        return reference

    def collect(self, place: int, number: int, clients: Sequence[ClientId]) -> list[Any]:
        """Have the states collected of a call that went another way: what tells that they are, and their handles."""
        ticket = next(self.tickets)
        reference = self._of(place).collect.remote(ticket, place, number, clients, self._gone(place))
        self.out[reference] = place % len(self.actors), ticket
        return [reference, *self._handles(place % len(self.actors), ticket, clients).values()]

    def taken(self, reference: Any) -> Any:
        """What a call answered, by whichever way it went."""
        if reference not in self.out:
            return taken(reference)
        keeper, ticket = self.out.pop(reference)
        (found,) = self._told([reference])
        if isinstance(found, Died):
            raise PlaceDied(found.why)
        if found is True:
            return found
        answer: Answer = pickle.loads(found)
        return replace(answer, kept=self._handles(keeper, ticket, answer.elsewhere))

    def direct(self, values: Collection[Any]) -> list[Any]:
        """References instead of handles, for calls that go to actors directly."""
        return [self._lent(value) if isinstance(value, Kept) else value for value in values]

    def get(self, handle: Any) -> Any:
        """What a handle or a reference stands for."""
        return ray.get(self.direct([handle])[0])

    def tallies(self) -> list[Tally]:
        """What each keeper has, and what it took."""
        return self._told([actor.tally.remote() for actor in self.actors])

    def dismiss(self) -> None:
        for actor in self.actors:
            ray.kill(actor)

    def _of(self, place: int) -> Any:
        return self.actors[place % len(self.actors)]

    def _lent(self, kept: Kept) -> Any:
        ((state,),) = self._told([self.actors[kept.keeper].lend.remote([kept.key])])
        return state

    def _handles(self, keeper: int, ticket: int, clients: Sequence[ClientId]) -> dict[ClientId, Kept]:
        return {client: Kept(keeper, (ticket, client), self.gone[keeper]) for client in clients}

    def _gone(self, place: int) -> list[Key]:
        """What the keeper of a place may drop. Handles that go in another thread meanwhile are for the next call."""
        gone = self.gone[place % len(self.actors)]
        known = gone[: len(gone)]
        del gone[: len(known)]
        return known

    def _told(self, references: list[Any]) -> list[Any]:
        """What keepers answer."""
        try:
            return list(ray.get(references))
        except RayActorError as error:
            raise KeeperDied(str(error)) from error


def spread() -> Any:
    """Over the nodes; but what belongs to a trial of a sweep stays in its placement group, and ends with it."""
    return "SPREAD" if ray.util.get_current_placement_group() is None else None
