"""Many copies trained in lockstep end where each would end alone, but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from rayfl.errors import RayflError
from rayfl.learn import stacked_fit
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.fit import carry_out
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit, Pull, Trained
from rayfl.learn.losses.base import CrossEntropy, SampleLoss
from rayfl.learn.losses.gce import gce
from rayfl.learn.losses.symmetric_ce import symmetric_ce
from rayfl.learn.network_stack import Rows, Stack, list_layers
from rayfl.learn.resident import Resident
from rayfl.learn.stacked_fit import (
    can_stack,
    can_stack_network,
    carry_out_together,
    count_copies,
    pad_batches,
)
from rayfl.models.mlp import MLP, Linear
from rayfl.protocol import Client, Vector
from tests.learn.toys import client, conv_net, dropout_net, learner, linear_net, seeded, start

SIZES = (13, 4, 40, 1, 13)
Build = Callable[[], nn.Module]


def mlp() -> nn.Module:
    return seeded(lambda: MLP(hidden=(12, 7)).build((8, 8, 2), 3))


def softmax_regression() -> nn.Module:
    return seeded(lambda: Linear().build((8, 8, 2), 3))


def smooth_net() -> nn.Module:
    layers = (
        nn.Flatten(),
        nn.Linear(128, 9, bias=False),
        nn.Tanh(),
        nn.Linear(9, 5),
        nn.GELU(),
        nn.Linear(5, 3),
    )
    return seeded(lambda: nn.Sequential(*layers))


def deep_linear_net() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(128, 6), nn.Linear(6, 5, bias=False), nn.Linear(5, 3)
        )
    )


def group_norm_net() -> nn.Module:
    """Nothing that is written out: convolutions and a normalisation without running statistics."""
    layers = (
        nn.Conv2d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    return seeded(lambda: nn.Sequential(*layers))


def frozen_net() -> nn.Module:
    net = linear_net()
    next(net.parameters()).requires_grad_(False)
    return net


WishOf = Callable[[int, Vector, int], Fit]
"""The wish of client k, given where it begins and how many samples it has."""


def plain(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin)


def clients_at(place: Learner, sizes: Sequence[int]) -> list[Client]:
    return [client(size, place, seed=k) for k, size in enumerate(sizes)]


def both(
    build: Build, wish_of: WishOf = plain, sizes: Sequence[int] = SIZES, **given: Any
) -> tuple[list[Trained], list[Trained], tuple[Learner, Learner]]:
    """What each client gets when it is trained alone and when all are trained together, from
    different weights each."""
    places = learner(build, **given), learner(build, **given)
    begin = start(build)
    wishes = [wish_of(k, begin + np.float32(0.01 * k), size) for k, size in enumerate(sizes)]
    alone = [
        carry_out(visited, wish)
        for visited, wish in zip(clients_at(places[0], sizes), wishes, strict=True)
    ]
    clients = clients_at(places[1], sizes)
    assert all(can_stack(wish, one) for wish, one in zip(wishes, clients, strict=True))
    return alone, carry_out_together(places[1], clients, wishes), places


def assert_close(alone: Sequence[Trained], together: Sequence[Trained]) -> None:
    for expected, found in zip(alone, together, strict=True):
        np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=2e-5)
        assert (found.steps, found.samples) == (expected.steps, expected.samples)


# -- the same as alone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build", [linear_net, softmax_regression, mlp, deep_linear_net, smooth_net, group_norm_net]
)
@pytest.mark.parametrize(
    "given",
    [
        {"lr": 0.1, "batch_size": 5},
        {"lr": 0.1, "batch_size": 8, "epochs": 3, "momentum": 0.9, "weight_decay": 0.01},
        {"lr": 0.01, "batch_size": 8, "steps": 4, "optimizer": "adam"},
        {"lr": 0.1, "batch_size": 6, "drop_last": True, "epochs": 2},
    ],
    ids=["sgd", "momentum", "adam", "drop_last"],
)
def test_copies_end_where_each_ends_alone(build: Build, given: dict[str, Any]) -> None:
    alone, together, _ = both(build, **given)
    assert_close(alone, together)


def keep_some(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, keep=np.arange(size) % (k + 2) == 0)


def weigh_samples(k: int, begin: Vector, size: int) -> Fit:
    # Not every client has weights of its own.
    return Fit(begin, sample_weights=None if k % 2 else np.linspace(0, k + 1, size))


def soften_targets(k: int, begin: Vector, size: int) -> Fit:
    drawn = np.random.default_rng(k).random((size, 3)).astype(np.float32)
    return Fit(begin, targets=drawn / drawn.sum(axis=1, keepdims=True))


def replace_labels(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, targets=(np.arange(size) + k) % 3)


def narrow_targets(k: int, begin: Vector, size: int) -> Fit:
    targets = (np.arange(size) + k) % 3
    return Fit(begin, targets=targets.astype(np.int32 if k % 2 else np.int64))


def double_targets(k: int, begin: Vector, size: int) -> Fit:
    wish = soften_targets(k, begin, size)
    assert wish.targets is not None
    return Fit(begin, targets=wish.targets.astype(np.float64 if k % 2 else np.float32))


def pull_back(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, pull=Pull(begin - np.float32(0.5 + k), 0.1 * (k + 1)))


def pull_to_one_model(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, pull=Pull(ONE_MODEL[: len(begin)], 0.2))


def correct_drift(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, drift=np.linspace(-0.2 * k, 0.1, len(begin), dtype=np.float32))


def clip_slopes(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, clip=0.2)


def change_all(k: int, begin: Vector, size: int) -> Fit:
    drift = np.full(len(begin), 0.05, np.float32)
    return Fit(begin, pull=Pull(begin + 1, 0.3), drift=drift, clip=0.5, loss=ROBUST[0])


def own_settings(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, settings={"lr": 0.05, "epochs": 3, "batch_size": 4})


class Generalised(SampleLoss):
    """A robust loss, whose slope is nowhere written out."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return gce(logits, targets, 0.7)


