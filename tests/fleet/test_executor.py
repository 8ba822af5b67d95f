"""One place: what it assembles, weighs and keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rayfl.errors import ConfigError, DataError
from rayfl.fleet.executor import (
    Executor,
    Task,
    count_bytes,
    fail_visit,
    freeze_array,
    map_leaves,
    name_update,
)
from rayfl.fleet.streams import Streams
from rayfl.fleet.sums.peaks import find_peak
from rayfl.protocol import SERVER, Client, DataRef, Out, Ref
from tests.fleet import phases
from tests.fleet.toys import CLIENTS, SIZES, holdings, learner


def place(**more: Any) -> Executor:
    return Executor(holdings(**more), learner(), Streams(7))


def tasks(*clients: int) -> list[Task]:
    return [Task(client, 0, {}, {}) for client in clients]


@pytest.mark.parametrize(
    ("value", "whole", "without_scalars"),
    [
        (np.zeros((3, 2), np.float32), 24, 24),
        (np.zeros(5, np.bool_), 5, 5),
        (Ref(None, nbytes=77), 77, 77),
        (DataRef("test"), 0, 0),
        (1.5, 4, 0),
        (np.float64(1.5), 4, 0),
        (np.float32(1.5), 4, 0),
        ("word", 4, 0),
        (b"bytes", 5, 0),
        (7, 0, 0),
        (True, 0, 0),
        (None, 0, 0),
        ([1.0, (2.0, np.zeros(2))], 24, 16),
        ({"a": 1.0, "_own": np.zeros(99)}, 4, 0),
        ({}, 0, 0),
    ],
)
def test_what_a_value_costs(value: Any, whole: int, without_scalars: int) -> None:
    assert count_bytes(value) == whole
    assert count_bytes(value, scalars=False) == without_scalars


def test_private_entries_count_against_the_limit() -> None:
    assert count_bytes({"a": 1.0, "_own": {"_deep": np.zeros(9)}}, private=True) == 76


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        ([], 0.0),
        ([0.0, -0.0], 0.0),
        ([1.0, -3.0], 3.0),
        ([-np.inf, 1.0], np.inf),
        ([np.inf], np.inf),
    ],
)
def test_peak_is_the_largest_absolute_value(vector: list[float], expected: float) -> None:
    assert find_peak(np.array(vector, np.float32)) == expected


@pytest.mark.parametrize("position", [0, 1, 2])
def test_peak_of_anything_not_a_number_is_not_finite(position: int) -> None:
    vector = np.ones(3, np.float32)
    vector[position] = np.nan
    assert not np.isfinite(find_peak(vector))


@pytest.mark.parametrize("writeable", [True, False])
def test_frozen_is_a_view_and_leaves_the_original(writeable: bool) -> None:
    array = np.zeros(3)
    array.flags.writeable = writeable
    view = freeze_array(array)
    assert not view.flags.writeable
    assert np.shares_memory(view, array)
    assert array.flags.writeable == writeable
    assert freeze_array("text") == "text"


LEAVES = st.none() | st.integers() | st.text(max_size=3)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2) | st.integers(0, 5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(TREES)
@settings(deadline=None)
def test_walking_keeps_the_shape_of_a_tree(tree: Any) -> None:
    assert map_leaves(tree, lambda leaf: leaf) == tree
    assert map_leaves(map_leaves(tree, lambda leaf: [leaf]), lambda leaf: leaf) == map_leaves(
        tree, lambda leaf: [leaf]
    )


@pytest.mark.parametrize(
    "update", [np.ones(3), np.ones(6, np.float32)[::2], {"w": np.ones(3, np.float64)}]
)
def test_updates_are_contiguous_named_float32(update: Any) -> None:
    ((name, vector),) = name_update(update).items()
    assert name == "w"
    assert vector.dtype == np.float32
    assert vector.flags.c_contiguous


def test_updates_stay_until_they_are_freed() -> None:
    executor = place()
    list(executor.run(1, phases.update, tasks(0, 3), {"size": 4}))
    list(executor.run(2, phases.update, tasks(0), {"size": 4}))
    assert set(executor.updates) == {(1, 0), (1, 3), (2, 0)}
    executor.updates.free(1)
    assert set(executor.updates) == {(2, 0)}
    executor.updates.free(1)


def test_a_place_stops_at_the_first_error() -> None:
    results = list(place().run(0, phases.fail, tasks(0, 3, 5), {"on": 3}))
    assert [done.client for done, _ in results] == [0, 3]
    last, state = results[-1]
    assert "ZeroDivisionError: what went wrong here" in (last.error or "")
    assert last.refusal is None
    assert state == {}


@pytest.mark.parametrize(
    ("error", "kept"),
    [(DataError("mend me"), True), (ConfigError("and me"), True), (KeyError(1), False)],
)
def test_only_what_a_person_can_mend_travels_as_itself(error: Exception, kept: bool) -> None:
    try:
        raise error
    except Exception as caught:
        outcome = fail_visit(phases.describe, Task(4, 0, {}, {}), caught)
    assert outcome.client == 4
    assert (outcome.refusal is error) == kept
    assert type(error).__name__ in (outcome.error or "")


def test_passes_and_time_belong_to_the_visit_that_spent_them() -> None:
    results = list(place().run(0, phases.train_a_bit, tasks(0, 1), {"w": np.zeros(2, np.float32)}))
    assert [(done.forward, done.backward) for done, _ in results] == [(10, 5), (2, 1)]
    assert all(done.seconds > 0 for done, _ in results)
    assert [done.update_bytes for done, _ in results] == [{"w": 8}, {"w": 8}]


def test_every_sample_has_one_owner() -> None:
    held = holdings()
    rows = np.concatenate([held.rows(client) for client in range(len(SIZES))])
    assert sorted(rows) == list(range(sum(SIZES)))
    assert [held.size(client) for client in range(len(SIZES))] == list(SIZES)
    assert held.size(SERVER) == len(held.rows(SERVER)) == len(held.shard(SERVER)) == 0


@pytest.mark.parametrize("client", [*CLIENTS, 2, SERVER])
def test_labels_are_hidden_where_they_are_out_of_bounds(client: int) -> None:
    assert (holdings(client_labels=False).shard(client).y is None) == (client >= 0)
    assert holdings().shard(client).y is not None


def test_no_attribute_of_a_client_reaches_other_labels() -> None:
    """A client holds its own samples; neither the federation nor its truth hangs on it."""
    reached: list[set[str]] = []

    def look(client: Client) -> Out:
        reached.append(set(vars(client)))
        return Out()

    list(place().run(0, look, tasks(0), {}))
    assert reached == [{"id", "x", "labels", "state", "rng", "learner", "features", "classes"}]
