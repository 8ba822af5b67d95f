"""The coordinator's side of keepers: who keeps what, which calls are out, and the post that goes to
and fro."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, cast

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import ActorUnschedulableError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayfl.fleet.on_ray.calls import Answer, Call, Inputs, TaskBatch
from rayfl.fleet.on_ray.keepers.keeper_process import (
    CallOrder,
    CollectOrder,
    Keeper,
    KeeperDied,
    Post,
    PostedHandle,
    StateKey,
    Tally,
    Trouble,
)
from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.on_ray.ray_calls import RayAnswer
from rayfl.fleet.on_ray.routes import wait_for_one
from rayfl.fleet.on_ray.transport import CallFailed, Pending, PlaceDied
from rayfl.fleet.on_ray.values import Beside, Handle, Remote, Stored, take_out
from rayfl.protocol import ClientId, Phase


class KeeperShard:
    """One keeper, as the coordinator knows it: what it is to be sent, and how many of its answers
    are still to come."""

    def __init__(self, number: int, actor: ActorHandle) -> None:
        self.number, self.actor = number, actor
        self.orders: list[CallOrder | CollectOrder] = []
        self.common: dict[bytes, int] = {}
        self.beside: dict[Stored, int] = {}
        self.gone: list[StateKey] = []
        self.owed = 0
        self.engaged: dict[int, Place] = {}

    def engage(self, place: Place) -> None:
        """Have the keeper know a place's present actor."""
        if self.engaged.get(place.number) is not place:
            ask_keepers([self.actor.engage.remote(place.number, place.actor)])
            self.engaged[place.number] = place

    def name_in_post(self, value: Remote) -> PostedHandle:
        """A value's name in the post; a reference travels beside it, once for all calls."""
        if isinstance(value, Kept):
            return value.shard.number, value.key
        return self.beside.setdefault(value, len(self.beside))

    def take_post(self) -> tuple[bytes, list[ObjectRef]]:
        """The post and the references beside it. As bytes, which Ray does not look into: it would
        take longer over thousands of handles than everything else."""
        # Handles that go in another thread meanwhile are for the next time.
        gone = self.gone[: len(self.gone)]
        del self.gone[: len(gone)]
        post = pickle.dumps(Post(self.orders, list(self.common), gone))
        references = [stored.reference for stored in self.beside]
        self.orders, self.common, self.beside = [], {}, {}
        return post, references

    def lend(self, key: StateKey) -> ObjectRef:
        """The reference of a state, for calls that go to actors directly."""
        ((state,),) = ask_keepers([self.actor.lend.remote([key])])
        return state


class Kept:
    """The handle of a state that a keeper owns. When the last reference to it goes, the keeper may
    let go as well."""

    __slots__ = ("__weakref__", "key", "shard")

    def __init__(self, shard: KeeperShard, key: StateKey) -> None:
        self.shard, self.key = shard, key

    @property
    def reference(self) -> ObjectRef:
        return self.shard.lend(self.key)

    def __del__(self) -> None:
        # This may run in any thread, in the middle of anything: an append needs no lock.
        self.shard.gone.append(self.key)


