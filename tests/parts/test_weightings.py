"""Weightings by report and by distance, against printed digits."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.parts import distance_weighting
from rayfl.algorithms.parts.distance_weighting import (
    ByDistance,
    dampen_by_largest,
    dampen_by_size,
    find_distances,
)
from rayfl.algorithms.parts.report_weighting import ByReport
from rayfl.algorithms.parts.weighting import WEIGHTINGS
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import Client, Out, Replies
from tests.learn.kit import build_linear, build_normed, first_weights, make_learner
from tests.parts.fleets import open_fleet


def send(client: Client, *, models: dict[int, list[float]], report: dict[int, Any]) -> Out:
    return Out(report.get(client.id, {}), update=np.array(models[client.id], np.float32))


def replies(
    fleet: InlineFleet, gaps: dict[int, float], report: dict[int, Any] | None = None
) -> Replies:
    """Models that differ from client 0's in one number of one tensor, and their reports."""
    models = {}
    for client, gap in gaps.items():
        model = first_weights(make_learner(build_linear)).tolist()
        model[3] += gap
        models[client] = model
    return fleet.map(send, list(gaps), models=models, report=report or {})


# -- by report -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times_size", "expected"), [(False, {0: 0.1, 1: 0.4, 2: 0.5}), (True, {0: 1, 1: 8, 2: 15})]
)
def test_clients_count_by_what_they_report(times_size: bool, expected: dict[int, float]) -> None:
    shares = {k: {"doubt": 1 - tau} for k, tau in enumerate((0.9, 0.6, 0.5))}
    with open_fleet() as fleet:
        got = replies(fleet, dict.fromkeys(range(3), 0.0), shares)
        weights = ByReport(key="doubt", times_size=times_size)(got, fleet)
    assert weights == pytest.approx(expected)


def test_nobody_reporting_more_than_nothing_is_everybody() -> None:
    with open_fleet() as fleet:
        got = replies(fleet, {0: 0.0, 1: 0.0}, {0: {"kept": 0}, 1: {"kept": 0}})
        assert ByReport(key="kept")(got, fleet) == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_reports_that_are_no_weights_are_refused(value: float) -> None:
    with open_fleet() as fleet:
        got = replies(fleet, {1: 0.0}, {1: {"kept": value}})
        with pytest.raises(ConfigError, match=r"'kept' is a weight: finite and not .*\(client 1\)"):
            ByReport(key="kept")(got, fleet)


def test_a_missing_report_is_named() -> None:
    with open_fleet() as fleet:
        got = replies(fleet, {1: 0.0}, {1: {"loss": 1.0}})
        with pytest.raises(ConfigError, match=r"needs 'kept' in the report .* got loss \(client 1"):
            ByReport(key="kept")(got, fleet)


# -- by distance -----------------------------------------------------------------------------------


def test_examples_in_docstrings_are_true() -> None:
    outcome = doctest.testmod(distance_weighting)
    assert outcome.attempted >= 4
    assert outcome.failed == 0


def test_distances_of_zero_leave_the_sizes() -> None:
    sizes = {0: 10.0, 1: 30.0}
    assert dampen_by_largest(sizes, {0: 0.0, 1: 0.0}) == sizes
    assert dampen_by_size(sizes, {0: 0.0, 1: 0.0}) == pytest.approx({0: 0.25, 1: 0.75})


def test_the_farthest_keeps_one_part_in_e() -> None:
    found = dampen_by_largest({0: 1.0, 1: 1.0}, {0: 0.0, 1: 7.0})
    assert found[1] == pytest.approx(np.exp(-1))


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(1, (0.370978, 0.297056, 0.331966)), (5000, (1.0, 0.0, 0.0))],
    ids=["near", "far"],
)
def test_reweighting_of_rscfed(scale: float, expected: tuple[float, ...]) -> None:
    distances = {k: scale * d for k, d in enumerate((0.010, 0.020, 0.015))}
    found = dampen_by_size(dict.fromkeys(range(3), 450.0), distances, beta=1e4)
    assert list(found.values()) == pytest.approx(expected, abs=1e-6)


