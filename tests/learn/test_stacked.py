"""Many copies trained in lockstep end where each would end alone, but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rayfl.learn.stacked import (
    Rows,
    Stack,
    copies_at_once,
    fit_together,
    padded,
    stackable,
    written_out,
)
from torch import Tensor, nn

from rayfl.learn import stacked
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit
from rayfl.learn.resident import Resident
from rayfl.models.mlp import MLP, Linear
from rayfl.protocol import Client
from tests.learn.toys import client, conv_net, dropout_net, learner, linear_net, seeded

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


def both(
    build: Build, sizes: tuple[int, ...] = SIZES, adjust: Any = None, **given: Any
) -> tuple[Any, Any, Learner]:
    """Each client's weights when trained alone and when trained together, from different weights
    each."""
    places = learner(build, **given), learner(build, **given)
    begin = Resident(build(), torch.device("cpu")).dump()
    starts = [begin + np.float32(0.01 * k) for k in range(len(sizes))]

    def clients(place: Learner) -> list[Client]:
        return [client(size, place, seed=k) for k, size in enumerate(sizes)]

    wishes = [Fit(start, adjust=adjust) for start in starts]
    alone = [
        wish.carried_out(visited) for visited, wish in zip(clients(places[0]), wishes, strict=True)
    ]
    return alone, fit_together(places[1], clients(places[1]), wishes), places[0]


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
    for expected, (found, _) in zip(alone, together, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_samples_are_counted_for_each_client() -> None:
    alone, together, place = both(mlp, batch_size=6, epochs=2, drop_last=True)
    assert [samples for _, samples in together] == [24, 0, 72, 0, 24]
    assert place.passes.take() == (120, 120)
    # Less than a batch: the weights come back as they were, to the bit.
    assert [together[k][0].tobytes() == alone[k].tobytes() for k in (1, 3)] == [True, True]


def test_gradients_are_adjusted_copy_by_copy() -> None:
    def pull(parameters: Tensor, gradient: Tensor) -> None:
        gradient.add_(parameters, alpha=0.3)

    alone, together, _ = both(mlp, adjust=pull, lr=0.2, batch_size=5)
    free, _, _ = both(mlp, lr=0.2, batch_size=5)
    for expected, (found, _), unpulled in zip(alone, together, free, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
        assert np.abs(expected - unpulled).max() > 0.01


def test_cohorts_beyond_the_memory_of_a_stack_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole, _ = both(mlp, batch_size=5)
    monkeypatch.setattr(stacked, "copies_at_once", lambda parameters: 2)
    _, split, _ = both(mlp, batch_size=5)
    for (one, _), (other, _) in zip(whole, split, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parameters", [1, 4810, 1 << 20, 100 << 20])
def test_a_stack_is_as_large_as_its_memory_allows(parameters: int) -> None:
    copies, each = copies_at_once(parameters), 3 * 4 * parameters
    assert copies == 1 or copies * each <= stacked.STACK_BYTES
    assert (copies + 1) * each > stacked.STACK_BYTES


def test_a_stack_is_kept_and_grows() -> None:
    place = learner(mlp)
    small = stacked.stack_for(place, 2)
    assert stacked.stack_for(place, 1) is small
    assert len(stacked.stack_for(place, 5).parameters) == 5
    assert len(stacked.stack_for(place, 3).parameters) == 5


# -- what can be stacked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "given", "possible"),
    [
        (mlp, {}, True),
        (group_norm_net, {}, True),
        (conv_net, {}, False),
        (dropout_net, {}, False),
        (frozen_net, {}, False),
        (mlp, {"augment": "crop_flip"}, False),
    ],
)
def test_running_statistics_dropout_frozen_parts_and_augmentation_are_not_stacked(
    build: Build, given: dict[str, Any], possible: bool
) -> None:
    assert stackable(learner(build, **given)) is possible


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
def test_chains_of_linear_and_pointwise_layers_are_written_out(
    build: Build, layers: int | None
) -> None:
    chain = written_out(build())
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
    index, share = padded(active, starts)
    assert index.shape == share.shape == (len(lengths), max(lengths))
    for k, length in enumerate(lengths):
        assert index[k, :length].tolist() == list(range(100 * k, 100 * k + length))
        assert share[k].tolist() == [np.float32(1 / length)] * length + [0] * (
            max(lengths) - length
        )
        assert (index[k, length:] == 100 * k).all()
