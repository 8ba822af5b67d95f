"""The training loop and the passes without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from rayfl.errors import RayflError
from rayfl.learn.batches import Batch, draw_batches
from rayfl.learn.fit import compute_losses, compute_outputs
from rayfl.learn.resident import Resident
from tests.learn.toys import (
    LAYOUTS,
    client,
    conv_net,
    dropout_net,
    learner,
    linear_net,
    seeded,
    start,
    train,
)

MEMORY = {"channels_last": torch.channels_last, "channels_first": torch.contiguous_format}


# -- fit -------------------------------------------------------------------------------------------


def test_fit_is_plain_sgd() -> None:
    """The same batches through torch's own module and optimiser."""
    place = learner(lr=0.1, momentum=0.9, weight_decay=1e-3, batch_size=8, epochs=3)
    own = linear_net()
    plain = torch.optim.SGD(own.parameters(), 0.1, 0.9, weight_decay=1e-3)
    for batch in draw_batches(client(30, place), place.training):
        plain.zero_grad()
        nn.functional.cross_entropy(own(batch.x.contiguous()), batch.y).backward()  # type: ignore[no-untyped-call]
        plain.step()
    expected = torch.cat([p.detach().reshape(-1) for p in own.parameters()]).numpy()
    np.testing.assert_allclose(train(client(30, place), start()), expected, rtol=1e-5, atol=1e-7)


def test_fit_learns() -> None:
    place = learner(conv_net, lr=0.05, momentum=0.9, epochs=10, batch_size=16)
    one = client(120, place)
    begin = start(conv_net)
    before, after = (compute_outputs(place, w, one.x) for w in (begin, train(one, begin)))
    assert compute_losses(after, one.y).mean() < 0.5 * compute_losses(before, one.y).mean()
    assert (after.argmax(axis=1) == one.y).mean() > 0.8


def test_the_layout_changes_rounding_only() -> None:
    nets = {}
    for layout in LAYOUTS:
        place = learner(conv_net, lr=0.05, momentum=0.9, epochs=2, batch_size=16, layout=layout)
        before = Resident(conv_net(), torch.device("cpu"), layout).dump()
        batch = next(draw_batches(client(40, place), place.training))
        assert batch.x.is_contiguous(memory_format=MEMORY[layout])
        trained = train(client(40, place), before)
        nets[layout] = (
            Resident(conv_net(), torch.device("cpu"), layout).load(trained).net.state_dict()
        )
    for name, tensor in nets["channels_last"].items():
        torch.testing.assert_close(tensor, nets["channels_first"][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "still", [{"lr": 0.0}, {"epochs": 0}, {"lr": 0.0, "optimizer": "adam"}], ids=str
)
def test_no_rate_or_no_epochs_leaves_the_weights(still: dict[str, Any]) -> None:
    weights = start()
    assert np.array_equal(train(client(20, learner(**still)), weights), weights)


def test_fit_leaves_its_input_alone() -> None:
    weights = start()
    weights.flags.writeable = False
    before = weights.copy()
    assert not np.array_equal(train(client(20, learner()), weights), before)
    assert np.array_equal(weights, before)


@pytest.mark.parametrize("build", [linear_net, conv_net, dropout_net])
def test_who_came_before_changes_no_bit(build: Callable[[], nn.Module]) -> None:
    """Residents, optimisers and torch's generator carry nothing from one visit into the next."""
    used, weights = learner(build, momentum=0.9), start(build)
    train(client(33, used, seed=9), weights)
    compute_outputs(used, weights, client(7, used).x)
    fresh = learner(build, momentum=0.9)
    assert np.array_equal(train(client(20, used), weights), train(client(20, fresh), weights))


def test_a_tail_of_one_sample_is_skipped_under_batch_norm() -> None:
    def normed() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(128), nn.Linear(128, 3)))

    place = learner(normed, batch_size=8)
    trained = train(client(17, place), start(normed))
    assert np.isfinite(trained).all()
    assert place.passes.take() == (16, 16)
    alone = train(client(1, place), start(normed))
    assert np.array_equal(alone, start(normed))


def test_passes_are_samples_times_epochs() -> None:
    place = learner(epochs=3, batch_size=4)
    train(client(10, place), start())
    assert place.passes.take() == (30, 30)


def test_own_loss_adjustment_and_steps() -> None:
    place, seen = learner(batch_size=5, lr=0.5), []
    moved = train(
        client(10, place),
        start(),
        loss=lambda net, batch: net(batch.x).sum(),
        adjust=lambda parameters, gradient: gradient.copy_(torch.ones_like(parameters)),
        after_step=lambda resident: seen.append(resident.dump()[0]),
    )
    np.testing.assert_allclose(moved, start() - 1.0, atol=1e-6)
    assert seen == [pytest.approx(start()[0] - 0.5), pytest.approx(start()[0] - 1.0)]


