"""FedProx against numbers worked out by hand, on clients whose network is a single number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.fedprox import FedProx
from rayfl.errors import ConfigError
from rayfl.learn.fit import Change
from rayfl.learn.local_fit import Fit, Pull
from rayfl.learn.resident import Resident
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import fleet_of_numbers, minimise, number, played, quadratic

PUBLIC = {"split": {"public": 0.2}}

ROWS = [
    Row(
        "fedprox",
        {"name": "fedprox"},
        neutral={"name": "fedprox", "mu": 0.0},
        same_as={"name": "fedavg"},
        refused=[({"mu": -1.0}, "mu"), ({"mu": "inf"}, "mu"), ({"nu": 0.1}, "nu")],
    ),
    Row(
        "fedprox_dawid_skene",
        {"name": "fedprox", "weighting": "dawid_skene"},
        config=PUBLIC,
        neutral={"name": "fedprox", "weighting": "dawid_skene", "mu": 0.0},
        same_as={"name": "fedds"},
    ),
]


@pytest.mark.parametrize(
    ("mu", "momentum", "path"),
    [
        (0.5, 0.0, [0.2, 0.35, 0.4625]),
        (0.0, 0.0, [0.2, 0.36, 0.488]),
        (0.5, 0.9, [0.2, 0.53, 0.8945]),
    ],
)
def test_steps_on_a_parabola(
    mu: float, momentum: float, path: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(a/2)(w - b)^2 with a = 2, b = 1 from w = 0 with lr 0.1: each gradient is 2 (w - 1) + mu
    w."""
    minimise(monkeypatch, quadratic([2.0], [1.0]))
    for steps, expected in enumerate(path, start=1):
        fleet = fleet_of_numbers([1], epochs=steps, momentum=momentum)
        assert number(fleet, played(FedProx(mu=mu), fleet, 1)[0]) == pytest.approx(
            expected, abs=1e-6
        )


@pytest.mark.parametrize(("start", "rest"), [(0.0, 0.8), (0.3, 0.86)])
def test_rests_between_its_minimum_and_the_broadcast_model(
    start: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(a b + mu w_t) / (a + mu)."""
    minimise(monkeypatch, quadratic([2.0], [1.0]))
    fleet = fleet_of_numbers([1], epochs=100)
    state = played(FedProx(mu=0.5), fleet, 1, [start])[0]
    assert number(fleet, state) == pytest.approx(rest, abs=1e-6)


def test_the_anchor_is_the_model_of_this_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """From round to round the rest wanders to the minimum: 0.8, then (2 + 0.5 * 0.8) / 2.5 = 0.96,
    ..."""
    minimise(monkeypatch, quadratic([2.0], [1.0]))
    fleet = fleet_of_numbers([1], epochs=100)
    found = [number(fleet, state) for state in played(FedProx(mu=0.5), fleet, 3)]
    assert found == pytest.approx([0.8, 0.96, 0.992], abs=1e-6)


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
def test_the_first_step_is_that_of_fedavg(mu: float, tmp_path: Path) -> None:
    """At the anchor the proximal term has no gradient."""
    row = Row("one step", {"name": "fedavg"}, config={"training": {"steps": 1}})
    plain, _ = run_toy(shortened(toy_config(row, tmp_path), 1), directory="plain")
    near, _ = run_toy(
        shortened(toy_config(row, tmp_path, {"name": "fedprox", "mu": mu}), 1), directory="near"
    )
    assert near.sha256 == plain.sha256


def change_of(net: nn.Module, pull: Pull) -> tuple[Change, Resident]:
    """What a wish with this pull does to the gradient of a network."""
    resident = Resident(net, torch.device("cpu"))
    return Change(Fit(resident.dump(), pull=pull), resident), resident


def test_the_pull_is_the_gradient_of_the_penalty() -> None:
    difference = torch.tensor([0.1, -0.2, 0.3], requires_grad=True)
    penalty = 0.05 / 2 * (difference * difference).sum()
    penalty.backward()  # type: ignore[no-untyped-call]
    anchor = np.array([1.0, 2.0, 3.0], np.float32)
    change, resident = change_of(nn.Linear(3, 1, bias=False), Pull(anchor, 0.05))
    resident.parameters.copy_(torch.from_numpy(anchor) + difference.detach())
    resident.gradient.fill_(1.0)
    change.apply()
    gradient = resident.gradient
    assert penalty.item() == pytest.approx(0.0035)
    assert difference.grad is not None
    torch.testing.assert_close(gradient - 1, difference.grad, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        gradient - 1, torch.tensor([0.005, -0.010, 0.015]), atol=1e-6, rtol=0
    )


def test_batchnorm_statistics_are_not_pulled() -> None:
    net = nn.BatchNorm1d(4)
    weights = Resident(net, torch.device("cpu")).dump()
    assert len(weights) == 16
    change, resident = change_of(net, Pull(weights, 1.0))
    resident.parameters.add_(1)
    moved = resident.dump()
    change.apply()
    assert resident.gradient.tolist() == [1.0] * 8
    assert np.array_equal(resident.dump(), moved)
    assert np.array_equal(moved[8:], weights[8:])


@pytest.mark.parametrize(("mu", "furthest"), [(9.0, 0.19), (99.0, 0.02), (999.0, 0.0021)])
def test_a_strong_pull_freezes_the_model(
    mu: float, furthest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    minimise(monkeypatch, quadratic([2.0], [1.0]))
    fleet = fleet_of_numbers([1], epochs=50, lr=0.9 / mu)
    assert 0 < number(fleet, played(FedProx(mu=mu), fleet, 1)[0]) <= furthest


@pytest.mark.parametrize("mu", [5.0, 80.0])
def test_a_pull_that_overshoots_is_refused(mu: float, tmp_path: Path) -> None:
    config = toy_config(ROWS[0], tmp_path, {"name": "fedprox", "mu": mu})
    with pytest.raises(
        ConfigError, match=rf"mu \* training.lr of FedProx is below 1; got {mu:g} \* 0.2"
    ):
        run_toy(config)


def test_adam_takes_any_pull(tmp_path: Path) -> None:
    config = toy_config(
        ROWS[0], tmp_path, {"name": "fedprox", "mu": 80.0}, training={"optimizer": "adam"}
    )
    outcome, _ = run_toy(shortened(config, 1))
    assert np.isfinite(outcome.models[None]).all()


def test_costs_what_fedavg_costs(tmp_path: Path) -> None:
    near, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 1), directory="near")
    plain, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), 1), directory="plain"
    )
    costs = [
        {k: v for k, v in run.history[0]["metrics"].items() if "cost/" in k}
        for run in (near, plain)
    ]
    assert costs[0] == costs[1]
    assert costs[0]["cost/forward"] > 0
