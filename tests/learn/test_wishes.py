"""Every field of a wish, against loops written out with torch's own modules and optimisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.errors import RayflError
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.batches import Batch, draw_batches, resolve_settings
from rayfl.learn.fit import carry_out
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit, Pull
from rayfl.learn.losses.base import CrossEntropy
from rayfl.learn.optimisers import make_optimiser
from rayfl.learn.resident import Resident
from rayfl.protocol import Client, Shard, Vector
from tests.learn.toys import client, conv_net, learner, linear_net, start, train

SIZE = 23
SETTINGS = {"lr": 0.1, "momentum": 0.9, "batch_size": 6, "epochs": 2}
Change = Callable[[list[nn.Parameter]], object]


def place_of(**more: Any) -> Learner:
    return learner(linear_net, **{**SETTINGS, **more})


def by_hand(
    visited: Client,
    loss: Callable[[Tensor, Batch], Tensor] | None = None,
    change: Change | None = None,
    keep: Any = None,
    targets: Any = None,
    rates: Callable[[int], float] | None = None,
    **changed: Any,
) -> Vector:
    """The same batches through torch's own module and optimiser."""
    settings = resolve_settings(visited.learner.training, changed)
    net = linear_net()
    parameters = list(net.parameters())
    plain = torch.optim.SGD(parameters, settings.lr, settings.momentum)
    for batch in draw_batches(visited, settings, keep, targets):
        plain.zero_grad()
        logits = net(batch.x.contiguous())
        value = functional.cross_entropy(logits, batch.y) if loss is None else loss(logits, batch)
        value.backward()  # type: ignore[no-untyped-call]
        if change is not None:
            change(parameters)
        if rates is not None:
            plain.param_groups[0]["lr"] = settings.lr * rates(batch.step)
        plain.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).numpy()


def assert_same(found: Vector, expected: Vector) -> None:
    """The same but for rounding, and something has moved."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(found - start()).max() > 0.01


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


def test_changes_come_in_their_order_and_clipping_last() -> None:
    """Pull, drift, adjust, clip: seen by one step of plain descent."""
    anchor = start() - np.float32(1.0)
    drift = np.full(len(start()), 2.0, np.float32)
    seen: list[Vector] = []

    def adjust(parameters: Tensor, gradient: Tensor) -> None:
        assert torch.equal(parameters, torch.from_numpy(start()))
        seen.append(gradient.numpy().copy())
        gradient.fill_(3.0)

    own = {"steps": 1, "momentum": 0.0, "lr": 1.0}

    def flat_loss(net: nn.Module, batch: Batch) -> Tensor:
        return 0.0 * net(batch.x).sum()  # type: ignore[no-any-return]

    changes: dict[str, Any] = {"pull": Pull(anchor, 0.5), "drift": drift, "adjust": adjust}
    wish = Fit(start(), loss=flat_loss, settings=own, clip=6.0, **changes)
    found = carry_out(client(SIZE, place_of()), wish).weights
    np.testing.assert_allclose(seen[0], 0.5 + 2.0, rtol=1e-5)
    assert np.linalg.norm((start() - found).astype(np.float64)) == pytest.approx(6.0, rel=1e-5)
    np.testing.assert_allclose(start() - found, 6.0 / np.sqrt(len(start())), rtol=1e-4)


@pytest.mark.parametrize("limit", [0.3, 2.0, 1e9])
def test_clipping_is_torchs(limit: float) -> None:
    def clip(parameters: list[nn.Parameter]) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, limit)

    found = train(client(SIZE, place_of()), start(), clip=limit)
    assert_same(found, by_hand(client(SIZE, place_of()), change=clip))


# -- losses and what they note ---------------------------------------------------------------------


def test_steps_samples_and_means() -> None:
    def loss(net: nn.Module, batch: Batch) -> Tensor:
        value = functional.cross_entropy(net(batch.x), batch.y)
        batch.note(loss=value, size=float(len(batch)))
        return value

    place = place_of()
    found = carry_out(client(SIZE, place), Fit(start(), loss=loss))
    assert (found.steps, found.samples) == (8, 46)
    # Three batches of six and one of five, twice.
    assert found.means["size"] == pytest.approx((3 * 36 + 25) / 23)
    assert 0 < found.means["loss"] < 3
    assert set(found.means) == {"size", "loss"}
    assert place.passes.take() == (46, 46)
    assert np.array_equal(found.weights, train(client(SIZE, place_of()), start()))
    assert carry_out(client(SIZE, place_of()), Fit(start())).means == {}


def test_a_loss_that_is_none_skips_the_step_and_its_momentum() -> None:
    """A skipped batch leaves the network, the momentum and the count of steps as they are."""

    def loss(net: nn.Module, batch: Batch) -> Tensor | None:
        logits = net(batch.x)
        return None if batch.step % 2 else functional.cross_entropy(logits, batch.y)

    place = place_of(weight_decay=0.1)
    after: list[Vector] = []
    wish = Fit(start(), loss=loss, after_step=lambda resident: after.append(resident.dump()))
    found = carry_out(client(SIZE, place), wish)
    assert (found.steps, found.samples, len(after)) == (4, 4 * 6, 4)
    assert place.passes.take() == (46, 24)

    net = linear_net()
    plain = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=0.1)
    for batch in draw_batches(client(SIZE, place), place.training):
        if not batch.step % 2:
            plain.zero_grad()
            functional.cross_entropy(net(batch.x.contiguous()), batch.y).backward()  # type: ignore[no-untyped-call]
            plain.step()
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    assert_same(found.weights, expected.numpy())


def test_any_loss_of_samples() -> None:
    class Squared(CrossEntropy):
        def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
            return super().__call__(logits, targets).square()

        def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
            return self(logits, targets).mean()

    found = train(client(SIZE, place_of()), start(), loss=Squared())

    def by_torch(logits: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(logits, batch.y, reduction="none").square().mean()

    assert_same(found, by_hand(client(SIZE, place_of()), by_torch))


def test_after_every_step_the_network_is_shown() -> None:
    seen: list[Vector] = []

    def follow(resident: Resident) -> None:
        seen.append(resident.dump())
        resident.parameters.mul_(0.5)

    found = train(client(SIZE, place_of(momentum=0.0)), start(), after_step=follow)
    assert len(seen) == 8
    np.testing.assert_allclose(found, 0.5 * seen[-1])


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_visit_goes_on_from_memory_as_if_it_had_not_ended(optimizer: str) -> None:
    """Whole-batch steps: 3 and then 2 are 5, to the bit."""
    settings = {"optimizer": optimizer, "lr": 0.01, "batch_size": SIZE}

    def visit(steps: int, begin: Vector, memory: Any = None) -> Any:
        own = {"steps": steps, "batch_size": SIZE}
        wish = Fit(begin, loss=in_order, settings=own, memory=memory, remember=True)
        return carry_out(client(SIZE, place_of(**settings)), wish)

    first = visit(3, start())
    second = visit(2, first.weights, first.memory)
    whole = visit(5, start())
    assert np.array_equal(second.weights, whole.weights)
    assert np.array_equal(second.memory, whole.memory)
    assert not np.array_equal(visit(2, first.weights).weights, whole.weights)


def in_order(net: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of a whole batch, whose rows are summed in the order of the client's data."""
    order = torch.from_numpy(np.argsort(batch.index))
    return functional.cross_entropy(net(batch.x[order]), batch.y[order])