class Symmetric(SampleLoss):
    """Another one."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return symmetric_ce(logits, targets)


ROBUST = (Generalised(), Symmetric())
ONE_MODEL = np.random.default_rng(3).normal(0, 1, 1 << 12).astype(np.float32)


def robust(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, loss=ROBUST[0])


def robust_and_weighed(k: int, begin: Vector, size: int) -> Fit:
    return Fit(begin, loss=ROBUST[1], sample_weights=np.linspace(0, 2, size))


@pytest.mark.parametrize("build", [mlp, group_norm_net], ids=["by hand", "vmap"])
@pytest.mark.parametrize(
    "wish_of",
    [
        keep_some,
        weigh_samples,
        soften_targets,
        replace_labels,
        narrow_targets,
        double_targets,
        pull_back,
        pull_to_one_model,
        correct_drift,
        clip_slopes,
        change_all,
        own_settings,
        robust,
        robust_and_weighed,
    ],
    ids=lambda found: found.__name__,
)
def test_every_wish_that_can_be_stacked_ends_where_it_ends_alone(
    build: Build, wish_of: WishOf
) -> None:
    given: dict[str, Any] = {"lr": 0.2, "batch_size": 5, "epochs": 2, "momentum": 0.5}
    alone, together, _ = both(build, wish_of, **given)
    assert_close(alone, together)
    without, _, _ = both(build, **given)
    # The client with one sample keeps it, has no spread of weights, and so on.
    changed = [np.abs(a.weights - b.weights).max() for a, b in zip(alone, without, strict=True)]
    assert sorted(changed)[-3] > 1e-3


def mixed(k: int, begin: Vector, size: int) -> Fit:
    """Every client another kind."""
    kinds = (plain, robust, pull_back, soften_targets, own_settings, clip_slopes, correct_drift)
    return kinds[k % len(kinds)](k, begin, size)


def test_kinds_are_stacked_apart() -> None:
    sizes = (13, 4, 40, 1, 13, 9, 7, 22, 5, 13)
    alone, together, _ = both(mlp, mixed, sizes, lr=0.2, batch_size=5, momentum=0.9)
    assert_close(alone, together)


def test_kinds_that_are_alike_share_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal losses and settings are alike, whether or not they are the same object."""
    sizes: list[int] = []
    fit_stack = stacked_fit._fit_stack

    def watched(learner: Learner, jobs: Any) -> list[Trained]:
        sizes.append(len(jobs))
        return fit_stack(learner, jobs)

    monkeypatch.setattr(stacked_fit, "_fit_stack", watched)
    both(mlp, lambda k, w, n: Fit(w, loss=CrossEntropy(), settings={"lr": 0.1}))
    assert sizes == [5]
    both(mlp, lambda k, w, n: Fit(w, settings={"lr": 0.1 * (k % 2 + 1)}))
    assert sizes[1:] == [3, 2]


