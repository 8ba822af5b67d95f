"""The conformance table: every method, the same promises.

A method's rows stand in its own test file as `ROWS`; each is held to all promises."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl import algorithms
from rayfl.algorithms import METHODS
from rayfl.errors import ConfigError
from rayfl.testing import ON_RAY, PROMISES, QUICK
from tests.algorithms.conformance import (
    Benches,
    Row,
    iterate_rows,
    model_norms,
    run_toy,
    shortened,
    toy_config,
)
from tests.fingerprint import describe_arithmetic

GOLDEN = Path(__file__).parents[1] / "golden"
TABLE = list(iterate_rows())

FIRST = {row.method["name"]: row.name for row in reversed(TABLE)}
"""The first row of every method; the others vary its settings."""
PLACED = {
    *FIRST.values(),
    "fedavg_stacked",
    "fedavg_bf16",
    "fedavg_dawid_skene",
    "fedavg_median",
    "fedavg_multi_krum",
    "scaffold_option_one",
}
"""Rows that are held to the promises in one process whenever tests are run: a second row of one
method seldom finds what the first did not, and takes as long. `make long` holds all of them."""

ON_RAY_ALWAYS = {
    "fedavg",
    "fedavg_stacked",
    "fedavg_dawid_skene",
    "fedavg_median",
    "scaffold",
    "fedrn",
    "fedcorr",
    "co_teaching",
    "rhfl",
    "fedcr",
    "fb_nll",
    "semifl",
}
"""Of those, the rows that are held to the promises on Ray as well: one for each thing that a fleet
of actors does for methods (sums, votes, medians, stacks, states that stay and states that
neighbours read, chains, two networks, logits, features, work at the server). The others, whose
phases use the same, are in `make long`: a row on Ray costs two processes that import torch."""

every_row = pytest.mark.parametrize("row", TABLE, ids=str)


def rows_with(names: set[str]) -> pytest.MarkDecorator:
    """All rows; those of other names only where time is no matter."""
    params = [
        pytest.param(row, marks=() if row.name in names else pytest.mark.long, id=row.name)
        for row in TABLE
    ]
    return pytest.mark.parametrize("row", params)


@pytest.fixture(scope="session")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Benches:
    return Benches(tmp_path_factory.mktemp("benches"))


def test_every_method_has_a_row() -> None:
    covered = {row.method["name"] for row in TABLE}
    assert set(METHODS.names()) <= covered


def test_every_row_is_held_to_every_promise() -> None:
    assert {*QUICK, *ON_RAY} == {promise.name for promise in PROMISES}


@rows_with(PLACED)
def test_promises_in_this_process(row: Row, benches: Benches) -> None:
    assert benches.find_unkept(row, QUICK) == {}


@rows_with(ON_RAY_ALWAYS)
def test_promises_on_ray(row: Row, benches: Benches, cluster: None) -> None:
    """One actor, three actors, and three of which one is killed, give the bits of this process."""
    assert benches.find_unkept(row, ON_RAY) == {}


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
        "norms": model_norms(outcome),
        "accuracy": [record["metrics"]["test/accuracy"] for record in outcome.history],
        "loss": [record["metrics"]["test/loss"] for record in outcome.history],
    }
    arithmetic = describe_arithmetic()
    path = GOLDEN / f"{row.name}.json"
    if os.environ.get("RAYFL_GOLDEN") == "write":
        path.write_text(json.dumps({"arithmetic": arithmetic, **found}, indent=1) + "\n")
    on_record = json.loads(path.read_text())
    if on_record.pop("arithmetic", None) == arithmetic:
        assert found == on_record
        return
    for name, values in found.items():
        # Another CPU's kernels may differ in the last bits, and so may what follows from them.
        tolerance = 0.02 if name == "accuracy" else 1e-6
        np.testing.assert_allclose(values, on_record[name], rtol=2e-3, atol=tolerance)


EXPLAINED = [name for name in METHODS.names() if METHODS.find(name).metrics]
"""Methods that say what their measures mean."""


@pytest.mark.parametrize("method", EXPLAINED)
def test_every_metric_of_its_own_has_a_meaning(method: str, tmp_path: Path) -> None:
    rows = [row for row in TABLE if row.method["name"] == method]
    named = set.union(*(find_further_metrics(row, tmp_path / row.name) for row in rows))
    hosts = [row.method["host"] for row in rows if "host" in row.method]
    hosted = {name for host in hosts for name in METHODS.build(host).metrics}
    explained = set(METHODS.find(method).metrics)
    assert explained <= named
    # The rest is found by the experiment, whatever the method's class says.
    assert not {
        name
        for name in named - explained - hosted
        if not name.startswith(("test/", "labels/", "clusters/"))
    }


def find_further_metrics(row: Row, folder: Path) -> set[str]:
    """What a row's run logs and federated averaging does not."""
    outcome, _ = run_toy(toy_config(row, folder))
    plain = toy_config(row, folder, {"name": "fedavg"})
    usual, _ = run_toy(shortened(plain, 1), directory="plain")
    named = {name for record in outcome.history for name in record["metrics"]}
    return named - set(usual.history[0]["metrics"])


def test_no_method_fetches_a_value_to_the_coordinator() -> None:
    """Models stay where they are made: rounds of the package's methods handle references alone."""
    sources = sorted(Path(algorithms.__path__[0]).rglob("*.py"))
    fetching = [path.name for path in sources if "fleet.get(" in path.read_text()]
    assert len(sources) > len(METHODS.names())
    assert fetching == []


REFUSALS = [(row, bad, match) for row in TABLE for bad, match in row.refused]


@pytest.mark.parametrize(
    ("row", "bad", "match"), REFUSALS, ids=[f"{r}-{'-'.join(b)}" for r, b, _ in REFUSALS]
)
def test_bad_hyper_parameters_are_refused(
    row: Row, bad: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        toy_config(row, tmp_path, {**row.method, **bad})
