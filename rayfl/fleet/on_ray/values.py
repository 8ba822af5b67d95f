"""Values on their way: how one is held by the coordinator, fetched, and put into a call.

A reference of a method's (`Ref`) holds one of four handles. Small values are in the handle itself
and go inside the calls that want them; large ones lie in Ray's object store, and only what names
them there travels: once beside a call's inputs, in which a `Slot` stands wherever it is wanted."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import ray
from ray import ObjectRef

from rayfl.fleet.executor import copy_array, map_leaves
from rayfl.protocol import DataRef, Ref

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.keepers.keeper_calls import Kept

INLINE_BYTES = 64 << 10  # larger arrays lie in the object store, once a node
STATE_BYTES = 32 << 10
"""What a client may leave inside its call's answer, which holds that of thousands."""


@dataclass(frozen=True, eq=False)
class Inlined:
    """A value that is small enough to travel inside the calls that use it."""

    value: object


@dataclass(frozen=True, eq=False)
class Packed:
    """A small state as the actor packed it. Whoever holds those of thousands need not look into
    them."""

    content: bytes
    arrays: Sequence[Buffer] = ()
    """What is in its arrays, which travels without being packed."""

    @classmethod
    def of(cls, parcel: Parcel) -> Packed:
        """One that has arrived, in this process's own memory: all of an answer would stay in Ray's
        store for the least view of it."""
        content, arrays = parcel
        return cls(content, [a if isinstance(a, bytearray) else bytes(a) for a in arrays])

    @property
    def value(self) -> object:
        return map_leaves(self.unpack(), copy_array)

    @property
    def parcel(self) -> Parcel:
        """What stands for it in a call or an answer."""
        return self.content, [pickle.PickleBuffer(array) for array in self.arrays]

    def unpack(self) -> object:
        return pickle.loads(self.content, buffers=self.arrays)


@dataclass(frozen=True, eq=False)
class Stored:
    """An object in Ray's store that this process owns."""

    reference: ObjectRef


Remote: TypeAlias = "Stored | Kept"
"""What lies elsewhere. Its `reference` is what Ray calls are given, and fetch."""

Handle: TypeAlias = "Inlined | Packed | Remote"
"""All that the coordinator can hold a value by; `Kept` exists only where there are keepers."""

Beside: TypeAlias = "dict[Remote, int]"
"""What travels beside a call's inputs, each once, and its position there."""

Buffer: TypeAlias = "bytes | bytearray | memoryview | pickle.PickleBuffer"
Parcel: TypeAlias = "tuple[bytes, Sequence[Buffer]]"
"""The fields of a `Packed`, of which a message holds thousands."""

IN_PLACE = {Inlined, Packed}


@dataclass(frozen=True)
class ValueSlot:
    """Stands in a call's inputs for the i-th value that travels beside them."""

    i: int
    key: str | None


def handle_of(ref: Ref) -> Handle:
    """What a reference on Ray is held by."""
    return cast("Handle", ref.handle)


def store_value(value: object) -> Stored:
    return Stored(ray.put(value))


def fetch_value(handle: Handle) -> object:
    """The value itself, brought to this process."""
    if isinstance(handle, (Inlined, Packed)):
        return handle.value
    return ray.get(handle.reference)


def store_large_arrays(inputs: Mapping[str, object]) -> Mapping[str, object]:
    """Large arrays among the inputs go to the object store once, not into every call."""
    large = {
        name: Ref(store_value(value), nbytes=value.nbytes)
        for name, value in inputs.items()
        if isinstance(value, np.ndarray) and value.nbytes > INLINE_BYTES
    }
    return {**inputs, **large} if large else inputs


def take_out(inputs: object, beside: Beside) -> object:
    """Inputs with small values in place and a Slot for every remote one; `beside` collects
    those."""
    return map_leaves(inputs, lambda leaf: take_out_leaf(leaf, beside))


def take_out_leaf(leaf: object, beside: Beside) -> object:
    """One leaf of them. Named sets stay what they are: they lie at every place."""
    if not isinstance(leaf, Ref) or isinstance(leaf, DataRef):
        return leaf
    handle = handle_of(leaf)
    if isinstance(handle, (Inlined, Packed)):
        return pick_entry(handle.value, leaf.key)
    return ValueSlot(beside.setdefault(handle, len(beside)), leaf.key)


def fill_in(inputs: object, values: Sequence[object]) -> object:
    """The inverse of `take_out`, where the values have arrived."""

    def arrive(leaf: object) -> object:
        return pick_entry(values[leaf.i], leaf.key) if isinstance(leaf, ValueSlot) else leaf

    return map_leaves(inputs, arrive)


def pick_entry(value: object, key: str | None) -> object:
    """A value, or one entry of a stored mapping."""
    return value if key is None else cast("Mapping[str, object]", value)[key]
