"""Wishes for several networks, with memory, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.learn.batches import Batch, draw_batches
from rayfl.learn.fit import carry_out
from rayfl.learn.local_fit import Fit, Pull
from rayfl.learn.losses.base import CrossEntropy
from rayfl.learn.optimisers import make_optimiser
from rayfl.learn.resident import Resident
from rayfl.protocol import Vector
from tests.learn.toys import client, linear_net, start, train
from tests.learn.wishes_toys import SIZE, assert_same, by_hand, place_of


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