def test_a_lone_wish_makes_a_stack_of_one() -> None:
    alone, together, _ = both(mlp, pull_back, (7,), lr=0.2, batch_size=3)
    assert_close(alone, together)


def test_steps_that_one_client_takes_more_do_not_touch_the_others() -> None:
    """Momentum would carry a copy on that has no steps left."""
    given: dict[str, Any] = {"lr": 0.2, "batch_size": 2, "momentum": 0.9, "weight_decay": 0.1}
    alone, together, _ = both(mlp, pull_back, (2, 40, 4), **given)
    assert [found.steps for found in together] == [1, 20, 2]
    assert_close(alone, together)


@pytest.mark.parametrize("build", [mlp, group_norm_net], ids=["by hand", "vmap"])
def test_samples_are_counted_for_each_client(build: Build) -> None:
    alone, together, places = both(build, batch_size=6, epochs=2, drop_last=True)
    assert [found.samples for found in together] == [24, 0, 72, 0, 24]
    assert [found.steps for found in together] == [4, 0, 12, 0, 4]
    assert places[0].passes.take() == (120, 120)
    # Of a stack, the visits count them: its network is called for all copies at once.
    assert places[1].passes.take() == (0, 0)
    assert places[1].passes.counting
    # Less than a batch: the weights come back as they were, to the bit.
    for k in (1, 3):
        assert together[k].weights.tobytes() == alone[k].weights.tobytes()


def test_what_was_loaded_before_a_stack_is_gone_after_it() -> None:
    place = learner(mlp)
    clients = clients_at(place, (5, 5))
    place.resident(start(mlp), "teacher")
    carry_out_together(place, clients, [Fit(start(mlp))] * 2)
    with pytest.raises(RayflError, match="got none for 'teacher'"):
        place.resident(name="teacher")


def test_cohorts_beyond_the_memory_of_a_stack_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole, _ = both(mlp, pull_back, batch_size=5)
    monkeypatch.setattr(stacked_fit, "count_copies", lambda parameters: 2)
    _, split, _ = both(mlp, pull_back, batch_size=5)
    for one, other in zip(whole, split, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parameters", [1, 4810, 1 << 20, 100 << 20])
def test_a_stack_is_as_large_as_its_memory_allows(parameters: int) -> None:
    copies, each = count_copies(parameters), 3 * 4 * parameters
    assert copies == 1 or copies * each <= stacked_fit.STACK_BYTES
    assert (copies + 1) * each > stacked_fit.STACK_BYTES


def test_a_stack_is_kept_and_grows() -> None:
    place = learner(mlp)
    small = stacked_fit._stack_for(place, 2)
    assert stacked_fit._stack_for(place, 1) is small
    assert len(stacked_fit._stack_for(place, 5).parameters) == 5
    assert len(stacked_fit._stack_for(place, 3).parameters) == 5


# -- what can be stacked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "given", "possible"),
    [
        (mlp, {}, True),
        (group_norm_net, {}, True),
        (conv_net, {}, False),
        (dropout_net, {}, False),
        (frozen_net, {}, False),
        (mlp, {"augment": "crop_flip"}, True),
    ],
)
def test_running_statistics_dropout_and_frozen_parts_are_not_stacked(
    build: Build, given: dict[str, Any], possible: bool
) -> None:
    assert can_stack_network(learner(build, **given)) is possible


W = start(linear_net)


