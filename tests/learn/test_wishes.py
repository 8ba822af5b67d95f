"""Every field of a wish, against loops written out with torch's own modules and optimisers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.errors import RayflError
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.batches import Batch
from rayfl.learn.fit import carry_out
from rayfl.learn.local_fit import Fit, Pull
from rayfl.protocol import Shard, Vector
from tests.learn.toys import client, conv_net, learner, linear_net, start, train
from tests.learn.wishes_toys import SETTINGS, SIZE, assert_same, by_hand, place_of


def half() -> Any:
    return np.arange(SIZE) % 2 == 0


def factors() -> Any:
    return np.linspace(0.0, 2.0, SIZE)


def rows_of_probabilities() -> Any:
    drawn = np.random.default_rng(1).random((SIZE, 3)).astype(np.float32)
    return drawn / drawn.sum(axis=1, keepdims=True)


# -- samples and targets ---------------------------------------------------------------------------


def test_only_kept_samples_are_trained_on() -> None:
    found = carry_out(client(SIZE, place_of()), Fit(start(), keep=half()))
    assert_same(found.weights, by_hand(client(SIZE, place_of()), keep=half()))
    assert (found.steps, found.samples) == (4, 24)


def test_nobody_kept_is_nothing_learnt() -> None:
    place = place_of()
    found = carry_out(client(SIZE, place), Fit(start(), keep=np.zeros(SIZE, np.bool_)))
    assert (found.steps, found.samples) == (0, 0)
    assert np.array_equal(found.weights, start())
    assert place.passes.take() == (0, 0)


def test_every_sample_counts_by_its_weight() -> None:
    """The batch is divided by its size, not by the sum of the weights."""

    def weighted(logits: Tensor, batch: Batch) -> Tensor:
        losses = functional.cross_entropy(logits, batch.y, reduction="none")
        weights = torch.tensor(factors()[batch.index], dtype=torch.float32)
        return (losses * weights).sum() / len(batch)

    found = train(client(SIZE, place_of()), start(), sample_weights=factors())
    assert_same(found, by_hand(client(SIZE, place_of()), weighted))
    plain = train(client(SIZE, place_of()), start())
    ones = train(client(SIZE, place_of()), start(), sample_weights=np.ones(SIZE))
    np.testing.assert_allclose(ones, plain, rtol=1e-5, atol=1e-6)
    assert np.abs(found - plain).max() > 0.01


@pytest.mark.parametrize("labels", [True, False])
def test_hard_targets_stand_in_for_labels(labels: bool) -> None:
    targets = np.arange(SIZE) % 3
    found = train(client(SIZE, place_of(), labels=labels), start(), targets=targets)
    assert_same(found, by_hand(client(SIZE, place_of()), targets=targets))
    relabelled = replace(client(SIZE, place_of()), labels=targets)
    assert np.array_equal(found, train(relabelled, start()))


@pytest.mark.parametrize("labels", [True, False])
def test_soft_targets_are_rows_of_probabilities(labels: bool) -> None:
    def soft(logits: Tensor, batch: Batch) -> Tensor:
        q = torch.from_numpy(rows_of_probabilities()[batch.index])
        return -(q * logits.log_softmax(1)).sum(1).mean()

    rows = rows_of_probabilities()
    found = train(client(SIZE, place_of(), labels=labels), start(), targets=rows)
    assert_same(found, by_hand(client(SIZE, place_of()), soft))


def test_rows_of_one_class_are_labels() -> None:
    targets = np.arange(SIZE) % 3
    hard = train(client(SIZE, place_of()), start(), targets=targets)
    rows = np.eye(3, dtype=np.float32)[targets]
    np.testing.assert_allclose(train(client(SIZE, place_of()), start(), targets=rows), hard, 1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8])
def test_labels_may_be_integers_of_any_width(dtype: Any) -> None:
    targets = np.arange(SIZE) % 3
    expected = train(client(SIZE, place_of()), start(), targets=targets)
    narrow = targets.astype(dtype)
    assert np.array_equal(train(client(SIZE, place_of()), start(), targets=narrow), expected)
    relabelled = replace(client(SIZE, place_of()), state={"y": narrow})
    assert np.array_equal(train(relabelled, start()), expected)


def test_probabilities_may_be_in_double() -> None:
    rows = rows_of_probabilities()
    expected = train(client(SIZE, place_of()), start(), targets=rows)
    double = rows.astype(np.float64)
    assert np.array_equal(train(client(SIZE, place_of()), start(), targets=double), expected)


@pytest.mark.parametrize(
    ("wish", "match"),
    [
        ({"keep": np.ones(SIZE - 1, np.bool_)}, rf"keep has one entry for each of {SIZE} samples"),
        ({"keep": np.arange(SIZE)}, r"keep is a mask; got int64"),
        ({"sample_weights": np.ones(SIZE + 1)}, r"sample_weights has one entry for each of 23"),
        (
            {"targets": np.zeros(SIZE - 2, np.int64)},
            r"targets has one entry for each of 23.*got 21",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arrays_of_another_length_are_refused(wish: dict[str, Any], match: str) -> None:
    with pytest.raises(RayflError, match=match):
        carry_out(client(SIZE, place_of()), Fit(start(), **wish))


def test_labels_out_of_bounds_are_no_class() -> None:
    """They used to be class 0."""
    rule = (
        r"training with CrossEntropy needs labels; got client 0, whose labels are out of bounds\."
    )
    unlabelled = client(SIZE, place_of(), labels=False)
    with pytest.raises(RayflError, match=rule + " Declare the set in the method's `needs`"):
        carry_out(unlabelled, Fit(start()))
    with pytest.raises(RayflError, match=r"got the server, whose labels are out of bounds"):
        carry_out(replace(unlabelled, id=-1), Fit(start()))
    with pytest.raises(RayflError, match=r"got a batch whose labels are out of bounds"):
        carry_out(unlabelled, Fit(start(), loss=lambda net, batch: batch.y.float().mean()))
    found = carry_out(
        unlabelled, Fit(start(), loss=lambda net, batch: net(batch.x).square().mean())
    )
    assert found.steps == 8


def test_training_on_nothing_is_refused() -> None:
    empty = client(SIZE, place_of()).on(np.zeros((0, 8, 8, 2), np.uint8))
    with pytest.raises(RayflError, match=r"training needs images; got none \(client 0\)\. The ser"):
        carry_out(empty, Fit(start()))


def test_the_same_visitor_on_other_data() -> None:
    """A named set's images and labels, its own stream."""
    visited = client(SIZE, place_of())
    other = client(12, place_of(), seed=0)
    elsewhere = visited.on(Shard(other.x, other.labels))
    found = carry_out(visited, Fit(start(), client=elsewhere))
    assert found.samples == 24
    assert_same(found.weights, by_hand(client(12, place_of())))
    on_images = client(SIZE, place_of()).on(other.x, other.labels)
    again = carry_out(client(SIZE, place_of()), Fit(start(), client=on_images)).weights
    assert np.array_equal(again, found.weights)
    assert on_images.state == {}
    assert visited.on(other.x).labels is None


