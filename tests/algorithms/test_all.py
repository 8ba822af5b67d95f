"""The conformance table: every method, the same promises.

A method's rows stand in its own test file as `ROWS`; this file finds them and holds each to all
promises."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms import METHODS
from rayfl.errors import ConfigError
from rayfl.fleet import executor
from rayfl.protocol import REPORT_LIMIT
from rayfl.run.engine import Outcome
from tests.algorithms.conformance import Row, facts, norms, run_toy, shortened, toy_config

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"


def rows() -> Iterator[Row]:
    for path in sorted(HERE.glob("test_*.py")):
        if path.name != Path(__file__).name:
            yield from getattr(importlib.import_module(f"tests.algorithms.{path.stem}"), "ROWS", [])


TABLE = list(rows())
BASELINES: dict[str, Outcome] = {}


@pytest.fixture
def baseline(row: Row, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The row's run in this process: made once, compared with many."""
    if row.name not in BASELINES:
        BASELINES[row.name], _ = run_toy(toy_config(row, tmp_path_factory.mktemp(row.name)))
    return BASELINES[row.name]


every_row = pytest.mark.parametrize("row", TABLE, ids=str)


def test_every_method_has_a_row() -> None:
    covered = {row.method["name"] for row in TABLE}
    assert set(METHODS.names()) <= covered


@every_row
def test_learns_under_label_noise(row: Row, baseline: Outcome) -> None:
    assert baseline.history[-1]["metrics"]["test/accuracy"] >= row.floor


@every_row
@pytest.mark.parametrize("place", ["ray1", "killing"])
def test_place_changes_nothing(
    row: Row, place: str, baseline: Outcome, tmp_path: Path, cluster: None
) -> None:
    """One actor, and three actors of which one is killed, give the bits of the in-process fleet."""
    there, fleet = run_toy(toy_config(row, tmp_path), place)
    assert facts(there) == facts(baseline)
    assert place == "ray1" or fleet.killed  # type: ignore[attr-defined]


@every_row
def test_resumed_equals_uninterrupted(row: Row, baseline: Outcome, tmp_path: Path) -> None:
    config = toy_config(row, tmp_path)
    run_toy(shortened(config, config.training.rounds - 2))
    resumed, _ = run_toy(config)
    # The last round of a run is always evaluated, so every round must be, for the histories to be
    # the same.
    assert facts(resumed) == facts(baseline)


@every_row
def test_order_of_submission_changes_nothing(row: Row, baseline: Outcome, tmp_path: Path) -> None:
    backward, _ = run_toy(toy_config(row, tmp_path), "reversed")
    assert facts(backward) == facts(baseline)


@every_row
def test_reports_stay_small(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    weigh = executor.nbytes

    def weighed(value: Any, *, scalars: bool = True, private: bool = False) -> int:
        nonlocal largest
        size = weigh(value, scalars=scalars, private=private)
        largest = max(largest, size if private else 0)
        return size

    monkeypatch.setattr(executor, "nbytes", weighed)
    run_toy(shortened(toy_config(row, tmp_path), 2))
    assert 0 < largest < REPORT_LIMIT / 16


@pytest.mark.parametrize("row", [row for row in TABLE if row.neutral is not None], ids=str)
def test_neutral_setting_is_the_simpler_method(row: Row, tmp_path: Path) -> None:
    neutral, _ = run_toy(toy_config(row, tmp_path, row.neutral), directory="neutral")
    simpler, _ = run_toy(toy_config(row, tmp_path, row.same_as), directory="simpler")
    assert neutral.sha256 == simpler.sha256


@every_row
def test_golden_numbers(row: Row, tmp_path: Path) -> None:
    """A few rounds give the numbers on record. RAYFL_GOLDEN=write records them anew."""
    outcome, _ = run_toy(shortened(toy_config(row, tmp_path), 3))
    found = {
        "norms": norms(outcome),
        "accuracy": [record["metrics"]["test/accuracy"] for record in outcome.history],
        "loss": [record["metrics"]["test/loss"] for record in outcome.history],
    }
    path = GOLDEN / f"{row.name}.json"
    if os.environ.get("RAYFL_GOLDEN") == "write":
        path.write_text(json.dumps(found, indent=1) + "\n")
    on_record = json.loads(path.read_text())
    for name, values in found.items():
        # Another CPU's kernels may differ in the last bits, and so may what follows from them.
        np.testing.assert_allclose(
            values, on_record[name], rtol=2e-3, atol=0.02 if name == "accuracy" else 1e-6
        )


REFUSALS = [(row, bad, match) for row in TABLE for bad, match in row.refused]


@pytest.mark.parametrize(
    ("row", "bad", "match"), REFUSALS, ids=[f"{r}-{'-'.join(b)}" for r, b, _ in REFUSALS]
)
def test_bad_hyper_parameters_are_refused(
    row: Row, bad: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        toy_config(row, tmp_path, {**row.method, **bad})


@every_row
def test_odd_federations(row: Row, tmp_path: Path) -> None:
    """A client with one sample, one with one class, one with every label wrong: the run ends with a
    finite model."""
    config = toy_config(row, tmp_path)
    odd = odd_federation(tmp_path, config.clients)
    if row.config.get("partition") is None:
        config = toy_config(
            row, tmp_path, partition=odd[0], noise=odd[1], split={**row.config.get("split", {})}
        )
    outcome, _ = run_toy(config)
    assert all(np.isfinite(vector).all() for vector in outcome.models.values())


def odd_federation(folder: Path, clients: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Client 0 holds one sample, client 1 a handful; client 2's labels are all wrong."""
    sizes = {"name": "tests.algorithms.odd:OneSample"}
    rates = [0.0, 0.0, 1.0] + [0.3] * (clients - 3)
    return sizes, {"name": "symmetric", "rate": rates}