def test_the_automatic_factor_leaves_a_typical_client_one_part_in_e() -> None:
    found = dampen_by_size(dict.fromkeys(range(3), 10.0), {0: 0.0, 1: 3.0, 2: 3.0})
    assert found[1] / found[0] == pytest.approx(np.exp(-1))
    assert dampen_by_size({0: 1.0, 1: 3.0}, {0: 5.0, 1: 9.0}, 0.0) == pytest.approx(
        {0: 0.25, 1: 0.75}
    )


def test_noisy_clients_count_by_the_nearest_clean_one() -> None:
    noisy = {2: {"_noisy": True}, 3: {"_noisy": True}}
    with open_fleet() as fleet:
        got = replies(fleet, {0: 0.0, 1: 4.0, 2: 5.0, 3: 6.0}, noisy)
        weights = ByDistance()(got, fleet)
    expected = {0: 10, 1: 20, 2: 30 * np.exp(-0.5), 3: 5 * np.exp(-1)}
    assert weights == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("noisy", [(), (0, 1)], ids=["all clean", "none clean"])
def test_a_round_of_one_kind_counts_by_size(noisy: tuple[int, ...]) -> None:
    with open_fleet() as fleet:
        report = {client: {"_noisy": True} for client in noisy}
        got = replies(fleet, {0: 0.0, 1: 4.0}, report)
        assert ByDistance()(got, fleet) == {0: 10.0, 1: 20.0}


def test_clients_count_by_their_distance_from_the_mean() -> None:
    with open_fleet((10, 10, 10)) as fleet:
        got = replies(fleet, {0: 0.0, 1: 3.0, 2: 6.0})
        weights = ByDistance(to="mean")(got, fleet)
        plain = ByDistance(to="mean", beta=0.0)(got, fleet)
    assert weights[1] > weights[0] == pytest.approx(weights[2], rel=1e-5)
    assert list(plain.values()) == pytest.approx([1 / 3] * 3)


def test_distances_are_measured_where_updates_lie() -> None:
    with open_fleet(build=build_normed) as fleet:
        learner = make_learner(build_normed)
        start = first_weights(learner)
        moved = start + 1
        models = {0: start.tolist(), 1: moved.tolist()}
        got = fleet.map(send, [0, 1], models=models, report={})
        others = [got.ref(0), got.ref(1)]
        found = find_distances(got, others)
        bare = find_distances(got, others, [1], statistics=False)
    lengths = [t.numel() for t in build_normed().parameters()]
    assert found[0][0] == 0
    assert found[1].tolist() == [found[0][1], 0]
    assert bare[1][0] == pytest.approx(sum(np.sqrt(lengths)), rel=1e-5)
    assert bare[1][0] < found[1][0]


def send_two(client: Client, *, gap: dict[int, float]) -> Out:
    """A model, and what a method such as SCAFFOLD leaves beside it."""
    model = first_weights(client.learner)
    model[3] += gap[client.id]
    return Out({"_noisy": client.id == 2}, {"dc": np.zeros(2, np.float32), "w": model})


@pytest.mark.parametrize("to", ["clean", "mean"])
def test_of_several_updates_the_model_counts(to: Any) -> None:
    gaps = {0: 0.0, 1: 4.0, 2: 5.0}
    with open_fleet() as fleet:
        alone = ByDistance(to=to)(replies(fleet, gaps, {2: {"_noisy": True}}), fleet)
        got = fleet.map(send_two, list(gaps), gap=gaps)
        assert ByDistance(to=to)(got, fleet) == alone


@pytest.mark.parametrize("spec", ["distance", {"name": "report", "key": "kept"}])
def test_configurations_name_them(spec: Any) -> None:
    built = WEIGHTINGS.build(spec)
    assert isinstance(built, (ByDistance, ByReport))
    assert WEIGHTINGS.build(WEIGHTINGS.describe(built)) == built