# -- settings and rates ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own", [{"epochs": 1}, {"lr": 0.03, "momentum": 0.0}, {"steps": 3}, {"batch_size": 5}], ids=str
)
def test_settings_by_name(own: dict[str, Any]) -> None:
    found = carry_out(client(SIZE, place_of()), Fit(start(), settings=own))
    assert_same(found.weights, by_hand(client(SIZE, place_of()), **own))
    other = {**SETTINGS, **own}
    assert np.array_equal(found.weights, train(client(SIZE, learner(linear_net, **other)), start()))


def test_a_visit_can_have_an_augmentation_of_its_own() -> None:
    flipped = {"augment": {"name": "crop_flip", "padding": 0, "flip": 1.0}}
    plain = train(client(SIZE, place_of()), start())
    augmented = train(client(SIZE, place_of(**flipped)), start())
    unchanged = {"augment": Unchanged()}
    again = train(client(SIZE, place_of(**flipped)), start(), settings=unchanged)
    assert np.array_equal(again, plain)
    assert not np.array_equal(augmented, plain)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(RayflError, match=r"a Fit's settings are those of one visit.*'learning_rat"):
        carry_out(client(SIZE, place_of()), Fit(start(), settings={"learning_rate": 0.1}))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_schedule_is_a_factor_of_the_rate(optimizer: str) -> None:
    def rates(step: int) -> float:
        return 1 / (1 + step)

    place = place_of(optimizer=optimizer, momentum=0.0)
    found = train(client(SIZE, place), start(), schedule=rates)
    if optimizer == "sgd":
        assert_same(found, by_hand(client(SIZE, place), rates=rates))
    still = train(client(SIZE, place), start(), schedule=lambda step: 0.0)
    assert np.array_equal(still, start())
    first = train(client(SIZE, place), start(), schedule=lambda step: float(step == 0))
    assert np.array_equal(first, train(client(SIZE, place), start(), settings={"steps": 1}))


