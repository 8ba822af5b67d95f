"""SCAFFOLD against numbers worked out by hand, with and without momentum, and against FedAvg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.weighting import Equal, Weighting
from rayfl.algorithms.scaffold import Controlled, Scaffold, momentum_sum, step_server
from rayfl.component import component
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import ClientId, Fleet, Replies
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import (
    fleet_of_numbers,
    minimise,
    number,
    played,
    quadratic,
    toy_fleet,
)

PUBLIC = {"split": {"public": 0.2}}
BATCHNORM = {"model": {"name": "cnn4", "widths": [4, 8], "track_running_stats": True}}

ROWS = [
    Row(
        "scaffold",
        {"name": "scaffold"},
        refused=[
            ({"eta_g": 0.0}, "eta_g"),
            ({"option": "III"}, "option"),
            ({"correct": "naive"}, "correct"),
            ({"weighting": "dawid"}, "unknown weighting 'dawid'"),
        ],
    ),
    Row("scaffold_option_one", {"name": "scaffold", "option": "I"}),
    Row("scaffold_after_step", {"name": "scaffold", "correct": "step"}),
    Row("scaffold_dawid_skene", {"name": "scaffold", "weighting": "dawid_skene"}, config=PUBLIC),
]

TWO = quadratic([1.0, 2.0], [1.0, -1.0])
"""Two clients whose joint minimum is -1/3."""


@component
class Given(Weighting):
    """Weights as written."""

    weights: tuple[float, ...]

    def __call__(self, got: Replies, fleet: Fleet) -> Mapping[ClientId, float]:
        return {client: self.weights[client] for client in got}


def controls(fleet: InlineFleet) -> list[float]:
    """c_i of every client, 0 before its first visit."""
    refs = [fleet.state(client, "c") for client in fleet.clients]
    return [0.0 if ref is None else float(fleet.get(ref)[0]) for ref in refs]


def control(fleet: InlineFleet, state: Global) -> float:
    assert isinstance(state, Controlled)
    return float(fleet.get(state.c)[0])


def trace(
    method: Scaffold, fleet: InlineFleet, rounds: int
) -> list[tuple[float, float, list[float]]]:
    """x, c and all c_i after every round."""
    found, state = [], method.init(fleet, fleet.put(np.zeros(1, np.float32)))
    for fleet.round in range(rounds):
        state = method.round(state, fleet, fleet.round)
        found.append((number(fleet, state), control(fleet, state), controls(fleet)))
    return found


def assert_trace(
    found: Sequence[tuple[float, float, list[float]]],
    expected: Sequence[Sequence[Any]],
    rtol: float = 2e-6,
) -> None:
    for (x, c, own), (right_x, right_c, right_own) in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            [x, c, *own], [right_x, right_c, *right_own], rtol=rtol, atol=1e-6
        )


def test_option_two_on_two_parabolas(monkeypatch: pytest.MonkeyPatch) -> None:
    minimise(monkeypatch, TWO)
    found = trace(Scaffold(), fleet_of_numbers([1, 1], epochs=2), 3)
    expected = [
        (-0.085, 0.425, (-0.95, 1.8)),
        (-0.1535, 0.3425, (-1.0995, 1.7845)),
        (-0.203497, 0.249988, (-1.167925, 1.6679)),
    ]
    assert_trace(found, expected)


def test_finds_the_minimum_that_fedavg_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    minimise(monkeypatch, TWO)
    fleet = fleet_of_numbers([1, 1], epochs=2)
    assert_trace(trace(Scaffold(), fleet, 80)[-1:], [(-1 / 3, 0.0, (-4 / 3, 4 / 3))])
    drifting = [number(fleet, state) for state in played(FedAvg(), fleet, 80)]
    assert drifting[:3] == pytest.approx([-0.085, -0.146625, -0.191303], abs=1e-6)
    assert drifting[-1] == pytest.approx(-0.309091, abs=1e-6)


def test_option_one_on_two_parabolas(monkeypatch: pytest.MonkeyPatch) -> None:
    minimise(monkeypatch, TWO)
    found = trace(Scaffold(option="I"), fleet_of_numbers([1, 1], epochs=2), 2)
    assert_trace(found, [(-0.085, 0.5, (-1.0, 2.0)), (-0.154125, 0.3725, (-1.085, 1.83))])


def test_clients_that_stay_away_keep_their_control_variate(monkeypatch: pytest.MonkeyPatch) -> None:
    minimise(monkeypatch, quadratic([1.0, 2.0, 1.0, 1.0], [1.0, -1.0, 0.0, 2.0]))
    fleet = fleet_of_numbers([1] * 4, epochs=2)
    monkeypatch.setattr(fleet, "sample", lambda t: [[0, 1], [2, 3]][t])
    found = trace(Scaffold(), fleet, 2)
    expected = [
        (-0.085, 0.2125, (-0.95, 1.8, 0.0, 0.0)),
        (0.080775, -0.308188, (-0.95, 1.8, -0.091375, -1.991375)),
    ]
    assert_trace(found, expected)


def test_momentum_divides_by_what_steps_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing by the two steps would give c = 0.65, 0.43475 and x = -0.21695 in the second
    round."""
    minimise(monkeypatch, TWO)
    found = trace(Scaffold(), fleet_of_numbers([1, 1], epochs=2, momentum=0.9), 2)
    np.testing.assert_allclose([x for x, _, _ in found], [-0.13, -0.213769], atol=1e-6)
    np.testing.assert_allclose([c for _, c, _ in found], [0.448276, 0.288859], atol=1e-6)


