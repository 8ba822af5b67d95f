"""How tasks travel to an actor: many clients in one list, references once each, small values where
they are wanted."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayfl.fleet.executor import Task, copy_array, map_leaves, nbytes
from rayfl.protocol import ClientId, DataRef, Ref

INLINE_BYTES = 64 << 10  # larger arrays lie in the object store, once a node
STATE_BYTES = (
    32 << 10
)  # what a client may leave inside its call's answer, which holds that of thousands


@dataclass(frozen=True)
class Slot:
    """Stands in a call's inputs for the i-th value that travels beside them."""

    i: int
    key: str | None


@dataclass(frozen=True, eq=False)
class Here:
    """The handle of a value that is small enough to travel inside the calls that use it."""

    value: Any


class Sealed(Here):
    """A small state as the actor packed it. Whoever keeps those of thousands need not look into
    them."""

    def __init__(self, packed: bytes) -> None:
        object.__setattr__(self, "packed", packed)

    packed: bytes

    @property
    def value(self) -> Any:
        return map_leaves(pickle.loads(self.packed), copy_array)


IN_PLACE = {Here, Sealed}


@dataclass(frozen=True)
class Batch:
    """Tasks of one round as they travel: thousands of clients, few of which have inputs or state of
    their own."""

    t: int
    clients: list[ClientId]
    inputs: dict[ClientId, Any]
    state: dict[ClientId, Any] = field(default_factory=dict)
    stored: dict[ClientId, dict[str, int]] = field(default_factory=dict)
    """For states that are stored objects: which value an entry is in. Slots for thousands would
    take longer."""
    sealed: dict[ClientId, tuple[list[str], bytes]] = field(default_factory=dict)

    @classmethod
    def packed(cls, tasks: Sequence[Task], values: dict[Any, int]) -> Batch:
        inputs = {task.client: emptied(task.inputs, values) for task in tasks if task.inputs}
        batch = cls(tasks[0].t, [task.client for task in tasks], inputs)
        for task in tasks:
            if task.state:
                batch._pack(task.client, task.state, values)
        return batch

    def _pack(self, client: ClientId, state: Mapping[str, Ref], values: dict[Any, int]) -> None:
        handles = {ref.handle for ref in state.values()}
        kinds = set(map(type, handles))
        # An entry under another name than its own is rare, and travels by itself.
        whole = [ref.key for ref in state.values()] == list(state)
        if whole and not kinds & IN_PLACE:
            self.stored[client] = {
                name: values.setdefault(ref.handle, len(values)) for name, ref in state.items()
            }
        elif whole and kinds == {Sealed} and len(handles) == 1:
            (sealed,) = handles
            # The names for their order, which a phase may see.
            self.sealed[client] = list(state), sealed.packed
        else:
            self.state[client] = {name: emptied_leaf(ref, values) for name, ref in state.items()}

    def unpacked(self, values: Sequence[Any]) -> list[Task]:
        inputs, state = filled(self.inputs, values), filled(self.state, values)
        for client, entries in self.stored.items():
            state[client] = {name: values[i][name] for name, i in entries.items()}
        for client, (names, packed) in self.sealed.items():
            held = pickle.loads(packed)
            state[client] = {name: held[name] for name in names}
        return [
            Task(client, self.t, inputs.get(client, {}), state.get(client, {}))
            for client in self.clients
        ]


def within_limit(batch: list[Task], limit: int) -> tuple[list[Task], list[Task]]:
    """The first tasks of a batch whose arguments stay under a size (at least one), and the
    others."""
    total = 0
    for position, task in enumerate(batch):
        if task.inputs:
            total += nbytes(task.inputs, scalars=False)
        for ref in task.state.values():
            total += ref.nbytes
        if position and total > limit:
            return batch[:position], batch[position:]
    return batch, []


def emptied(value: Any, values: dict[Any, int]) -> Any:
    """Inputs with small values in place and a Slot for every stored object; `values` collects
    those, each once."""
    return map_leaves(value, lambda leaf: emptied_leaf(leaf, values))


def emptied_leaf(leaf: Any, values: dict[Any, int]) -> Any:
    if not isinstance(leaf, Ref) or isinstance(leaf, DataRef):
        return leaf
    if isinstance(leaf.handle, Here):
        return leaf.handle.value if leaf.key is None else leaf.handle.value[leaf.key]
    return Slot(values.setdefault(leaf.handle, len(values)), leaf.key)


def filled(value: Any, values: Sequence[Any]) -> Any:
    """The inverse of `emptied`, where the values have arrived."""

    def arrived(leaf: Any) -> Any:
        if not isinstance(leaf, Slot):
            return leaf
        return values[leaf.i] if leaf.key is None else values[leaf.i][leaf.key]

    return map_leaves(value, arrived)