def test_the_schedule_of_a_large_network_is_the_same() -> None:
    """Whose gradients stay where they are made."""
    ends = []
    for large in (False, True):
        place = place_of()
        place.shape_of().large = large
        ends.append(train(client(SIZE, place), start(), schedule=lambda step: 0.5**step))
    assert np.array_equal(ends[0], ends[1])


# -- changes of the gradient -----------------------------------------------------------------------


def split_like_parameters(flat: Vector) -> tuple[Tensor, ...]:
    """A flat vector in pieces, one a parameter."""
    lengths = [parameter.numel() for parameter in linear_net().parameters()]
    return torch.split(torch.from_numpy(flat), lengths)


def test_a_pull_is_a_proximal_gradient() -> None:
    anchor = start() + np.float32(0.05)
    pieces = split_like_parameters(anchor)

    def proximal(parameters: list[nn.Parameter]) -> None:
        for parameter, piece in zip(parameters, pieces, strict=True):
            assert parameter.grad is not None
            parameter.grad += 0.3 * (parameter.detach() - piece.view_as(parameter))

    found = train(client(SIZE, place_of()), start(), pull=Pull(anchor, 0.3))
    assert_same(found, by_hand(client(SIZE, place_of()), change=proximal))
    assert np.abs(found - train(client(SIZE, place_of()), start())).max() > 1e-3


def test_a_pull_of_nothing_changes_no_bit() -> None:
    plain = train(client(SIZE, place_of()), start())
    assert np.array_equal(train(client(SIZE, place_of()), start(), pull=Pull(start(), 0.0)), plain)


def test_statistics_are_not_pulled() -> None:
    place = learner(conv_net, **SETTINGS)
    begin = start(conv_net)
    anchor = begin.copy()
    anchor[place.shape_of().n_parameters :] = 99.0
    found = train(client(SIZE, place), begin, pull=Pull(anchor, 0.3))
    assert np.array_equal(found, train(client(SIZE, place), begin, pull=Pull(begin, 0.3)))


def test_a_drift_is_added_to_every_gradient() -> None:
    drift = np.linspace(-0.1, 0.1, len(start()), dtype=np.float32)
    pieces = split_like_parameters(drift)

    def corrected(parameters: list[nn.Parameter]) -> None:
        for parameter, piece in zip(parameters, pieces, strict=True):
            assert parameter.grad is not None
            parameter.grad += piece.view_as(parameter)

    found = train(client(SIZE, place_of()), start(), drift=drift)
    assert_same(found, by_hand(client(SIZE, place_of()), change=corrected))
