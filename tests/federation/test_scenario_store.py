"""The scenario on disk: the same again, never overwritten, and refused when damaged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.errors import DataError, StorageError
from rayfl.federation.scenario import (
    Scenario,
)
from tests.federation.toys import SERVER, SYMMETRIC, Peeking, build_toy, save_toy


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"labels": "given"},
        {"split": {**SERVER, "test_samples": 0.5}, "noise": SYMMETRIC, "labelled_noise": SYMMETRIC},
        {
            "partition": {"name": "tasks", "tasks": [[0, 1, 2], [3, 4, 5, 6]]},
            "noise": {"name": "task"},
        },
        {"noise": Peeking()},
    ],
)
def test_save_and_load_give_the_same_scenario(settings: dict[str, Any], tmp_path: Path) -> None:
    scenario = save_toy(tmp_path / "s", **settings)
    loaded = Scenario.load(tmp_path / "s")
    assert loaded.sha256 == scenario.sha256
    for field in dataclasses.fields(Scenario):
        before, after = getattr(scenario, field.name), getattr(loaded, field.name)
        if isinstance(before, np.ndarray):
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)
        else:
            assert before == after, field.name


def test_the_artefact_is_parquet_and_a_small_json(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    scenario = save_toy(tmp_path / "s", noise=SYMMETRIC, seed=5)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "clients.parquet",
        "s",
        "samples.parquet",
        "scenario.json",
    ]
    header = json.loads((tmp_path / "s" / "scenario.json").read_text())
    assert (header["sha256"], header["seed"], header["plan"]["clients"]) == (scenario.sha256, 5, 10)
    samples = parquet.ParquetFile(tmp_path / "s" / "samples.parquet").read()
    assert samples.column_names == ["index", "owner", "given", "true"]
    np.testing.assert_array_equal(samples.column("given").to_numpy(), scenario.given)


def test_saving_again_is_harmless_but_nothing_else_is_overwritten(tmp_path: Path) -> None:
    scenario = save_toy(tmp_path / "s", noise=SYMMETRIC)
    scenario.save(tmp_path / "s")
    with pytest.raises(StorageError, match=f"new or empty directory; got .*{scenario.sha256}"):
        build_toy(seed=1).save(tmp_path / "s")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(StorageError, match="which holds other files"):
        scenario.save(tmp_path / "mine")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="needs a writable directory"):
        scenario.save(tmp_path / "file")
    assert not list(tmp_path.glob(".*"))


def test_a_failed_save_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("rayfl.federation.scenario_store.write_table", full)
    with pytest.raises(StorageError, match=r"writable directory; got .*No space left"):
        build_toy().save(tmp_path / "s")
    assert not list(tmp_path.iterdir())


def truncate(directory: Path) -> None:
    path = directory / "samples.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_label(directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path = directory / "samples.parquet"
    columns = parquet.ParquetFile(path).read().to_pydict()
    columns["given"][0] = 1 - min(columns["given"][0], 1)
    parquet.write_table(pa.table(columns), path)


def write_at_row_3(name: str, value: float, table: str = "samples") -> Callable[[Path], None]:
    """A damage that the hash cannot name, because it would be computed after a conversion."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def edit(directory: Path) -> None:
        path = directory / f"{table}.parquet"
        columns = parquet.ParquetFile(path).read().to_pydict()
        columns[name][3] = value
        parquet.write_table(pa.table(columns), path)

    return edit


def drop_a_column(directory: Path) -> None:
    import pyarrow.parquet as parquet

    path = directory / "samples.parquet"
    parquet.write_table(parquet.ParquetFile(path).read().drop_columns(["owner"]), path)


def drop_a_file(directory: Path) -> None:
    (directory / "clients.parquet").unlink()


def header_with(**change: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "scenario.json"
        header = {**json.loads(path.read_text()), **change}
        path.write_text(
            json.dumps({key: value for key, value in header.items() if value is not None})
        )

    return edit


def not_json(directory: Path) -> None:
    (directory / "scenario.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"samples\.parquet must be a readable Parquet file"),
        (flip_a_label, r"must hash to [0-9a-f]{64}; got [0-9a-f]{64}"),
        (
            drop_a_column,
            r"samples\.parquet must have the columns index, owner, given, true; got index, given",
        ),
        (drop_a_file, r"clients\.parquet must be a readable Parquet file"),
        (
            write_at_row_3("owner", 2**32),
            r"samples\.parquet: owner lies in \[-4, 10\); got 4294967296 at sample 3",
        ),
        (write_at_row_3("given", 10), r"given lies in \[0, 10\); got 10 at sample 3"),
        (write_at_row_3("true", -1), r"true lies in \[0, 10\); got -1 at sample 3"),
        (
            write_at_row_3("given", float("nan")),
            r"samples\.parquet: column 'given' holds whole numbers; got nan at row 3",
        ),
        (
            write_at_row_3("nominal", 1.5, "clients"),
            r"nominal lies in \[0, 1\]; got 1.5 at client 3",
        ),
        (header_with(seed=1), "must hash to"),
        (header_with(format="other"), "must say format 'rayfl.scenario'; got 'other'"),
        (header_with(version=2), "must have version 1; got 2. Build it again"),
        (header_with(classes=None), "must have 'classes'; got NoneType. Build it again"),
        (header_with(classes=["a"]), r"given lies in \[0, 1\)"),
        (not_json, "must be readable JSON"),
        (
            lambda directory: (directory / "scenario.json").unlink(),
            "a directory with a scenario.json",
        ),
    ],
)
def test_a_damaged_or_foreign_artefact_is_refused(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    save_toy(tmp_path / "s", noise=SYMMETRIC)
    damage(tmp_path / "s")
    with pytest.raises(DataError, match=message):
        Scenario.load(tmp_path / "s")
