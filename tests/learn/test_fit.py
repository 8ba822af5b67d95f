"""The training loop and the passes without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from rayfl.learn.fit import (
    Batch,
    batches,
    fit,
    in_memory,
    on_the_device,
    outputs,
    sample_losses,
    visits,
)
from rayfl.learn.resident import Layout, Resident
from rayfl.learn.training import LocalTraining
from tests.learn.toys import client, conv_net, dropout_net, learner, linear_net, seeded


def listed(
    size: int, smallest: int = 1, keep: Any = None, seed: int = 0, **given: Any
) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [index.tolist() for index in visits(size, LocalTraining(**given), rng, smallest, keep)]


LAYOUTS: tuple[Layout, ...] = ("channels_last", "channels_first")
MEMORY = {"channels_last": torch.channels_last, "channels_first": torch.contiguous_format}


def start(build: Callable[[], nn.Module] = linear_net) -> Any:
    return Resident(build(), torch.device("cpu")).dump()


# -- batches ---------------------------------------------------------------------------------------


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
    for batch in batches(one, place.training):
        assert np.array_equal(batch.y.numpy(), one.y[batch.index])
        assert np.array_equal(batch.pixels.permute(0, 2, 3, 1).numpy(), one.x[batch.index])
        assert torch.equal(batch.x, place.normalise(batch.pixels))
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(12))
    assert place.passes.forward == 12


def test_unlabelled_clients_have_batches_too() -> None:
    place = learner()
    assert all(
        not batch.y.any() for batch in batches(client(9, place, labels=False), place.training)
    )


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
    first, second = (take(place, one.x, one.y)(index) for take in (in_memory, on_the_device))
    for mine, theirs in zip(first, second, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
        assert mine.dtype == theirs.dtype


# -- fit -------------------------------------------------------------------------------------------


def test_fit_is_plain_sgd() -> None:
    """The same batches through torch's own module and optimiser."""
    place = learner(lr=0.1, momentum=0.9, weight_decay=1e-3, batch_size=8, epochs=3)
    own = linear_net()
    plain = torch.optim.SGD(own.parameters(), 0.1, 0.9, weight_decay=1e-3)
    for batch in batches(client(30, place), place.training):
        plain.zero_grad()
        nn.functional.cross_entropy(own(batch.x.contiguous()), batch.y).backward()  # type: ignore[no-untyped-call]
        plain.step()
    expected = torch.cat([p.detach().reshape(-1) for p in own.parameters()]).numpy()
    np.testing.assert_allclose(fit(client(30, place), start()), expected, rtol=1e-5, atol=1e-7)


def test_fit_learns() -> None:
    place = learner(conv_net, lr=0.05, momentum=0.9, epochs=10, batch_size=16)
    one = client(120, place)
    before, after = (outputs(place, w, one.x) for w in (start(conv_net), fit(one, start(conv_net))))
    assert sample_losses(after, one.y).mean() < 0.5 * sample_losses(before, one.y).mean()
    assert (after.argmax(axis=1) == one.y).mean() > 0.8


def test_the_layout_changes_rounding_only() -> None:
    nets = {}
    for layout in LAYOUTS:
        place = learner(conv_net, lr=0.05, momentum=0.9, epochs=2, batch_size=16, layout=layout)
        before = Resident(conv_net(), torch.device("cpu"), layout).dump()
        batch = next(batches(client(40, place), place.training))
        assert batch.x.is_contiguous(memory_format=MEMORY[layout])
        trained = fit(client(40, place), before)
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
    assert np.array_equal(fit(client(20, learner(**still)), weights), weights)


def test_fit_leaves_its_input_alone() -> None:
    weights = start()
    weights.flags.writeable = False
    before = weights.copy()
    assert not np.array_equal(fit(client(20, learner()), weights), before)
    assert np.array_equal(weights, before)


@pytest.mark.parametrize("build", [linear_net, conv_net, dropout_net])
def test_who_came_before_changes_no_bit(build: Callable[[], nn.Module]) -> None:
    """Residents, optimisers and torch's generator carry nothing from one visit into the next."""
    used, weights = learner(build, momentum=0.9), start(build)
    fit(client(33, used, seed=9), weights)
    outputs(used, weights, client(7, used).x)
    fresh = learner(build, momentum=0.9)
    assert np.array_equal(fit(client(20, used), weights), fit(client(20, fresh), weights))


def test_a_tail_of_one_sample_is_skipped_under_batch_norm() -> None:
    def normed() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(128), nn.Linear(128, 3)))

    place = learner(normed, batch_size=8)
    trained = fit(client(17, place), start(normed))
    assert np.isfinite(trained).all()
    assert place.passes.take() == (16, 16)
    alone = fit(client(1, place), start(normed))
    assert np.array_equal(alone, start(normed))


