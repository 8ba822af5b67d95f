"""A call to an actor, and its answer: many clients in one list, remote values once each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

from rayfl.fleet.executor import Done, Task, count_bytes
from rayfl.fleet.on_ray.values import (
    IN_PLACE,
    Beside,
    Handle,
    Packed,
    Parcel,
    Remote,
    fill_in,
    handle_of,
    pick_entry,
    take_out,
    take_out_leaf,
)
from rayfl.fleet.sums.early_sums import ExpectedMeans, MadeSums
from rayfl.fleet.sums.shared_memory import Page
from rayfl.fleet.sums.updates import NamedVectors
from rayfl.protocol import ClientId, Phase, Ref

Inputs = Mapping[str, object]


@dataclass(frozen=True)
class TaskBatch:
    """Tasks of one round as they travel: thousands of clients, few of which have inputs or state of
    their own."""

    t: int
    clients: list[ClientId]
    inputs: dict[ClientId, object]
    state: dict[ClientId, Inputs] = field(default_factory=dict)
    stored: dict[ClientId, dict[str, int]] = field(default_factory=dict)
    """For states that are remote objects: which value an entry is in. Slots for thousands would
    take longer."""
    packed: dict[ClientId, tuple[list[str], Parcel]] = field(default_factory=dict)
    visits: dict[ClientId, int] = field(default_factory=dict)
    """Of those that are not visited for the first time in this round."""
    examined: bool = False

    @classmethod
    def of(cls, tasks: Sequence[Task], beside: Beside) -> TaskBatch:
        """Tasks of one round, each of another client; `beside` collects the remote values."""
        inputs = {task.client: take_out(task.inputs, beside) for task in tasks if task.inputs}
        clients = [task.client for task in tasks]
        visits = {task.client: task.visit for task in tasks if task.visit}
        examined = tasks[0].examined
        batch = cls(tasks[0].t, clients, inputs, visits=visits, examined=examined)
        for task in tasks:
            if task.state:
                batch._add_state(task.client, task.state, beside)
        return batch

    def _add_state(self, client: ClientId, state: Mapping[str, Ref], beside: Beside) -> None:
        handles = {handle_of(ref) for ref in state.values()}
        kinds = set(map(type, handles))
        # An entry under another name than its own is rare, and travels by itself.
        whole = [ref.key for ref in state.values()] == list(state)
        if whole and not kinds & IN_PLACE:
            self.stored[client] = {
                name: beside.setdefault(ref.handle, len(beside)) for name, ref in state.items()
            }
        elif whole and kinds == {Packed} and len(handles) == 1:
            (held,) = handles
            # The names for their order, which a phase may see.
            self.packed[client] = list(state), cast(Packed, held).parcel
        else:
            self.state[client] = {name: take_out_leaf(ref, beside) for name, ref in state.items()}

    def unpack(self, values: Sequence[object]) -> list[Task]:
        """The tasks again, where the values have arrived."""
        inputs = cast("dict[ClientId, Inputs]", fill_in(self.inputs, values))
        state = cast("dict[ClientId, Inputs]", fill_in(self.state, values))
        for client, entries in self.stored.items():
            state[client] = {name: pick_entry(values[i], name) for name, i in entries.items()}
        for client, (names, parcel) in self.packed.items():
            held = cast(Inputs, Packed(*parcel).unpack())
            state[client] = {name: held[name] for name in names}
        visits = self.visits
        return [
            Task(
                client,
                self.t,
                inputs.get(client, {}),
                state.get(client, {}),
                visits.get(client, 0),
                self.examined,
            )
            for client in self.clients
        ]


class PackedCall(NamedTuple):
    """A call as an actor's `run` gets it. The remote values come behind it."""

    number: int
    phase: Phase
    batch: TaskBatch
    shared: Inputs
    forgotten: Sequence[int]
    expected: ExpectedMeans
    chain: bool
    limit: float | None


@dataclass(frozen=True, eq=False)
class Call:
    """Some tasks of a map for one actor."""

    number: int
    phase: Phase
    tasks: list[Task]
    shared: Inputs
    forgotten: Sequence[int] = ()
    """Maps whose updates the actor may drop."""
    expected: ExpectedMeans = field(default_factory=dict)
    """The parts in means that these clients are expected to have."""
    chain: bool = False
    beside_rounds: bool = False
    """An errand's: nobody waits for it, and it may take long."""
    limit: float | None = None
    """The seconds that one visit of a client may take."""

    @cached_property
    def packed(self) -> tuple[PackedCall, list[Remote]]:
        """The call without its remote values, and these."""
        beside: Beside = {}
        batch = TaskBatch.of(self.tasks, beside)
        shared = cast(Inputs, take_out(self.shared, beside))
        call = PackedCall(
            self.number,
            self.phase,
            batch,
            shared,
            self.forgotten,
            self.expected,
            self.chain,
            self.limit,
        )
        return call, list(beside)


@dataclass(frozen=True)
class Answer:
    """What a call of an actor brings back: outcomes, their sums where any were expected, small
    states, pages, and what the server made if it is small."""

    done: list[Done]
    sums: MadeSums = field(default_factory=dict)
    states: Mapping[ClientId, Parcel] = field(default_factory=dict)
    pages: Mapping[ClientId, Mapping[str, Page]] = field(default_factory=dict)
    """Where large updates lie for all to see, as far as they were made there."""
    updates: Mapping[ClientId, NamedVectors] = field(default_factory=dict)
    kept: Mapping[ClientId, Handle] = field(default_factory=dict)
    """Handles of the large states, where a keeper has collected them."""

    @property
    def left_at_actor(self) -> list[ClientId]:
        """Clients whose state is still at the actor."""
        known = {*self.states, *self.kept}
        return [done.client for done in self.done if done.state_bytes and done.client not in known]


def split_at_limit(batch: list[Task], limit: int) -> tuple[list[Task], list[Task]]:
    """The first tasks of a batch whose arguments stay under a size (at least one), and the
    others."""
    total = 0
    for position, task in enumerate(batch):
        if task.inputs:
            total += count_bytes(task.inputs, scalars=False)
        for ref in task.state.values():
            total += ref.nbytes
        if position and total > limit:
            return batch[:position], batch[position:]
    return batch, []