@pytest.mark.parametrize("remember", [False, True])
def test_memory_is_there_where_it_was_asked_for(remember: bool) -> None:
    found = carry_out(client(SIZE, place_of()), Fit(start(), remember=remember))
    assert (found.memory is not None) == remember
    forgetful = train(client(SIZE, place_of()), start())
    assert np.array_equal(found.weights, forgetful)


def test_a_memory_may_be_read_only_and_stays_as_it_is() -> None:
    first = carry_out(client(SIZE, place_of()), Fit(start(), remember=True))
    first.memory.flags.writeable = False
    before = first.memory.copy()
    train(client(SIZE, place_of()), first.weights, memory=first.memory)
    assert np.array_equal(first.memory, before)


# -- several networks ------------------------------------------------------------------------------


def pair_loss(nets: Mapping[str, nn.Module], batch: Batch) -> Tensor:
    """Two networks that do not meet."""
    one = functional.cross_entropy(nets["one"](batch.x), batch.y)
    other = functional.cross_entropy(nets["other"](batch.x), batch.y)
    return one + 2.0 * other


def test_several_networks_are_trained_by_one_loss() -> None:
    begin = {"one": start(), "other": start() * np.float32(0.5)}
    place = place_of()
    found = carry_out(client(SIZE, place), Fit(begin, loss=pair_loss))
    assert list(found.weights) == ["one", "other"]
    assert place.passes.take() == (2 * 46, 2 * 46)
    alone = train(client(SIZE, place_of()), begin["one"])
    np.testing.assert_allclose(found.weights["one"], alone, rtol=1e-5, atol=1e-6)

    def doubled(net: nn.Module, batch: Batch) -> Tensor:
        return 2.0 * functional.cross_entropy(net(batch.x), batch.y)

    other = train(client(SIZE, place_of()), begin["other"], loss=doubled)
    np.testing.assert_allclose(found.weights["other"], other, rtol=1e-5, atol=1e-6)
    assert (found.steps, found.samples) == (8, 46)


def test_one_network_by_name_comes_back_by_name() -> None:
    def loss(nets: Mapping[str, nn.Module], batch: Batch) -> Tensor:
        return functional.cross_entropy(nets["only"](batch.x), batch.y)

    found = carry_out(client(SIZE, place_of()), Fit({"only": start()}, loss=loss))
    assert np.array_equal(found.weights["only"], train(client(SIZE, place_of()), start()))


def test_several_networks_remember_apart_and_are_shown_by_name() -> None:
    begin = {"one": start(), "other": start() * np.float32(0.5)}
    shown: list[set[str]] = []
    wish = Fit(
        begin,
        loss=pair_loss,
        after_step=lambda residents: shown.append(set(residents)),
        remember=True,
    )
    found = carry_out(client(SIZE, place_of()), wish)
    assert shown == [{"one", "other"}] * 8
    assert set(found.memory) == {"one", "other"}
    assert not np.array_equal(found.memory["one"], found.memory["other"])
    again = Fit(found.weights, loss=pair_loss, memory=found.memory)
    on = carry_out(client(SIZE, place_of()), again).weights
    alone = Fit(found.weights["one"], memory=found.memory["one"])
    expected = carry_out(client(SIZE, place_of()), alone).weights
    np.testing.assert_allclose(on["one"], expected, rtol=1e-5, atol=1e-6)


def test_an_optimiser_never_outlives_its_visit() -> None:
    """Two equal wishes of one visit begin with no momentum each."""
    place = place_of()
    resident = place.shape_of()
    fresh = make_optimiser(resident, place.training).dump()
    assert not fresh.any()
    first = carry_out(client(SIZE, place), Fit(start(), remember=True))
    second = carry_out(client(SIZE, place), Fit(start(), remember=True))
    assert np.array_equal(first.memory, second.memory)
    assert np.array_equal(first.weights, second.weights)
