"""The mini-batches of a visit, and what a loss can ask of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from rayfl.errors import RayflError
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.batches import (
    OF_THE_PLACE,
    Notes,
    _gather_in_memory,
    _gather_on_device,
    draw_batches,
    plan_batches,
    resolve_settings,
)
from rayfl.learn.resident import Layout
from rayfl.learn.training import LocalTraining
from rayfl.protocol import Client
from tests.learn.toys import LAYOUTS, client, learner


def listed(
    size: int, smallest: int = 1, keep: Any = None, seed: int = 0, **given: Any
) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    plan = plan_batches(size, LocalTraining(**given), rng, smallest, keep)
    return [position.rows.tolist() for position in plan]


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 3))
@settings(deadline=None)
def test_every_sample_comes_once_an_epoch(size: int, batch: int, epochs: int) -> None:
    found = listed(size, batch_size=batch, epochs=epochs)
    per_epoch = -(-size // batch)
    assert len(found) == epochs * per_epoch
    for epoch in range(epochs):
        part = found[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(i for index in part for i in index) == list(range(size))
        assert all(len(index) == batch for index in part[:-1])


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30), st.booleans())
@settings(deadline=None)
def test_steps_replace_epochs(size: int, batch: int, steps: int, drop_last: bool) -> None:
    found = listed(size, batch_size=batch, steps=steps, epochs=0, drop_last=drop_last)
    assert len(found) == (0 if drop_last and size < batch else steps)
    if drop_last:
        assert all(len(index) == batch for index in found)


@pytest.mark.parametrize(
    ("size", "smallest", "given", "sizes"),
    [
        (10, 1, {"batch_size": 4}, [4, 4, 2]),
        (10, 1, {"batch_size": 4, "drop_last": True}, [4, 4]),
        (9, 2, {"batch_size": 4}, [4, 4]),
        (9, 1, {"batch_size": 4}, [4, 4, 1]),
        (9, 2, {"batch_size": 4, "steps": 5}, [4] * 5),
        (3, 1, {"batch_size": 4}, [3]),
        (3, 1, {"batch_size": 4, "drop_last": True}, []),
        (3, 1, {"batch_size": 4, "drop_last": True, "steps": 9}, []),
        (1, 2, {"batch_size": 4}, []),
        (1, 2, {"batch_size": 4, "steps": 9}, []),
        (9, 2, {"batch_size": 1}, []),
        (9, 2, {"batch_size": 1, "steps": 9}, []),
        (5, 1, {"epochs": 0}, []),
    ],
)
def test_sizes_of_the_batches(
    size: int, smallest: int, given: dict[str, Any], sizes: list[int]
) -> None:
    assert [len(index) for index in listed(size, smallest, **given)] == sizes


def test_only_kept_samples_are_visited() -> None:
    keep = np.zeros(20, np.bool_)
    keep[[3, 5, 11, 12, 19]] = True
    found = listed(20, keep=keep, batch_size=2, epochs=2)
    assert [len(index) for index in found] == [2, 2, 1] * 2
    assert sorted(i for index in found[:3] for i in index) == [3, 5, 11, 12, 19]
    assert listed(20, keep=np.zeros(20, np.bool_), steps=3) == []


def test_order_comes_from_the_stream_and_changes_every_epoch() -> None:
    assert listed(30, seed=1) == listed(30, seed=1) != listed(30, seed=2)
    first, second = listed(30, batch_size=30, epochs=2)
    assert first != second


def test_a_batch_holds_its_samples() -> None:
    place = learner(batch_size=5, augment={"name": "none"})
    one = client(12, place)
    seen = []
    for batch in draw_batches(one, place.training):
        assert np.array_equal(batch.y.numpy(), one.y[batch.index])
        assert np.array_equal(batch.pixels.permute(0, 2, 3, 1).numpy(), one.x[batch.index])
        assert torch.equal(batch.x, place.normalise(batch.pixels))
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(12))
    # Images pass through networks, not through batches.
    assert place.passes.take() == (0, 0)


def test_unlabelled_clients_have_batches_too_and_no_labels_in_them() -> None:
    place = learner(batch_size=4)
    drawn = list(draw_batches(client(9, place, labels=False), place.training))
    assert [len(batch) for batch in drawn] == [4, 4, 1]
    rule = r"where the method may see them; got a batch whose labels are out of bounds\. Declare"
    with pytest.raises(RayflError, match=rule):
        _ = drawn[0].y


def test_a_batch_knows_where_it_stands() -> None:
    place = learner(batch_size=4, epochs=2)
    drawn = draw_batches(client(9, place), place.training)
    stands = [(batch.step, batch.epoch, batch.step_in_epoch) for batch in drawn]
    assert stands == [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 1, 2)]


def test_skipped_tails_are_no_steps() -> None:
    place = learner(batch_size=4, steps=3, drop_last=True)
    drawn = draw_batches(client(9, place), place.training)
    assert [(b.step, b.epoch, b.step_in_epoch) for b in drawn] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]


def test_a_batch_takes_its_rows_of_anything_that_the_client_has() -> None:
    place = learner(batch_size=5)
    values = np.arange(12 * 2, dtype=np.float32).reshape(12, 2)
    for batch in draw_batches(client(12, place), place.training):
        assert np.array_equal(batch.take(values).numpy(), values[batch.index])
        assert np.array_equal(batch.take(values[:, 0] > 8).numpy(), values[batch.index, 0] > 8)


def test_views_are_drawn_anew_from_the_visits_stream() -> None:
    place = learner(batch_size=12)
    (batch,) = draw_batches(client(12, place), place.training)
    plain = place.normalise(batch.pixels)
    assert torch.equal(batch.view(), plain)
    assert torch.equal(batch.view(CropFlip(padding=0, flip=1.0)), plain.flip(3))
    some = CropFlip(padding=2, flip=0.5)
    first, second = batch.view(some), batch.view(some)
    assert not torch.equal(first, second)
    (again,) = draw_batches(client(12, place), place.training)
    again.view(CropFlip(padding=0, flip=1.0))
    assert torch.equal(again.view(some), first)


def test_what_is_noted_is_a_mean_over_samples() -> None:
    place, notes = learner(batch_size=4), Notes()
    for batch in draw_batches(client(10, place), place.training, notes=notes):
        batch.note(step=batch.step, square=torch.tensor(float(batch.step**2), requires_grad=True))
        if batch.step == 2:
            batch.note(last=7.0)
    # Batches of 4, 4 and 2.
    assert notes.means() == {
        "step": pytest.approx((4 * 1 + 2 * 2) / 10),
        "square": pytest.approx((4 * 1 + 2 * 4) / 10),
        "last": 7.0,
    }


@pytest.mark.parametrize("shape", [(12,), (12, 3)], ids=["labels", "rows"])
def test_targets_stand_in_for_the_labels(shape: tuple[int, ...]) -> None:
    place = learner(batch_size=5)
    targets = np.arange(np.prod(shape)).reshape(shape)
    for labelled in (True, False):
        visited = client(12, place, labels=labelled)
        for batch in draw_batches(visited, place.training, targets=targets):
            assert np.array_equal(batch.y.numpy(), targets[batch.index])


def test_a_second_run_of_batches_can_have_a_stream_of_its_own() -> None:
    """Two runs at once: the augmentations of the first are what they are without the second."""
    place = learner(batch_size=4, augment={"name": "crop_flip", "padding": 2})
    visited = client(12, place)
    alone = [batch.x for batch in draw_batches(at_stream(visited, 5), place.training)]
    found = []
    beside = draw_batches(at_stream(visited, 6), place.training, generator=torch.Generator())
    drawn = draw_batches(at_stream(visited, 5), place.training)
    for batch, other in zip(drawn, beside, strict=True):
        found.append(batch.x)
        assert other.generator is not batch.generator
    assert all(torch.equal(one, two) for one, two in zip(alone, found, strict=True))


def at_stream(visited: Client, seed: int) -> Client:
    return replace(visited, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 1), (9, 1), (9, 3), (40, 32)], ids=str)
def test_a_device_is_given_the_samples_that_lie_in_memory(
    layout: Layout, sizes: tuple[int, int]
) -> None:
    """The way that batches take on a GPU and the one that they take on a CPU: to the last
    stride."""
    held, wanted = sizes
    place = learner(layout=layout)
    one, index = client(held, place), np.random.default_rng(1).integers(0, held, wanted)
    first, second = (
        gather(place, one.x, one.y)(index) for gather in (_gather_in_memory, _gather_on_device)
    )
    for mine, theirs in zip(first, second, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
        assert mine.dtype == theirs.dtype


# -- settings of one visit -------------------------------------------------------------------------


def test_settings_by_name_replace_those_of_the_run() -> None:
    run = LocalTraining(lr=0.3, epochs=4, batch_size=7)
    found = resolve_settings(run, {"lr": 0.1, "augment": Unchanged()})
    assert (found.lr, found.epochs, found.batch_size) == (0.1, 4, 7)
    assert isinstance(found.augment, Unchanged)
    assert run.lr == 0.3
    assert resolve_settings(run, None) is resolve_settings(run, {}) is run


@pytest.mark.parametrize(
    ("changes", "epochs", "steps"),
    [
        ({"epochs": 2}, 2, None),
        ({"steps": 3}, 9, 3),
        ({"epochs": 2, "steps": 3}, 2, 3),
        ({"lr": 0.5}, 9, 5),
    ],
    ids=str,
)
def test_epochs_that_are_asked_for_count(
    changes: dict[str, Any], epochs: int, steps: int | None
) -> None:
    """Also in a run whose visits are counted in steps."""
    found = resolve_settings(LocalTraining(epochs=9, steps=5), changes)
    assert (found.epochs, found.steps) == (epochs, steps)


@pytest.mark.parametrize("name", ["epoch", "rounds", *OF_THE_PLACE])
def test_settings_that_no_visit_has_are_refused(name: str) -> None:
    rule = rf"a Fit's settings are those of one visit: optimizer, lr, .*; got '{name}'"
    with pytest.raises(RayflError, match=rule):
        resolve_settings(LocalTraining(), {"lr": 0.1, name: None})


def test_the_name_of_an_augmentation_is_none() -> None:
    with pytest.raises(RayflError, match=r"not the name of one; got 'none'\. Give Unchanged\(\)"):
        resolve_settings(LocalTraining(), {"augment": "none"})
