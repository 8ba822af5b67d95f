"""Finished runs, read back: scores, derived measures, and finding the run that a configuration asks
for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rayfl.config.schema import Config
from rayfl.run.store import (
    DERIVED,
    Record,
    Shelf,
    divide_or_nan,
    find_record,
    list_records,
    read_record,
)

METRICS = {
    "cost/down_mb": 12.0,
    "cost/up_mb": 4.0,
    "cost/forward": 3000.0,
    "cost/backward": 1500.0,
    "clients/participants": 2.0,
}
FACTS = {"parameters": 500_000, "mean_client_samples": 250.0}


def written(
    folder: Path,
    config: Config,
    scenario: str = "s",
    values: tuple[float, ...] = (0.1, 0.4, 0.3),
    **facts: Any,
) -> Path:
    """A finished run of these accuracies, as the experiment leaves one."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.resolved()))
    (folder / "run.json").write_text(json.dumps({"digest": config.digest, "scenario": scenario}))
    history = [
        {"round": t, "metrics": {"test/accuracy": value, **METRICS}, "clock": {"time/train_s": 3.0}}
        for t, value in enumerate(values, start=1)
    ]
    ended = {"sha256": "h", "rounds": len(values), "history": history, "facts": facts or FACTS}
    (folder / "result.json").write_text(json.dumps(ended))
    return folder


@pytest.fixture
def record(tmp_path: Path) -> Record:
    found = read_record(written(tmp_path / "runs" / "a", Config(clients=8)))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("over", "window", "lower", "expected"),
    [
        ("final", 10, False, 0.3),
        ("best", 10, False, 0.4),
        ("best", 10, True, 0.1),
        ("mean", 10, False, 0.8 / 3),
        ("last", 2, False, 0.35),
        ("last", 99, False, 0.8 / 3),
    ],
)
def test_one_number_for_a_run(
    record: Record, over: str, window: int, lower: bool, expected: float
) -> None:
    assert record.score("test/accuracy", over, window, lower) == pytest.approx(expected)


def test_what_was_not_measured_has_no_score(record: Record) -> None:
    assert math.isnan(record.score("test/top5_accuracy"))
    assert record.series("test/top5_accuracy") == ([], [])


def test_clock_readings_are_series_too(record: Record) -> None:
    assert record.series("time/train_s") == ([1, 2, 3], [3.0] * 3)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        # 12 MB for two clients is 6 MB each; a model of half a million floats is 2 MB.
        ("cost/down_models", 3.0),
        ("cost/up_models", 1.0),
        ("cost/models", 4.0),
        ("cost/forward_passes", 6.0),
        ("cost/backward_passes", 3.0),
        ("cost/passes", 9.0),
        # Eight clients hold 2,000 images; 1,500 of them took three seconds.
        ("time/epoch_s", 4.0),
    ],
)
def test_derived_measures(record: Record, measure: str, expected: float) -> None:
    rounds, values = record.series(measure)
    assert rounds == [1, 2, 3]
    assert values == pytest.approx([expected] * 3)


@pytest.mark.parametrize("measure", DERIVED)
def test_a_derived_measure_without_its_facts_is_absent(tmp_path: Path, measure: str) -> None:
    found = read_record(written(tmp_path / "a", Config(), nothing=0))
    assert found is not None
    assert math.isnan(found.score(measure)) or measure == "time/epoch_s"


def test_ratios_have_a_unit() -> None:
    assert divide_or_nan(6.0, 3.0, 2.0) == 1.0
    assert math.isnan(divide_or_nan(6.0, 0.0))


def test_arrays_are_those_that_were_left(record: Record) -> None:
    assert record.arrays == {}
    np.savez(record.directory / "arrays.npz", similarity=np.eye(2))
    found = read_record(record.directory)
    assert found is not None
    assert found.arrays["similarity"].tolist() == [[1.0, 0.0], [0.0, 1.0]]


# -- finding runs ----------------------------------------------------------------------------------


def test_the_newest_alike_is_found(tmp_path: Path) -> None:
    config = Config(training={"rounds": 3})
    written(tmp_path / "runs" / "20260101-a", config)
    written(tmp_path / "runs" / "20260102-b", config, scenario="t")
    written(tmp_path / "runs" / "20260103-c", config, values=(0.1,))
    written(tmp_path / "runs" / "20260104-d", Config(seed=1))
    names = [found.directory.name for found in list_records(tmp_path)]
    assert names == ["20260101-a", "20260102-b", "20260103-c", "20260104-d"]
    shelf = Shelf(tmp_path)
    assert len(list(shelf)) == 4
    newest, older = shelf.find(config), shelf.find(config, "s")
    assert newest is not None
    assert older is not None
    assert (newest.directory.name, older.directory.name) == ("20260102-b", "20260101-a")
    assert shelf.find(config, "u") is None
    found = find_record(tmp_path, config)
    assert found is not None
    assert found.directory == newest.directory


@pytest.mark.parametrize("file", ["run.json", "result.json"])
@pytest.mark.parametrize("content", [None, "{"])
def test_a_run_that_is_not_over_is_no_record(
    tmp_path: Path, file: str, content: str | None
) -> None:
    folder = written(tmp_path / "runs" / "a", Config())
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    assert read_record(folder) is None
    assert list(Shelf(tmp_path)) == []