class Ticket(Pending[Answer]):
    """A call that a keeper makes, and what came of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: Answer | Trouble | None = None

    def take(self) -> Answer:
        if not isinstance(self.answer, Trouble):
            return cast(Answer, self.answer)
        if self.answer.kind == "died":
            raise PlaceDied("as its keeper says", self.answer.why)
        raise (KeeperDied if self.answer.kind == "lost" else CallFailed)(self.answer.why)


@dataclass(frozen=True)
class Common:
    """What all calls of a map share, packed for the first of them."""

    phase: Phase
    shared: Inputs
    packed: bytes
    beside: Beside


class KeeperCalls:
    """A transport through keepers: place i is keeper i mod n's."""

    def __init__(self, number: int) -> None:
        remote = ray.remote(Keeper)
        actors = [
            remote.options(num_cpus=0, max_restarts=0, scheduling_strategy=where).remote(i)
            for i, where in enumerate(spread_over_nodes(number))
        ]
        self.shards = [KeeperShard(i, actor) for i, actor in enumerate(actors)]
        self.exchanges: dict[RayAnswer[bytes], KeeperShard] = {}
        # Whoever drops a ticket has stopped waiting.
        self.tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self.numbers = count()
        self.latest: Common | None = None
        if number > 1:
            ask_keepers([actor.meet.remote(actors) for actor in actors])

    def shard_of(self, place: Place) -> KeeperShard:
        return self.shards[place.number % len(self.shards)]

    # -- calls -------------------------------------------------------------------------------------

    def post(self, place: Place, call: Call) -> Ticket:
        """Have a place's actor called; `send` lets it go."""
        shard = self.shard_of(place)
        shard.engage(place)
        common = self._pack_common(call.phase, call.shared)
        beside = dict(common.beside)
        batch = TaskBatch.of(call.tasks, beside)
        # Only a method's own values can be of classes that plain pickle, twice as fast, would not
        # carry.
        dumps = ray.cloudpickle.dumps if batch.inputs or batch.state else pickle.dumps
        own = dumps(
            (call.number, batch, call.forgotten, call.expected, call.chain, call.limit),
            pickle.HIGHEST_PROTOCOL,
        )
        ticket = self._issue_ticket(shard)
        handles = [shard.name_in_post(value) for value in beside]
        at = shard.common.setdefault(common.packed, len(shard.common))
        shard.orders.append(CallOrder(ticket.number, place.number, call.number, at, own, handles))
        return ticket

    def collect(
        self, place: Place, number: int, clients: Sequence[ClientId]
    ) -> tuple[Ticket, dict[ClientId, Handle]]:
        """Have the states collected of a call that went another way."""
        shard = self.shard_of(place)
        shard.engage(place)
        ticket = self._issue_ticket(shard)
        shard.orders.append(CollectOrder(ticket.number, place.number, number, clients))
        return ticket, make_handles(shard, ticket.number, clients)

    def send(self) -> None:
        """Let the post go; and somebody wait for answers at every keeper that owes any."""
        waited_for = set(self.exchanges.values())
        for shard in self.shards:
            if shard.orders or (shard.owed and shard not in waited_for):
                post, references = shard.take_post()
                beside = [references] if references else []
                self.exchanges[RayAnswer(shard.actor.exchange.remote(post, *beside))] = shard

    def wait_for_first(self, pending: Sequence[Pending[Any]]) -> Sequence[Pending[Any]]:
        """All calls that keepers have answered, or the next one that went another way."""
        tickets = [call for call in pending if isinstance(call, Ticket)]
        others = [call for call in pending if not isinstance(call, Ticket)]
        while True:
            self.send()
            if answered := [ticket for ticket in tickets if ticket.answer is not None]:
                return answered
            first = wait_for_one([*others, *self.exchanges])
            if not isinstance(first, RayAnswer) or first not in self.exchanges:
                return [first]
            self._hear(self.exchanges.pop(first), first)

    def rest(self) -> None:
        """Nothing of a map that is over is held on to."""
        self.latest = None

    def _pack_common(self, phase: Phase, shared: Inputs) -> Common:
        latest = self.latest
        # By identity: to compare large inputs takes as long as to pack them.
        if latest is None or latest.phase is not phase or latest.shared is not shared:
            beside: Beside = {}
            inputs = take_out(shared, beside)
            packed = ray.cloudpickle.dumps((phase, inputs))
            latest = self.latest = Common(phase, shared, packed, beside)
        return latest

    def _issue_ticket(self, shard: KeeperShard) -> Ticket:
        shard.owed += 1
        ticket = Ticket(next(self.numbers))
        self.tickets[ticket.number] = ticket
        return ticket

    def _hear(self, shard: KeeperShard, exchange: RayAnswer[bytes]) -> None:
        """Take what a keeper sends."""
        (packed,) = ask_keepers([exchange.reference])
        for number, found in pickle.loads(packed):
            shard.owed -= 1
            answer = found if isinstance(found, Trouble) else unpack_answer(shard, number, found)
            # Nobody waits any more for a call of a map that was broken off; its states go with its
            # answer.
            if (ticket := self.tickets.pop(number, None)) is not None:
                ticket.answer = answer

    # -- processes ---------------------------------------------------------------------------------

    def take_tallies(self) -> list[Tally]:
        """What each keeper has, and what it took."""
        return ask_keepers([shard.actor.tally.remote() for shard in self.shards])

    def dismiss(self) -> None:
        for shard in self.shards:
            ray.kill(shard.actor)


def unpack_answer(shard: KeeperShard, number: int, packed: bytes) -> Answer:
    """An answer as the actor made it, with handles of what the keeper has collected. Of a call that
    went another way there is none."""
    if not packed:
        return Answer([])
    answer: Answer = pickle.loads(packed)
    left = answer.left_at_actor
    return replace(answer, kept=make_handles(shard, number, left)) if left else answer


def make_handles(
    shard: KeeperShard, ticket: int, clients: Sequence[ClientId]
) -> dict[ClientId, Handle]:
    return {client: Kept(shard, (ticket, client)) for client in clients}


def ask_keepers(references: Sequence[ObjectRef]) -> list[Any]:
    """What keepers answer; only their own death is an exception."""
    try:
        return list(ray.get(list(references)))
    except (RayActorError, ActorUnschedulableError) as error:
        raise KeeperDied(str(error)) from error


def spread_over_nodes(number: int) -> list[NodeAffinitySchedulingStrategy | None]:
    """Over the nodes that have processors. What belongs to a trial of a sweep stays in its
    placement group, and ends with it. Elsewhere each is bound to its node: who asks for no
    processor is put on any one by all gentler rules."""
    if ray.util.get_current_placement_group() is not None:
        return [None] * number
    nodes = sorted(
        node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
    )
    return [
        NodeAffinitySchedulingStrategy(nodes[i % len(nodes)], soft=False) for i in range(number)
    ]
