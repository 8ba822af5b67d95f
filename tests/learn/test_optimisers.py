"""The flat optimisers against torch.optim, which goes tensor by tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.learn.optimisers import Adam, Sgd, make_optimiser
from rayfl.learn.resident import Resident
from rayfl.learn.training import LocalTraining
from tests.learn.toys import conv_net

SGD: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.03, "weight_decay": 5e-4},
    {"lr": 0.05, "momentum": 0.5, "weight_decay": 1e-2},
    {"lr": 0.0, "momentum": 0.5, "weight_decay": 1e-2},
]
ADAM: list[dict[str, Any]] = [
    {"lr": 1e-3, "optimizer": "adam"},
    {"lr": 3e-3, "optimizer": "adam", "weight_decay": 1e-2},
]
STEPS = 12


def reference(net: nn.Module, settings: LocalTraining) -> torch.optim.Optimizer:
    if settings.optimizer == "adam":
        decay = settings.weight_decay
        return torch.optim.Adam(net.parameters(), settings.lr, weight_decay=decay, foreach=False)
    return torch.optim.SGD(
        net.parameters(),
        settings.lr,
        settings.momentum,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


def pair(settings: dict[str, Any]) -> tuple[Resident, nn.Module, Any, torch.optim.Optimizer]:
    made = LocalTraining(**settings)
    resident, own = Resident(conv_net(), torch.device("cpu")), conv_net()
    return resident, own, make_optimiser(resident, made), reference(own, made)


@pytest.mark.parametrize("settings", [*SGD, *ADAM], ids=str)
def test_equal_gradients_make_equal_steps(settings: dict[str, Any]) -> None:
    """Bit for bit with SGD; Adam's order of operations differs in the last place."""
    resident, own, flat, plain = pair(settings)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        for ours, theirs in zip(resident.net.parameters(), own.parameters(), strict=True):
            theirs.grad = torch.randn(theirs.shape, generator=generator) * 10.0 ** (step % 4 - 2)
            assert ours.grad is not None
            ours.grad.copy_(theirs.grad)
        flat.step()
        plain.step()
        for ours, theirs in zip(resident.net.parameters(), own.parameters(), strict=True):
            if settings in SGD:
                assert torch.equal(ours, theirs)
            else:
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("settings", [*SGD, *ADAM], ids=str)
def test_training_follows_torch(settings: dict[str, Any]) -> None:
    """Whole steps, forward and backward included, with BatchNorm in training mode."""
    resident, own, flat, plain = pair({**settings, "lr": settings["lr"] / 10})
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        x = torch.from_numpy(rng.random((16, 2, 8, 8), dtype=np.float32))
        y = torch.from_numpy(rng.integers(0, 3, 16))
        resident.gradient.zero_()
        plain.zero_grad()
        for net in (resident.net, own):
            nn.functional.cross_entropy(net.train()(x), y).backward()  # type: ignore[no-untyped-call]
        flat.step()
        plain.step()
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(resident.net.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [SGD[0], SGD[3], ADAM[1]], ids=str)
def test_running_statistics_are_not_optimised(settings: dict[str, Any]) -> None:
    resident, _, flat, _ = pair(settings)
    resident.gradient.fill_(1.0)
    before = resident.dump()[resident.n_parameters :]
    flat.step()
    assert np.array_equal(resident.dump()[resident.n_parameters :], before)


@pytest.mark.parametrize("settings", [SGD[1], ADAM[0]], ids=str)
def test_an_optimiser_is_fresh_at_every_visit(settings: dict[str, Any]) -> None:
    resident, _, first, _ = pair(settings)
    start, ends = resident.dump(), []
    for update in (first, make_optimiser(resident, LocalTraining(**settings))):
        resident.load(start)
        for _ in range(2):
            resident.gradient.fill_(0.5)
            update.step()
        ends.append(resident.dump())
    assert np.array_equal(ends[0], ends[1])


def test_momentum_by_hand() -> None:
    resident = Resident(nn.Linear(1, 1, bias=False), torch.device("cpu"))
    resident.flat.fill_(1.0)
    update = Sgd(resident, LocalTraining(lr=0.1, momentum=0.5))
    for _ in range(2):
        resident.gradient.fill_(2.0)
        update.step()
    # 1 - 0.1 * 2, then velocity 0.5 * 2 + 2 = 3.
    assert resident.dump()[0] == pytest.approx(0.5)


def test_the_first_adam_step_is_the_learning_rate() -> None:
    resident = Resident(nn.Linear(1, 1, bias=False), torch.device("cpu"))
    resident.flat.fill_(1.0)
    update = Adam(resident, LocalTraining(lr=0.01, optimizer="adam"))
    resident.gradient.fill_(1234.0)
    update.step()
    assert resident.dump()[0] == pytest.approx(0.99)
