"""How values and tasks travel: references once each, small values where they are wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from rayfl.fleet.executor import Task
from rayfl.fleet.on_ray.calls import split_at_limit
from rayfl.fleet.on_ray.values import Inlined, ValueSlot, fill_in, take_out
from rayfl.protocol import DataRef, Ref

HANDLES = st.integers(0, 4).map(lambda i: f"handle {i}") | st.integers(5, 6).map(
    lambda i: Inlined(entries(i))
)
REFS = st.builds(Ref, HANDLES, st.none() | st.sampled_from(["w", "y"]))
INPUTS = st.recursive(
    st.integers() | st.just(DataRef("test")) | REFS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=2), inner)
    ),
    max_leaves=8,
)


def entries(i: int) -> dict[str, int]:
    """What is stored under a handle."""
    return {"w": 10 * i, "y": 10 * i + 1}


def looked_up(value: Any, store: Any) -> Any:
    """What `fill_in(take_out(...))` must be."""
    if isinstance(value, Ref) and not isinstance(value, DataRef):
        inside = isinstance(value.handle, Inlined)
        found: Any = value.handle.value if inside else store[value.handle]
        return found if value.key is None else found[value.key]
    if isinstance(value, dict):
        return {key: looked_up(item, store) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(looked_up(item, store) for item in value)
    return value


@given(INPUTS)
@settings(deadline=None)
def test_references_travel_once_each_and_come_back(inputs: Any) -> None:
    values: dict[Any, int] = {}
    store = {f"handle {i}": entries(i) for i in range(5)}
    sent = take_out(inputs, values)
    assert "handle" not in repr(sent).replace("DataRef(handle=", "")
    assert sorted(values.values()) == list(range(len(values)))
    assert fill_in(sent, [store[handle] for handle in values]) == looked_up(inputs, store)


def test_a_slot_names_the_value_and_its_entry() -> None:
    values: dict[Any, int] = {}
    assert take_out([Ref("a"), Ref("b", "w"), Ref("a", "y")], values) == [
        ValueSlot(0, None),
        ValueSlot(1, "w"),
        ValueSlot(0, "y"),
    ]
    assert values == {"a": 0, "b": 1}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 120))
@settings(deadline=None)
def test_batches_stay_within_the_limit(sizes: list[int], limit: int) -> None:
    batch = [Task(i, 0, {"a": np.zeros(size, np.uint8)}, {}) for i, size in enumerate(sizes)]
    first, rest = split_at_limit(batch, limit)
    assert first + rest == batch
    assert len(first) == 1 or sum(sizes[: len(first)]) <= limit
    assert not rest or sum(sizes[: len(first) + 1]) > limit


def test_state_counts_towards_the_limit() -> None:
    batch = [Task(i, 0, {}, {"c": Ref(None, nbytes=60)}) for i in range(4)]
    assert [task.client for task in split_at_limit(batch, 130)[0]] == [0, 1]