@pytest.mark.parametrize(
    ("correct", "own"), [("gradient", (1.0, 3.0)), ("step", (7.783257, 23.349771))]
)
def test_constant_gradients_with_momentum(
    correct: Any, own: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty steps at momentum 0.9: both variants are stable and walk alike."""
    slope = torch.tensor([1.0, 3.0])
    minimise(monkeypatch, lambda y, client: slope[client] * y)
    fleet = fleet_of_numbers([1, 1], epochs=40, lr=0.01, momentum=0.9)
    found = trace(Scaffold(correct=correct), fleet, 3)
    mean = sum(own) / 2
    assert_trace(found, [(x, mean, own) for x in (-6.226606, -12.453211, -18.679817)], rtol=1e-5)


@pytest.mark.parametrize(
    ("momentum", "steps", "worth"),
    [
        (0.9, 40, 311.330279),
        (0.9, 2, 2.9),
        (0.9, 35, 262.252840),
        (0.5, 50, 98.0),
        (0.0, 7, 7.0),
        (0.9, 0, 0.0),
    ],
)
def test_what_steps_with_momentum_are_worth(momentum: float, steps: int, worth: float) -> None:
    assert momentum_sum(momentum, steps) == pytest.approx(worth, abs=1e-6)
    velocity = way = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        way += velocity
    assert momentum_sum(momentum, steps) == pytest.approx(way)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_divisor_counts_the_steps_really_taken(
    momentum: float, drop_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five samples in batches of two: the odd one is a step, unless it is dropped. Either way c_i
    is the gradient."""
    minimise(monkeypatch, lambda y, client: 1.5 * y)
    fleet = fleet_of_numbers([5], batch_size=2, epochs=3, momentum=momentum, drop_last=drop_last)
    assert trace(Scaffold(), fleet, 2)[-1][2] == pytest.approx([1.5], rel=1e-6)


def test_without_a_step_the_control_variates_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    minimise(monkeypatch, TWO)
    assert_trace(trace(Scaffold(), fleet_of_numbers([1, 1], epochs=0), 1), [(0.0, 0.0, (0.0, 0.0))])


def test_weights_of_the_average_do_not_touch_the_control_variates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minimise(monkeypatch, TWO)
    method = Scaffold(weighting=Given(weights=(0.75, 0.25)))
    found = trace(method, fleet_of_numbers([1, 1], epochs=2), 2)
    assert_trace(found, [(0.0525, 0.425, (-0.95, 1.8)), (-0.041269, 0.531563, (-0.968875, 2.032))])


def test_a_client_that_diverges_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    minimise(monkeypatch, quadratic([1.0, 1e30], [1.0, -1.0]))
    fleet = fleet_of_numbers([1, 1], epochs=4)
    (x, c, own) = trace(Scaffold(), fleet, 1)[0]
    assert fleet.state(1, "c") is None
    assert x == pytest.approx(1 - 0.9**4)
    assert c == pytest.approx(own[0] / 2)


@pytest.mark.parametrize("eta_g", [0.5, 2.0])
def test_the_server_steps_by_eta_g(eta_g: float, monkeypatch: pytest.MonkeyPatch) -> None:
    minimise(monkeypatch, TWO)
    x, c, own = trace(Scaffold(eta_g=eta_g), fleet_of_numbers([1, 1], epochs=2), 1)[0]
    assert_trace([(x, c, own)], [(-0.085 * eta_g, 0.425, (-0.95, 1.8))])


def test_the_server_averages_batchnorm_statistics() -> None:
    x, y = np.zeros(3, np.float32), np.array([1.0, 2.0, 5.0], np.float32)
    c, dc = np.ones(2, np.float32), np.array([4.0, 8.0], np.float32)
    update = step_server(None, x=x, y=y, c=c, dc=dc, eta_g=3.0, share=0.5).update  # type: ignore[arg-type]
    assert isinstance(update, dict)
    assert update["w"].tolist() == [3.0, 6.0, 5.0]
    assert update["c"].tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    "settings", [{}, {"option": "I"}, {"correct": "step"}, {"weighting": "dawid_skene"}], ids=str
)
def test_c_is_the_mean_of_all_clients(settings: dict[str, str], tmp_path: Path) -> None:
    row = Row(
        "mean",
        {"name": "scaffold", **settings},
        config={**PUBLIC, **BATCHNORM, "training": {"lr": 0.02}},
    )
    config = toy_config(row, tmp_path)
    fleet, method = toy_fleet(config), config.method
    state = method.init(fleet, fleet.initial())
    for fleet.round in range(3):
        state = method.round(state, fleet, fleet.round)
        refs = [fleet.state(client, "c") for client in fleet.clients]
        own = [np.zeros_like(fleet.get(state.c)) if ref is None else fleet.get(ref) for ref in refs]
        assert None in refs or fleet.round > 0
        np.testing.assert_allclose(fleet.get(state.c), np.mean(own, axis=0), atol=1e-6)
    assert len(fleet.get(state.c)) < len(fleet.get(state.model))


