"""Aggregations that withstand hostile clients: against plain numpy, and up to where they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.parts import order_statistics
from rayfl.algorithms.parts.aggregation import AGGREGATIONS, Aggregation
from rayfl.algorithms.parts.krum import MultiKrum
from rayfl.algorithms.parts.whole_models import pick_update
from rayfl.algorithms.scaffold import Scaffold
from rayfl.arrays import Floats, Vector
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import Client, NobodyLeft, Out
from tests.algorithms.conformance import Row, run_toy, toy_config
from tests.algorithms.toys import fleet_of

ALL_OF_FOUR = {"name": "multi_krum", "f": 0, "m": 4}
MEAN = {"name": "fedavg"}


def averaging(aggregation: Any) -> dict[str, Any]:
    return {"name": "fedavg", "aggregation": aggregation}


ROWS = [
    Row("fedavg_median", averaging("median")),
    Row(
        "fedavg_trimmed_mean",
        averaging({"name": "trimmed_mean", "share": 0.25}),
        neutral=averaging({"name": "trimmed_mean", "share": 0}),
        same_as=MEAN,
        refused=[({"aggregation": {"name": "trimmed_mean", "share": 0.5}}, "less than 0.5")],
    ),
    Row(
        "fedavg_multi_krum",
        averaging({"name": "multi_krum", "f": 0, "m": 3}),
        neutral=averaging(ALL_OF_FOUR),
        same_as=MEAN,
        refused=[({"aggregation": {"name": "krum", "f": -1}}, "f")],
    ),
    Row(
        "fedavg_geometric_median",
        averaging("geometric_median"),
        neutral=averaging({"name": "geometric_median", "iterations": 0}),
        same_as=MEAN,
    ),
    Row(
        "fedavg_clipped_mean",
        averaging("clipped_mean"),
        neutral=averaging({"name": "clipped_mean", "bound": None}),
        same_as=MEAN,
        refused=[({"aggregation": {"name": "clipped_mean", "bound": 0}}, "bound")],
    ),
]

SIZES = [3, 5, 2, 8, 4, 6, 7]
LENGTH = 40


def leave_named(client: Client, *, models: Mapping[int, Any], w: Vector, b: Vector) -> Out:
    """The client's model, under two names."""
    return Out(update={"w": models[client.id], "b": models[client.id] * np.float32(2)})


def aggregate(
    fleet: InlineFleet,
    part: Aggregation,
    models: Floats,
    weights: Sequence[float],
    key: str | None = None,
    start: Vector | None = None,
) -> Vector:
    """What a part makes of these models, a row a client."""
    rows = dict(enumerate(models.astype(np.float32)))
    first = fleet.put(np.zeros(models.shape[1], np.float32) if start is None else start)
    got = fleet.map(leave_named, range(len(models)), models=rows, w=first, b=first)
    found: Vector = fleet.get(part(got, dict(enumerate(weights)), fleet, key))
    return found


@pytest.fixture
def models() -> Floats:
    """Seven models, two of them far away."""
    drawn = np.random.default_rng(5).normal(size=(len(SIZES), LENGTH)).astype(np.float32)
    drawn[[2, 6]] *= 30
    return drawn.astype(np.float64)


# -- the same in plain numpy -----------------------------------------------------------------------


def plain_median(models: Floats, weights: Floats) -> Floats:
    """Every value as often as it weighs: whole weights alone."""
    found: Floats = np.median(np.repeat(models, weights.astype(int), axis=0), axis=0)
    return found


def plain_trimmed(models: Floats, weights: Floats) -> Floats:
    columns = []
    for column in models.T:
        kept = np.argsort(column)[2:-2]
        columns.append(np.average(column[kept], weights=weights[kept]))
    return np.array(columns)


def plain_krum(models: Floats, weights: Floats, f: int = 2, m: int = 1) -> Floats:
    scores = []
    for i, own in enumerate(models):
        others = [np.sum((own - other) ** 2) for j, other in enumerate(models) if j != i]
        scores.append(sum(sorted(others)[: len(models) - f - 2]))
    best = np.argsort(scores)[:m]
    found: Floats = np.average(models[best], axis=0, weights=weights[best])
    return found


def plain_geometric(models: Floats, weights: Floats) -> Floats:
    centre: Floats = np.average(models, axis=0, weights=weights)
    for _ in range(400):
        gaps = np.linalg.norm(models - centre, axis=1)
        centre = np.average(models, axis=0, weights=weights / gaps)
    return centre