@pytest.mark.parametrize(
    ("wish", "given", "possible"),
    [
        (Fit(W), {}, True),
        (Fit(W, loss=ROBUST[0], keep=np.ones(9, np.bool_), clip=1.0), {}, True),
        (Fit(W, pull=Pull(W, 0.1), drift=W, sample_weights=np.ones(9)), {}, True),
        (Fit(W, settings={"lr": 0.1}), {}, True),
        (Fit(W), {"augment": "crop_flip"}, False),
        (Fit(W, settings={"augment": Unchanged()}), {"augment": "crop_flip"}, True),
        (Fit(W, settings={"augment": CropFlip()}), {}, False),
        (Fit(W, loss=lambda net, batch: net(batch.x).mean()), {}, False),
        (Fit(W, adjust=lambda parameters, gradient: None), {}, False),
        (Fit(W, after_step=lambda resident: None), {}, False),
        (Fit(W, schedule=lambda step: 1.0), {}, False),
        (Fit(W, memory=W), {}, False),
        (Fit(W, remember=True), {}, False),
        (Fit({"only": W}), {}, False),
    ],
)
def test_wishes_that_must_be_carried_out_alone(
    wish: Fit, given: dict[str, Any], possible: bool
) -> None:
    assert can_stack(wish, client(9, learner(linear_net, **given))) is possible


def test_one_alone_says_what_is_missing() -> None:
    unlabelled = client(9, learner(linear_net), labels=False)
    assert not can_stack(Fit(W), unlabelled)
    assert can_stack(Fit(W, targets=np.zeros(9, np.int64)), unlabelled)
    empty = unlabelled.on(np.zeros((0, 8, 8, 2), np.uint8), np.zeros(0, np.int64))
    assert not can_stack(Fit(W), empty)
    assert not can_stack(Fit(W, client=empty), client(9, learner(linear_net)))


def test_arrays_of_another_length_are_refused_in_a_stack_too() -> None:
    place = learner(linear_net)
    wishes = [Fit(W), Fit(W, keep=np.ones(8, np.bool_))]
    with pytest.raises(RayflError, match="keep has one entry for each of 9 samples; got 8"):
        carry_out_together(place, clients_at(place, (5, 9)), wishes)


def test_another_visitor_of_the_same_place_may_stand_in() -> None:
    """The wish's client is whose data, stream and labels count."""
    places = learner(linear_net, lr=0.2), learner(linear_net, lr=0.2)
    found = []
    for place, carry in zip(places, (False, True), strict=True):
        visited, other = clients_at(place, (9, 13))
        wish = Fit(W, client=visited.on(other.x, other.labels))
        if carry:
            found += carry_out_together(place, [visited], [wish])
        else:
            found.append(carry_out(visited, wish))
    assert_close(found[:1], found[1:])
    assert found[0].samples == 13


@pytest.mark.parametrize(
    ("build", "layers"),
    [
        (linear_net, 2),
        (mlp, 6),
        (smooth_net, 6),
        (softmax_regression, 2),
        (group_norm_net, None),
        (conv_net, None),
    ],
)
def test_chains_of_linear_and_pointwise_layers_are_list_layers(
    build: Build, layers: int | None
) -> None:
    chain = list_layers(build())
    assert (None if chain is None else len(chain)) == layers


@pytest.mark.parametrize("build", [mlp, smooth_net, group_norm_net])
def test_forward_and_gradient_are_those_of_every_copy(build: Build) -> None:
    residents = [Resident(seeded(lambda: build(), seed), torch.device("cpu")) for seed in range(3)]
    stack = Stack(residents[0], 3)
    stack.load([resident.dump() + np.float32(0.1 * k) for k, resident in enumerate(residents)])
    x = torch.randn(3, 5, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    rows = Rows(stack, 3)
    logits = rows.forward(x)
    rows.backward(logits.square().sum())
    for k, resident in enumerate(residents):
        resident.load(stack.dump(3)[k])
        answered = resident.net(x[k])
        answered.square().sum().backward()
        torch.testing.assert_close(logits[k], answered, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(stack.gradient[k], resident.gradient, rtol=1e-4, atol=1e-4)


# -- batches of different lengths ------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(deadline=None)
def test_rows_are_filled_up_with_images_that_count_nothing(lengths: list[int]) -> None:
    active = [np.arange(length) for length in lengths]
    starts = 100 * np.arange(len(lengths))
    index, share = pad_batches(active, starts)
    assert index.shape == share.shape == (len(lengths), max(lengths))
    for k, length in enumerate(lengths):
        assert index[k, :length].tolist() == list(range(100 * k, 100 * k + length))
        assert share[k].tolist() == [np.float32(1 / length)] * length + [0] * (
            max(lengths) - length
        )
        assert (index[k, length:] == 100 * k).all()
