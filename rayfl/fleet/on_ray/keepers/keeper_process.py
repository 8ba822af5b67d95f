"""A table of client states in shards, each with a process that owns its objects.

A Ray object belongs to whoever made the call that returned it, and owning one costs its owner more
than a tenth of a millisecond. Where hundreds of actors leave large states that would be all that
the coordinator does. So calls to a place go through its keeper, an actor beside the pool: it makes
the call, collects what large states are left, and hands on the answer. The coordinator's table
names a state (`Kept`); whoever wants it gets it from keeper to actor.

The coordinator exchanges post with a keeper: the orders for all of its places one way, all answers
that there are the other way, in one call. The more there is to do, the more goes into each."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
import traceback
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import ObjectLostError, RayActorError

from rayfl.fleet.on_ray.ray_calls import DEATHS
from rayfl.fleet.on_ray.transport import PlaceLost
from rayfl.protocol import ClientId

StateKey = tuple[int, ClientId]
"""A state's name at its keeper: the ticket of the call that left it, which no other call ever has,
and the client."""

PostedHandle = int | tuple[int, StateKey]
"""What a call wants: one of the references that travel beside the post, or a keeper's state."""


class KeeperDied(PlaceLost):
    """The states of a shard are only in the last checkpoint: the same case as a node that died with
    them."""

    def __str__(self) -> str:
        return f"a keeper of client states died, or what it kept: {self.args[0]}"


@dataclass(frozen=True)
class Trouble:
    """Why there is no answer: the actor died, an object is lost, or something raised. As an
    exception it would look like the keeper's own."""

    kind: Literal["died", "lost", "failed"]
    why: str


@dataclass(frozen=True)
class Tally:
    """Which process a keeper is, how many states it holds, and the processor seconds that it has
    had."""

    pid: int
    states: int
    seconds: float


class CallOrder(NamedTuple):
    """A call that a keeper is to make: what it has in common with others, what is its own, and the
    values it wants."""

    ticket: int
    place: int
    number: int
    common: int
    own: bytes
    handles: list[PostedHandle]


class CollectOrder(NamedTuple):
    """States that a keeper is to collect of a call which did not come its way."""

    ticket: int
    place: int
    number: int
    clients: Sequence[ClientId]


class Post(NamedTuple):
    """What a keeper is sent at a time."""

    orders: Sequence[CallOrder | CollectOrder]
    common: Sequence[bytes]
    gone: Collection[StateKey]


class Keeper:
    """One shard: the actors that are called through it, and the states that they left."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.peers: Sequence[ActorHandle] = []
        self.actors: dict[int, ActorHandle] = {}
        self.kept: dict[StateKey, ObjectRef] = {}
        self.answers: list[tuple[int, bytes | Trouble]] = []
        self.turn = 0
        self.news = asyncio.Event()
        self.underway: set[asyncio.Task[None]] = set()

    async def meet(self, peers: Sequence[ActorHandle]) -> None:
        """Know the other keepers, by number."""
        self.peers = peers

    async def engage(self, place: int, actor: ActorHandle) -> None:
        """From now on this actor is called for a place."""
        self.actors[place] = actor

    async def exchange(self, packed: bytes, shared: Sequence[ObjectRef] = ()) -> bytes:
        """Take what is to be done; return as soon as there are answers, or somebody else waits for
        them."""
        self.turn += 1
        turn = self.turn
        self._set_out(pickle.loads(packed), shared)
        # Newer post may come while this waits: then the newer call takes the answers home.
        while turn == self.turn and not self.answers:
            self.news.clear()
            await self.news.wait()
        answers: list[tuple[int, bytes | Trouble]] = []
        if turn == self.turn:
            answers, self.answers = self.answers, answers
        return pickle.dumps(answers)

    def _set_out(self, post: Post, shared: Sequence[ObjectRef]) -> None:
        self.news.set()
        for key in post.gone:
            # One whose actor died while it was collected was never here.
            self.kept.pop(key, None)
        for order in post.orders:
            task = asyncio.ensure_future(self._carry_out(order, post.common, shared))
            # The loop holds on to its tasks weakly.
            self.underway.add(task)
            task.add_done_callback(self.underway.discard)

    async def _carry_out(
        self, order: CallOrder | CollectOrder, common: Sequence[bytes], shared: Sequence[ObjectRef]
    ) -> None:
        found: bytes | Trouble
        try:
            if isinstance(order, CallOrder):
                found = await self._run(
                    order, common[order.common], await self._values(order.handles, shared)
                )
            else:
                found = await self._collect(order)
        except DEATHS as error:
            found = Trouble("died", str(error))
        except ObjectLostError as error:
            found = Trouble("lost", str(error))
        except Exception:
            found = Trouble("failed", traceback.format_exc())
        self.answers.append((order.ticket, found))
        self.news.set()

    async def _run(self, order: CallOrder, common: bytes, values: Sequence[ObjectRef]) -> bytes:
        left, answer = await self.actors[order.place].answer.remote(common, order.own, *values)
        # What lies at an actor dies with it: there is no answer until its states are safe.
        if left:
            await self._collect(CollectOrder(order.ticket, order.place, order.number, left))
        found: bytes = answer
        return found

    async def _collect(self, of: CollectOrder) -> bytes:
        method = self.actors[of.place].collect.options(num_returns=1 + len(of.clients))
        first, *states = method.remote(of.number, of.clients)
        # Only what the actor has handed over outlives it.
        await first
        self.kept.update(
            ((of.ticket, client), state) for client, state in zip(of.clients, states, strict=True)
        )
        return b""

    async def lend(self, keys: Sequence[StateKey]) -> list[ObjectRef]:
        """The references of some states."""
        return [self.kept[key] for key in keys]

    async def tally(self) -> Tally:
        """What this keeper has, and what it took."""
        return Tally(os.getpid(), len(self.kept), time.process_time())

    async def _values(
        self, handles: Sequence[PostedHandle], shared: Sequence[ObjectRef]
    ) -> list[ObjectRef]:
        """References for an actor to be called with; Ray fetches what they refer to before the call
        begins."""
        wanted: dict[int, list[StateKey]] = defaultdict(list)
        for handle in handles:
            if isinstance(handle, tuple):
                wanted[handle[0]].append(handle[1])
        found = await asyncio.gather(*map(self._borrow, wanted, wanted.values()))
        lent = {keeper: iter(states) for keeper, states in zip(wanted, found, strict=True)}
        return [
            next(lent[handle[0]]) if isinstance(handle, tuple) else shared[handle]
            for handle in handles
        ]

    async def _borrow(self, keeper: int, keys: Sequence[StateKey]) -> list[ObjectRef]:
        if keeper == self.number:
            return await self.lend(keys)
        try:
            states: list[ObjectRef] = await self.peers[keeper].lend.remote(keys)
        except RayActorError as error:
            raise KeeperDied(str(error)) from error
        return states