@pytest.mark.parametrize(
    ("scaffold", "plain"),
    [
        ({"name": "scaffold"}, {"name": "fedavg"}),
        (
            {"name": "scaffold", "option": "I", "weighting": "equal"},
            {"name": "fedavg", "weighting": "equal"},
        ),
        ({"name": "scaffold", "correct": "step"}, {"name": "fedavg"}),
        ({"name": "scaffold", "weighting": "dawid_skene"}, {"name": "fedds"}),
    ],
    ids=str,
)
def test_the_first_round_is_that_of_fedavg(
    scaffold: dict[str, str], plain: dict[str, str], tmp_path: Path
) -> None:
    row = Row("first", scaffold, config={**PUBLIC, **BATCHNORM, "training": {"lr": 0.02}})
    first, _ = run_toy(shortened(toy_config(row, tmp_path), 1), directory="scaffold")
    second, _ = run_toy(shortened(toy_config(row, tmp_path, plain), 1), directory="plain")
    assert first.sha256 == second.sha256


@pytest.mark.parametrize("correct", ["gradient", "step"])
def test_a_single_client_trains_as_with_fedavg(correct: str, tmp_path: Path) -> None:
    lone = {"clients": 1, "training": {"clients_per_round": 1}}
    row = Row("single", {"name": "scaffold", "correct": correct}, lone)
    alone, _ = run_toy(toy_config(row, tmp_path), directory="scaffold")
    plain, _ = run_toy(toy_config(row, tmp_path, {"name": "fedavg"}), directory="plain")
    assert alone.sha256 == plain.sha256


def test_later_rounds_differ_from_fedavg(tmp_path: Path) -> None:
    drifting, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), 3), directory="plain"
    )
    controlled, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 3), directory="scaffold")
    assert controlled.sha256 != drifting.sha256


@pytest.mark.parametrize(("option", "extra"), [("II", 0), ("I", 60)])
def test_costs_twice_the_traffic_and_option_one_a_pass(
    option: str, extra: int, tmp_path: Path
) -> None:
    config = toy_config(ROWS[0], tmp_path, {"name": "scaffold", "option": option})
    outcome, _ = run_toy(shortened(config, 1))
    metrics, parameters = outcome.history[0]["metrics"], len(outcome.models[None])
    assert metrics["cost/down_mb"] == metrics["cost/up_mb"] == 4 * 2 * parameters * 4 / 1e6
    assert metrics["cost/forward"] == metrics["cost/backward"] == 4 * (2 * 60 + extra)


def test_adam_is_refused(tmp_path: Path) -> None:
    config = toy_config(ROWS[0], tmp_path, training={"optimizer": "adam"})
    with pytest.raises(
        ConfigError, match=r"SCAFFOLD corrects the steps of training.optimizer sgd; got adam"
    ):
        run_toy(config)


def test_equal_weights_are_the_papers_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 1 and 3 samples: by size the larger one counts three times, equally it does
    not."""
    slope = torch.tensor([1.0, 3.0])
    minimise(monkeypatch, lambda y, client: slope[client] * y)
    methods = (Scaffold(), Scaffold(weighting=Equal()))
    by_size, equal = (
        trace(method, fleet_of_numbers([1, 3], steps=2), 1)[0][0] for method in methods
    )
    assert by_size == pytest.approx(-0.2 * (1 + 3 * 3) / 4)
    assert equal == pytest.approx(-0.2 * (1 + 3) / 2)
