"""Runs with hostile clients: the same bits in every place, seen by the experiment alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.config.files import merge_settings
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError
from rayfl.federation.scenario import open_federation
from rayfl.fleet.base import STAMPED_SET
from rayfl.fleet.executor import NOTHING, Task
from rayfl.fleet.tampering import Tampering, find_start
from rayfl.run.assembly import build_holdings
from rayfl.run.engine import Outcome
from rayfl.testing import TOY
from tests.algorithms.conformance import run_toy

TEN = {
    "clients": 10,
    "noise": "none",
    "training": {"clients_per_round": 10, "rounds": 8},
}
KINDS: dict[str, dict[str, Any]] = {
    "label_flip": {"clients": 0.3},
    "sign_flip": {"clients": 0.3, "scale": 4},
    "scaled": {"clients": 0.3, "scale": 50},
    "gaussian": {"clients": 0.3},
    "backdoor": {"clients": 0.3, "scale": 3},
}

ROBUST: list[dict[str, Any]] = [
    {"name": "median"},
    {"name": "trimmed_mean", "share": 0.3},
    {"name": "multi_krum", "f": 3},
    {"name": "geometric_median"},
]


def config_of(folder: Path, hostile: Any = None, aggregation: Any = "mean", **more: Any) -> Config:
    method = {"name": "fedavg", "aggregation": aggregation}
    own = {"hostile": hostile, "method": method, "output": str(folder), "data_root": str(folder)}
    return validate_config(merge_settings(merge_settings(TOY, TEN), {**own, **more}))


def play(folder: Path, *settings: Any, place: str = "inline", **more: Any) -> Outcome:
    outcome, _ = run_toy(config_of(folder, *settings, **more), place, f"{place}")
    return outcome


def last(outcome: Outcome) -> dict[str, float]:
    found: dict[str, float] = outcome.history[-1]["metrics"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_places_and_orders_give_the_same_bits(kind: str, tmp_path: Path) -> None:
    hostile = {"name": kind, **KINDS[kind]}
    short = {"training": {"rounds": 2}}
    straight, turned = (
        play(tmp_path, hostile, "mean", place=place, **short) for place in ("inline", "reversed")
    )
    assert straight.sha256 == turned.sha256
    assert straight.history[-1]["metrics"] == turned.history[-1]["metrics"]
    stacked = {"training": {"rounds": 2, "stack": "always"}}
    again = [play(tmp_path / p, hostile, place=p, **stacked) for p in ("inline", "reversed")]
    assert again[0].sha256 == again[1].sha256


def test_on_ray_they_do_the_same(tmp_path: Path, cluster: None) -> None:
    hostile = {"name": "backdoor", "clients": 0.3, "scale": 3}
    short = {"training": {"rounds": 2}}
    robust = {"name": "multi_krum", "f": 3}
    here, there = (
        play(tmp_path, hostile, robust, place=place, **short) for place in ("inline", "ray1")
    )
    assert here.sha256 == there.sha256
    assert last(here)["test/backdoor_success"] == last(there)["test/backdoor_success"]


@pytest.mark.parametrize("neutral", [{"name": "scaled", "scale": 0.0}, {"name": "sign_flip"}])
def test_nobody_hostile_is_the_honest_run(neutral: dict[str, Any], tmp_path: Path) -> None:
    honest = play(tmp_path / "honest")
    nobody = play(tmp_path / "nobody", {**neutral, "clients": 0.0})
    assert honest.sha256 == nobody.sha256


@pytest.mark.parametrize("kind", ["sign_flip", "scaled", "gaussian"])
def test_the_mean_breaks_and_robust_aggregations_do_not(kind: str, tmp_path: Path) -> None:
    hostile = {"name": kind, **KINDS[kind]}
    mean = play(tmp_path / "mean", hostile)
    assert last(mean)["test/accuracy"] < 0.8
    for part in ROBUST:
        robust = play(tmp_path / part["name"], hostile, part)
        assert last(robust)["test/accuracy"] > 0.9, part


def test_beyond_the_breakdown_point_the_median_breaks_too(tmp_path: Path) -> None:
    many = {"name": "sign_flip", "clients": 0.6, "scale": 4}
    assert last(play(tmp_path, many, "median"))["test/accuracy"] < 0.6


def test_a_backdoor_works_on_the_mean_and_not_on_the_median(tmp_path: Path) -> None:
    hostile = {"name": "backdoor", "clients": 0.3, "scale": 3}
    mean = last(play(tmp_path / "mean", hostile))
    median = last(play(tmp_path / "median", hostile, "median"))
    assert mean["test/backdoor_success"] > 0.9
    assert median["test/backdoor_success"] < 0.1
    assert "test/backdoor_success" not in last(play(tmp_path / "honest"))


def test_the_experiment_compares_beliefs_of_hostile_and_honest(tmp_path: Path) -> None:
    hostile = {"name": "scaled", "clients": 0.3, "scale": 50}
    chosen = last(play(tmp_path, hostile, {"name": "multi_krum", "f": 3, "m": 7}))
    assert chosen["chosen/hostile"] == 0.0
    assert chosen["chosen/honest"] == 1.0


def test_stamped_images_are_the_experiments_alone(tmp_path: Path) -> None:
    hostile = {"name": "backdoor", "clients": [2], "target": 1, "size": 2}
    config = config_of(tmp_path, hostile)
    dataset, scenario = open_federation(config, 0)
    before = dataset.train.x.copy()
    holdings = build_holdings(config, dataset, scenario)
    attack = scenario.attack
    assert attack is not None
    assert np.array_equal(dataset.train.x, before)
    changed = np.flatnonzero((holdings.x != before).any(axis=(1, 2, 3)))
    # An image that is white there already looks the same.
    assert set(changed) <= set(attack.rows.tolist())
    assert (holdings.x[attack.rows, -2:, -2:] == 255).all()
    stamped = holdings.sets[STAMPED_SET]
    assert stamped.y is not None
    assert not (stamped.y == 1).any()
    assert not (holdings.sets["test"].x[:, -2:, -2:] == 255).all()


def test_no_method_can_ask_for_the_stamped_images(tmp_path: Path) -> None:
    hostile = {"name": "backdoor", "clients": [2]}
    _, fleet = run_toy(config_of(tmp_path, hostile, training={"rounds": 1}))
    with pytest.raises(ConfigError, match="a method sees what a real federation has"):
        fleet.data(STAMPED_SET)


def double(update: Any, start: Any, rng: np.random.Generator) -> Any:
    return start + 2 * (update - start)


def test_only_visits_of_hostile_clients_are_tampered_with() -> None:
    tampering = Tampering(frozenset({3}), double, seed=0)
    w, c = np.ones(2, np.float32), np.full(2, 5, np.float32)
    theirs = tampering.begin(Task(3, 0, NOTHING, NOTHING), {"w": w, "c": c})
    assert theirs is not None
    changed = theirs({"w": 2 * w, "dc": w})
    # `dc` has no input of its name: it is a change already.
    assert changed["w"].tolist() == [3.0, 3.0]
    assert changed["dc"].tolist() == [2.0, 2.0]
    assert tampering.begin(Task(2, 0, NOTHING, NOTHING), {"w": w}) is None
    assert tampering.begin(Task(3, 0, NOTHING, NOTHING, examined=True), {"w": w}) is None


def test_an_input_of_another_size_is_no_start() -> None:
    assert find_start("w", np.ones(2, np.float32), {"w": np.ones(3, np.float32)}).tolist() == [0, 0]


WITHIN = {
    "partition": {"name": "tasks", "tasks": [[0, 1], [2, 3]]},
    "split": {"validation": {"per_class": 10}},
    "training": {"rounds": 3},
}


def play_clustered(folder: Path, part: str) -> Outcome:
    """Two true clusters, in each of which a host aggregates."""
    clustered = {
        "name": "fb_nll",
        "clustering_encoder": "pixels",
        "correction_encoder": "pixels",
        "host": {"name": "fedavg", "aggregation": part},
    }
    plain = config_of(folder, **WITHIN).model_dump(mode="json", exclude={"method"})
    outcome, _ = run_toy(validate_config({**plain, "method": clustered}))
    return outcome


def test_robust_aggregations_work_within_clusters(tmp_path: Path) -> None:
    parts = ("mean", "median", "clipped_mean")
    mean, median, clipped = (play_clustered(tmp_path / part, part) for part in parts)
    assert len({mean.sha256, median.sha256, clipped.sha256}) == 3
    assert last(median)["test/accuracy"] > 0.9
    # Half of the five clients of a cluster, and the bound is their own median.
    assert last(clipped)["aggregation/clipped"] == 2
    assert last(clipped)["clusters/adjusted_rand"] == 1


def test_scaffolds_control_variates_are_changed_as_changes(tmp_path: Path) -> None:
    hostile = {"name": "scaled", "clients": 0.3, "scale": 0.0}
    base = config_of(tmp_path, hostile, training={"rounds": 1}).model_dump(mode="json")
    silent, _ = run_toy(validate_config({**base, "method": {"name": "scaffold"}}))
    honest, _ = run_toy(
        validate_config({**base, "hostile": None, "method": {"name": "scaffold"}}), "inline", "h"
    )
    assert silent.sha256 != honest.sha256
    assert last(silent)["test/loss"] < 5
