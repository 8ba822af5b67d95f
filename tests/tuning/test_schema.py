"""What a sweep file may say, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl.errors import ConfigError
from rayfl.tuning.driver import sweep
from rayfl.tuning.points import plan_points, refuse_bad_points
from rayfl.tuning.schema import load_sweep, read_sweep
from tests.tuning.tiny import GRID, sweep_for

SWEEPS = sorted((Path(__file__).parents[2] / "configs" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "search is required and missing"),
        ({"search": {}}, "search: Dictionary should have at least 1 item"),
        (
            {"search": {"training.lr": 0.1}},
            "search.training.lr: a domain has exactly one of grid, .*; got 0.1",
        ),
        (
            {"search": {"training.lr": {"unifrom": [0, 1]}}},
            "got {'unifrom': .*Did you mean 'uniform'",
        ),
        ({"search": {"training.lr": {"grid": [1], "choice": [1]}}}, "a domain has exactly one of"),
        (
            {"search": {"training.lr": {"grid": []}}},
            "search.training.lr.grid: List should have at least 1 item",
        ),
        (
            {"search": {"training.lr": {"uniform": [1, 0]}}},
            r"uniform goes from a lower to a higher bound; got \[1, 0\]",
        ),
        (
            {"search": {"training.lr": {"loguniform": [0, 1]}}},
            "loguniform needs bounds above 0; got 0. Use uniform",
        ),
        (
            {"search": {"training.lr": {"quniform": [0, 1, 2]}}},
            "the step of quniform is above 0 and fits .*; got 2.0",
        ),
        ({"search": {"clients": {"randint": [1.5, 2]}}}, "search.clients.randint"),
        (
            {"search": {"clients": {"choice": [1]}}},
            r"searcher: grid needs grids only; got choice \[1\] for clients",
        ),
        (
            {"search": {"seed": {"grid": [1]}}},
            "search names settings that decide a result; got seed. Set seeds",
        ),
        ({"search": {"output": {"grid": ["x"]}}}, "got output. Set it in `set`"),
        ({"search": GRID, "seeds": [1, 1]}, r"seeds are all different; got \[1, 1\]"),
        (
            {"search": GRID, "name": "a/b"},
            "a sweep's name is made of letters, digits, - _ and .; got 'a/b'",
        ),
        ({"search": GRID, "scheduler": "ash"}, "unknown scheduler 'ash'. Did you mean 'asha'"),
        (
            {"search": GRID, "scheduler": {"name": "asha", "grac": 1}},
            "scheduler.grac is not a known key. Did you mean",
        ),
        (
            {"search": GRID, "scheduler": {"name": "asha", "reduction": 1}},
            "scheduler.reduction: must be greater than 1",
        ),
        (
            {"search": GRID, "scheduler": "pbt", "seeds": [0, 1]},
            "pbt trains one population: .*one seed",
        ),
        (
            {"search": {"noise.rate": {"grid": [0]}}, "scheduler": "pbt"},
            "pbt searches settings below `training`",
        ),
        ({"search": {"training.rounds": {"grid": [1]}}, "scheduler": "pbt"}, r"\(not rounds\)"),
        ({"search": GRID, "samplse": 3}, "samplse is not a known key. Did you mean 'samples'"),
        ({1: 2}, "keys are text"),
    ],
)
def test_a_wrong_sweep_is_refused_with_rule_value_and_remedy(
    settings: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_sweep(settings, tmp_path)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_repository_s_sweeps_are_good(path: Path) -> None:
    sweep = load_sweep(path)
    refuse_bad_points(sweep, plan_points(sweep))
    assert sweep.name == path.stem
    assert (
        read_sweep(yaml.safe_load(yaml.safe_dump(sweep.model_dump(mode="json"))), Path()) == sweep
    )


def test_a_file_builds_on_configurations_and_overrides_are_of_the_sweep_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "base.yaml").write_text("clients: 7\ntraining: {lr: 0.5, rounds: 3}\n")
    text = "base: base.yaml\nset: {training: {rounds: 4}}\nsearch: {training.lr: {grid: [1]}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    words = ["set.clients=9", "search.training.lr={grid: [2, 3]}", "seeds=[5]"]
    sweep = load_sweep(tmp_path / "mine.yaml", words)
    assert (sweep.name, sweep.base, sweep.seeds) == ("mine", [], [5])
    assert sweep.set == {"clients": 9, "training": {"lr": 0.5, "rounds": 4}}
    assert sweep.search["training.lr"].grid == [2, 3]


def test_a_sweep_with_credentials_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    secret = {"checkpoint": {"uri": "s3://k:hunter2@b/x"}}
    with pytest.raises(ConfigError, match=r"hold no credentials; got tiny\. Set them"):
        sweep(sweep_for(tmp_path / "out", set=secret))
    assert not (tmp_path / "out").exists()