def test_passes_are_samples_times_epochs() -> None:
    place = learner(epochs=3, batch_size=4)
    fit(client(10, place), start())
    assert place.passes.take() == (30, 30)


def test_own_loss_adjustment_and_steps() -> None:
    place, seen = learner(batch_size=5, lr=0.5), []
    moved = fit(
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
        resident = place.resident()
        resident.large = large
        begin = resident.dump()
        ends.append([fit(client(20, place), begin).tobytes() for _ in range(2)])
        assert bool(resident.gradient.any()) == (not large or given.get("optimizer") == "adam")
    assert ends[0] == ends[1]
    assert ends[0][0] == ends[0][1] != begin.tobytes()


def test_after_a_visit_gradients_lie_in_the_flat_one_again() -> None:
    place = learner(conv_net, epochs=1)
    resident = place.resident()
    resident.large = True

    def refuse(net: nn.Module, batch: Batch) -> torch.Tensor:
        raise ZeroDivisionError

    def loss_of(net: nn.Module) -> torch.Tensor:
        return net(torch.ones(4, 2, 8, 8)).square().sum()  # type: ignore[no-any-return]

    fit(client(9, place), resident.dump())
    with pytest.raises(ZeroDivisionError):
        fit(client(9, place), resident.dump(), loss=refuse)
    resident.gradient.zero_()
    loss_of(place.resident().net).backward()  # type: ignore[no-untyped-call]
    other = Resident(conv_net(), torch.device("cpu")).load(resident.dump())
    loss_of(other.net).backward()  # type: ignore[no-untyped-call]
    assert torch.equal(resident.gradient, other.gradient)


def test_an_adjustment_sees_the_whole_gradient_of_a_large_network() -> None:
    ends = []
    for large in (False, True):
        place = learner(conv_net, batch_size=8, epochs=2)
        place.resident().large = large
        ends.append(
            fit(
                client(20, place), start(conv_net), adjust=lambda w, g: g.add_(w, alpha=0.1)
            ).tobytes()
        )
    assert ends[0] == ends[1]


def test_settings_of_a_visit_replace_those_of_the_run() -> None:
    place = learner(epochs=5)
    fit(client(10, place), start(), training=LocalTraining(epochs=1))
    assert place.passes.take() == (10, 10)


# -- without gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 15, 16, 17, 50])
def test_outputs_come_in_order_whatever_the_batches(size: int) -> None:
    place, other = learner(), learner()
    other.evaluation_batch = 7
    x = client(size, place).x
    found = outputs(place, start(), x)
    assert found.shape == (size, 3)
    np.testing.assert_allclose(outputs(other, start(), x), found, rtol=1e-5, atol=1e-6)
    net = linear_net().eval()
    with torch.no_grad():
        alone = torch.cat(
            [net(place.normalise(place.pixels(x[i : i + 1])).contiguous()) for i in range(size)]
        )
    np.testing.assert_allclose(found, alone.numpy(), rtol=1e-5, atol=1e-6)


def test_outputs_are_those_of_evaluation_mode() -> None:
    place = learner(dropout_net)
    x = client(20, place).x
    assert np.array_equal(outputs(place, start(dropout_net), x), outputs(place, None, x))
    assert place.passes.take() == (40, 0)


def test_outputs_can_read_something_else() -> None:
    place = learner()
    found = outputs(
        place,
        None,
        client(5, place).x,
        read=lambda net, x: x.mean(dim=(1, 2, 3))[:, None],
        name="peer",
    )
    np.testing.assert_allclose(
        found[:, 0], client(5, place).x.mean(axis=(1, 2, 3)) / 255, rtol=1e-5
    )


def test_outputs_of_nothing() -> None:
    assert len(outputs(learner(), start(), np.zeros((0, 8, 8, 2), np.uint8))) == 0


def test_losses_of_samples() -> None:
    logits = np.array([[0.0, 0.0], [1000.0, 0.0], [0.0, np.log(3)]], np.float32)
    found = sample_losses(logits, np.array([0, 1, 1]))
    np.testing.assert_allclose(found, [np.log(2), 1000.0, np.log(4 / 3)], rtol=1e-6)


@given(st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_losses_agree_with_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, y = rng.normal(0, 10, (9, 4)).astype(np.float32), rng.integers(0, 4, 9)
    expected = nn.functional.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(y), reduction="none"
    )
    np.testing.assert_allclose(sample_losses(logits, y), expected.numpy(), rtol=1e-4, atol=1e-5)
