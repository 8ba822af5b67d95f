"""Federated averaging against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfl.learn.training import Participation
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import fleet_of, leave

FIRST = {"model": {"name": "cnn4", "widths": [8, 8]}, "training": {"layout": "channels_first"}}
REACHED = {"model": "tests.models.shrinking:Shrinking", "training": {"kernels": "reached"}}
ROWS = [
    Row(
        "fedavg",
        {"name": "fedavg"},
        refused=[({"weighting": "sise"}, "unknown weighting 'sise'"), ({"mu": 1}, "mu")],
    ),
    Row("fedavg_equal", {"name": "fedavg", "weighting": "equal"}),
    Row("fedavg_stacked", {"name": "fedavg"}, config={"training": {"stack": "always"}}),
    Row("fedavg_bf16", {"name": "fedavg"}, config={"training": {"precision": "bf16"}}),
    Row("fedavg_reached", {"name": "fedavg"}, config=REACHED),
    Row("fedavg_channels_first", {"name": "fedavg"}, config=FIRST),
]


def test_average_is_weighted_by_size() -> None:
    fleet = fleet_of([100, 300])
    got = fleet.map(leave, [0, 1], models={0: [1.0, 0.0], 1: [2.0, 4.0]})
    assert fleet.get(got.mean({0: 100, 1: 300})).tolist() == [1.75, 3.0]


@pytest.mark.parametrize("scale", [1.0, 0.1, 7.0])
def test_scale_of_the_weights_changes_nothing_visible(scale: float) -> None:
    fleet = fleet_of([1, 1, 1])
    models = {client: np.random.default_rng(client).normal(size=50).tolist() for client in range(3)}
    got = fleet.map(leave, range(3), models=models)
    weights = {0: 3.0, 1: 5.0, 2: 11.0}
    scaled = {client: weight * scale for client, weight in weights.items()}
    np.testing.assert_allclose(fleet.get(got.mean(scaled)), fleet.get(got.mean(weights)), rtol=2e-7)


def test_equal_models_are_their_own_average() -> None:
    fleet = fleet_of([3, 5, 9])
    model = (np.random.default_rng(0).normal(size=200) * 10.0 ** np.arange(-12, 8, 0.1)).astype(
        np.float32
    )
    got = fleet.map(leave, range(3), models={client: model.tolist() for client in range(3)})
    assert np.array_equal(fleet.get(got.mean({0: 3, 1: 5, 2: 9})), model)


@pytest.mark.parametrize(
    ("fraction", "clients", "drawn"), [(0.1, 100, 10), (0.1, 50, 5), (0.1, 5, 1), (0.29, 100, 28)]
)
def test_cohort_truncates(fraction: float, clients: int, drawn: int) -> None:
    assert Participation(fraction=fraction).cohort(clients) == drawn


@pytest.mark.parametrize("still", [{"epochs": 0}, {"lr": 0.0}])
def test_no_epochs_or_no_rate_leaves_the_model(still: dict[str, float], tmp_path: Path) -> None:
    row = Row("still", {"name": "fedavg"}, config={"training": still})
    moved, _ = run_toy(shortened(toy_config(row, tmp_path), 1), directory="one")
    start, _ = run_toy(shortened(toy_config(row, tmp_path), 0), directory="zero")
    assert moved.sha256 == start.sha256


def test_costs_are_one_model_each_way_and_every_sample_once_an_epoch(tmp_path: Path) -> None:
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 1))
    metrics = outcome.history[0]["metrics"]
    parameters = len(next(iter(outcome.models.values())))
    assert metrics["cost/down_mb"] == metrics["cost/up_mb"] == 4 * parameters * 4 / 1e6
    assert metrics["cost/forward"] == metrics["cost/backward"] == 4 * 60 * 2