def plain_clipped(models: Floats, weights: Floats) -> Floats:
    norms = np.linalg.norm(models - 1, axis=1)
    factors = np.minimum(1, np.median(norms) / norms)
    found: Floats = 1 + np.average((models - 1) * factors[:, None], axis=0, weights=weights)
    return found


REFERENCES: dict[str, tuple[dict[str, Any], Any]] = {
    "median": ({}, plain_median),
    "trimmed_mean": ({"share": 0.29}, plain_trimmed),
    "krum": ({"f": 2}, plain_krum),
    "multi_krum": ({"f": 1, "m": 3}, lambda x, n: plain_krum(x, n, f=1, m=3)),
    "geometric_median": ({"iterations": 400, "tolerance": 0.0}, plain_geometric),
    "clipped_mean": ({}, plain_clipped),
}


@pytest.mark.parametrize("weights", [[1] * 7, SIZES], ids=["equal", "size"])
@pytest.mark.parametrize("name", REFERENCES)
def test_it_is_what_plain_numpy_finds(name: str, weights: list[int], models: Floats) -> None:
    settings, reference = REFERENCES[name]
    part = AGGREGATIONS.build({"name": name, **settings})
    start = np.ones(LENGTH, np.float32)
    found = aggregate(fleet_of(SIZES), part, models, weights, start=start)
    expected = reference(models, np.array(weights, np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted({*REFERENCES} - {"clipped_mean"}))
def test_several_updates_are_aggregated_one_by_one(name: str, models: Floats) -> None:
    settings, _ = REFERENCES[name]
    part = AGGREGATIONS.build({"name": name, **settings})
    fleet = fleet_of(SIZES)
    first, second = (aggregate(fleet, part, models, SIZES, key) for key in ("w", "b"))
    # Twice as large in everything: distances are of this update alone.
    np.testing.assert_allclose(second, 2 * first, rtol=1e-4, atol=1e-5)
    logged = fleet.take_logged()
    # Each network's measures stand beside the other's.
    assert {f"{name}_b" for name in part.metrics} <= set(logged)
    assert set(part.metrics) <= set(logged)


@pytest.mark.parametrize(
    "neutral",
    [
        {"name": "trimmed_mean", "share": 0},
        {"name": "multi_krum", "f": 0, "m": 7},
        {"name": "geometric_median", "iterations": 0},
        {"name": "clipped_mean", "bound": None},
        {"name": "clipped_mean", "bound": 1e9},
    ],
    ids=lambda spec: f"{spec['name']}-{list(spec.values())[1]}",
)
def test_neutral_settings_are_the_mean_bit_by_bit(neutral: dict[str, Any], models: Floats) -> None:
    fleet = fleet_of(SIZES)
    mean = aggregate(fleet, AGGREGATIONS.build("mean"), models, SIZES)
    found = aggregate(fleet, AGGREGATIONS.build(neutral), models, SIZES)
    assert np.array_equal(found, mean)


def test_slices_leave_no_trace(models: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = aggregate(fleet_of(SIZES), AGGREGATIONS.build("median"), models, SIZES)
    # 5 values a slice: 8 full ones, and an empty one that says so.
    monkeypatch.setattr(order_statistics, "_LONGEST", 5)
    sliced = aggregate(fleet_of(SIZES), AGGREGATIONS.build("median"), models, SIZES)
    assert np.array_equal(whole, sliced)


def test_models_of_several_blocks_are_all_compared() -> None:
    drawn = np.random.default_rng(1).normal(size=(21, 6))
    drawn[:5] += 50
    found = aggregate(fleet_of([1] * 21), MultiKrum(f=5, m=16), drawn, [1] * 21)
    np.testing.assert_allclose(found, drawn[5:].astype(np.float32).mean(axis=0), rtol=1e-5)


# -- where they break ------------------------------------------------------------------------------

N = 11
BREAKING: dict[str, tuple[Any, int, int]] = {
    "mean": ("mean", 0, 1),
    "median": ("median", 5, 6),
    "trimmed_mean": ({"name": "trimmed_mean", "share": 0.28}, 3, 4),
    "krum": ({"name": "krum", "f": 4}, 4, 7),
    "multi_krum": ({"name": "multi_krum", "f": 4, "m": 5}, 4, 7),
    "geometric_median": ({"name": "geometric_median", "iterations": 100}, 5, 6),
    "clipped_mean": ("clipped_mean", 5, 6),
}
"""Of eleven clients: the aggregation, how many hostile ones it withstands, and how many it does
not."""


def find_error(spec: Any, hostile: int) -> float:
    """How far the aggregate is from the honest mean, where hostile clients agree on a far model."""
    honest = np.random.default_rng(3).normal(size=(N, 30))
    sent = honest.copy()
    sent[:hostile] = 1e6 + honest[:hostile] * 1e-3
    found = aggregate(fleet_of([1] * N), AGGREGATIONS.build(spec), sent, [1] * N)
    return float(np.linalg.norm(found - honest[hostile:].mean(axis=0)))


@pytest.mark.parametrize("name", BREAKING)
def test_it_holds_up_to_its_breakdown_point_and_not_beyond(name: str) -> None:
    spec, withstood, too_many = BREAKING[name]
    # Honest models are about 5.5 from their mean.
    assert find_error(spec, withstood) < 12
    assert find_error(spec, too_many) > 1e4


def test_a_far_model_does_not_end_the_iterations() -> None:
    """The sum of distances does: of eleven clients five are so far away that it hardly falls while
    the centre still has a long way to go."""
    early = find_error({"name": "geometric_median", "iterations": 10}, 5)
    assert find_error("geometric_median", 5) < 12 < early / 1e4


def test_a_fixed_bound_holds_whoever_is_hostile() -> None:
    part = AGGREGATIONS.build({"name": "clipped_mean", "bound": 2.0})
    far = np.full((N, 30), 1e6)
    assert np.linalg.norm(aggregate(fleet_of([1] * N), part, far, [1] * N)) <= 2.0 + 1e-4


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "match"),
    [
        ({"name": "krum", "f": 1}, r"needs rounds of 2 f \+ 3 = 5 clients; got 4.*Raise"),
        ({"name": "multi_krum", "f": 0, "m": 5}, "at most n - f = 4 clients; got m: 5"),
        ({"name": "trimmed_mean", "share": 0.2}, "at least one client on either side.*Raise"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_small_rounds_are_refused_before_the_first(aggregation: Any, match: str) -> None:
    method = FedAvg(aggregation=AGGREGATIONS.build(aggregation))
    with pytest.raises(ConfigError, match=match):
        method.check(fleet_of([1] * 4))


def test_scaffold_refuses_all_but_the_mean() -> None:
    with pytest.raises(ConfigError, match=r"plain mean of all c_i.*got Median.*fedavg or fedprox"):
        Scaffold(aggregation=AGGREGATIONS.build("median")).check(fleet_of([1] * 4))


def leave_number(client: Client, *, own: Vector) -> Out:
    return Out(update=own)


def test_clipping_needs_to_know_where_clients_began() -> None:
    fleet = fleet_of([1] * 4)
    own = {client: {"own": fleet.put(np.ones(2, np.float32))} for client in range(4)}
    got = fleet.map(leave_number, range(4), own)
    with pytest.raises(ConfigError, match=r"one and the same model, as the input 'w'.*w=\.\.\."):
        AGGREGATIONS.build("clipped_mean")(got, dict.fromkeys(range(4), 1.0), fleet)


def leave_some(client: Client) -> Out:
    return Out(update=np.full(2, np.nan if client.id < 3 else client.id, np.float32))


def test_a_round_that_lost_too_many_is_void() -> None:
    fleet = fleet_of([1] * 6)
    got = fleet.map(leave_some, range(6))
    with pytest.raises(NobodyLeft, match="f = 1 is left with 3 clients"):
        AGGREGATIONS.build({"name": "krum", "f": 1})(got, dict.fromkeys(got, 1.0), fleet)


def test_clients_without_weight_take_no_part(models: Floats) -> None:
    weights = [1.0, 1, 0, 1, 1, 1, 0]
    honest = models[[0, 1, 3, 4, 5]]
    found = aggregate(fleet_of(SIZES), AGGREGATIONS.build("median"), models, weights)
    np.testing.assert_allclose(found, np.median(honest, axis=0), rtol=1e-6)


# -- what a run says -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_measures_have_meanings(name: str, tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.name == name)
    part = AGGREGATIONS.build(row.method["aggregation"])
    outcome, _ = run_toy(toy_config(row, tmp_path, training={"rounds": 1}))
    logged = {name for name in outcome.history[0]["metrics"] if name.startswith("aggregation/")}
    assert logged == set(part.metrics)


def test_of_one_update_there_is_nothing_to_choose() -> None:
    assert pick_update({"x": np.ones(1, np.float32)}, None).tolist() == [1.0]