class Partly(nn.Module):
    """One layer that no loss depends on, one that is frozen, one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.fixed, self.twice = (
            nn.Linear(3, 2),
            nn.Linear(128, 128),
            nn.Linear(128, 128),
        )
        self.last = nn.Linear(128, 3)
        self.fixed.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.twice(self.twice(self.fixed(x.flatten(1))).relu()))
        return logits


SETTINGS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"momentum": 0.5, "weight_decay": 1e-2},
    {"precision": "bf16"},
    {"optimizer": "adam", "lr": 1e-3},
]


@pytest.mark.parametrize("build", [conv_net, lambda: seeded(Partly)])
@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_gradients_that_stay_where_they_are_made_change_no_bit(
    build: Callable[[], nn.Module], given: dict[str, Any]
) -> None:
    ends = []
    for large in (False, True):
        place = learner(build, batch_size=8, epochs=3, **given)
        resident = place.shape_of()
        resident.large = large
        begin = resident.dump()
        ends.append([train(client(20, place), begin).tobytes() for _ in range(2)])
        assert bool(resident.gradient.any()) == (not large or given.get("optimizer") == "adam")
    assert ends[0] == ends[1]
    assert ends[0][0] == ends[0][1] != begin.tobytes()


def test_after_a_visit_gradients_lie_in_the_flat_one_again() -> None:
    place = learner(conv_net, epochs=1)
    resident = place.shape_of()
    resident.large = True

    def refuse(net: nn.Module, batch: Batch) -> torch.Tensor:
        raise ZeroDivisionError

    def loss_of(net: nn.Module) -> torch.Tensor:
        return net(torch.ones(4, 2, 8, 8)).square().sum()  # type: ignore[no-any-return]

    train(client(9, place), resident.dump())
    with pytest.raises(ZeroDivisionError):
        train(client(9, place), resident.dump(), loss=refuse)
    resident.gradient.zero_()
    loss_of(place.resident(resident.dump()).net).backward()  # type: ignore[no-untyped-call]
    other = Resident(conv_net(), torch.device("cpu")).load(resident.dump())
    loss_of(other.net).backward()  # type: ignore[no-untyped-call]
    assert torch.equal(resident.gradient, other.gradient)


def test_an_adjustment_sees_the_whole_gradient_of_a_large_network() -> None:
    ends = []
    for large in (False, True):
        place = learner(conv_net, batch_size=8, epochs=2)
        place.shape_of().large = large
        ends.append(
            train(
                client(20, place), start(conv_net), adjust=lambda w, g: g.add_(w, alpha=0.1)
            ).tobytes()
        )
    assert ends[0] == ends[1]


def test_settings_of_a_visit_replace_those_of_the_run() -> None:
    place = learner(epochs=5)
    train(client(10, place), start(), settings={"epochs": 1})
    assert place.passes.take() == (10, 10)


# -- without gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 15, 16, 17, 50])
def test_outputs_come_in_order_whatever_the_batches(size: int) -> None:
    place, other = learner(), learner()
    other.evaluation_batch = 7
    x = client(size, place).x
    found = compute_outputs(place, start(), x)
    assert found.shape == (size, 3)
    np.testing.assert_allclose(compute_outputs(other, start(), x), found, rtol=1e-5, atol=1e-6)
    net = linear_net().eval()
    with torch.no_grad():
        alone = torch.cat(
            [net(place.normalise(place.pixels(x[i : i + 1])).contiguous()) for i in range(size)]
        )
    np.testing.assert_allclose(found, alone.numpy(), rtol=1e-5, atol=1e-6)


def test_outputs_are_those_of_evaluation_mode() -> None:
    place = learner(dropout_net)
    x = client(20, place).x
    begin = start(dropout_net)
    assert np.array_equal(compute_outputs(place, begin, x), compute_outputs(place, None, x))
    with pytest.raises(RayflError, match="given weights before it is used"):
        compute_outputs(place, None, x, name="peer")
    assert place.passes.take() == (40, 0)


def test_outputs_can_read_something_else() -> None:
    place = learner()
    found = compute_outputs(
        place,
        start(),
        client(5, place).x,
        read=lambda net, x: x.mean(dim=(1, 2, 3))[:, None],
        name="peer",
    )
    np.testing.assert_allclose(
        found[:, 0], client(5, place).x.mean(axis=(1, 2, 3)) / 255, rtol=1e-5
    )


def test_outputs_of_nothing() -> None:
    assert len(compute_outputs(learner(), start(), np.zeros((0, 8, 8, 2), np.uint8))) == 0


def test_losses_of_samples() -> None:
    logits = np.array([[0.0, 0.0], [1000.0, 0.0], [0.0, np.log(3)]], np.float32)
    found = compute_losses(logits, np.array([0, 1, 1]))
    np.testing.assert_allclose(found, [np.log(2), 1000.0, np.log(4 / 3)], rtol=1e-6)


@given(st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_losses_agree_with_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, y = rng.normal(0, 10, (9, 4)).astype(np.float32), rng.integers(0, 4, 9)
    expected = nn.functional.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(y), reduction="none"
    )
    np.testing.assert_allclose(compute_losses(logits, y), expected.numpy(), rtol=1e-4, atol=1e-5)
