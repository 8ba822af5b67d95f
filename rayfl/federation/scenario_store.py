"""The scenario artefact on disk: a small `scenario.json` beside Parquet tables, written whole or
not at all."""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.errors import DataError, StorageError, broken

if TYPE_CHECKING:
    from rayfl.federation.scenario import Scenario

_HEADER = "scenario.json"
_FORMAT = "rayfl.scenario"
_VERSION = 1

Columns = Mapping[str, Any]


def write_artefact(
    directory: Path, header: Mapping[str, Any], tables: Mapping[str, Columns]
) -> None:
    """Write into a directory beside the target and rename: a reader sees all of it or nothing.

    Writing the scenario that is there already changes nothing; any other content is never
    overwritten."""
    draft = directory.parent / f".{directory.name}.{uuid.uuid4().hex}"
    try:
        if directory.exists() and any(directory.iterdir()):
            _refuse_other(directory, header)
            return
        draft.mkdir(parents=True)
        for name, columns in tables.items():
            write_table(draft / f"{name}.parquet", columns)
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **header}, indent=2)
        (draft / _HEADER).write_text(text + "\n", encoding="utf-8")
        draft.rename(directory)
    except OSError as error:
        raise StorageError(
            broken("a scenario needs a writable directory", f"{directory}: {error}")
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _refuse_other(directory: Path, header: Mapping[str, Any]) -> None:
    """Pass if the directory holds this very scenario."""
    found = read_header(directory)["sha256"] if (directory / _HEADER).exists() else "other files"
    if found != header["sha256"]:
        rule = "a scenario is written to a new or empty directory"
        raise StorageError(
            broken(rule, f"{directory}, which holds {found}", "Choose another, or remove it first.")
        )


def read_header(directory: Path) -> dict[str, Any]:
    """The JSON of an artefact, once it has shown that it is one and of a version that we read."""
    path = directory / _HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        rule = f"a scenario is a directory with a {_HEADER}"
        raise DataError(
            broken(rule, directory, "Make one with `rayfl scenario build CONFIG -o DIR`.")
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(broken(f"{path} must be readable JSON", error)) from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise DataError(broken(f"{path} must say format '{_FORMAT}'", repr(found)))
    if header.get("version") != _VERSION:
        rule = f"{path} must have version {_VERSION}"
        raise DataError(
            broken(rule, header.get("version"), "Build it again with this version of rayfl.")
        )
    return header


def write_table(path: Path, columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table(dict(columns)), path, compression="zstd")


def _read_table(directory: Path, name: str, columns: Sequence[str]) -> dict[str, Any]:
    """The named columns of one table as pyarrow columns; a damaged or incomplete file is refused by
    name."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path = directory / f"{name}.parquet"
    try:
        # A handle on the one file: a path would make pyarrow search its parents for a partitioned
        # dataset.
        with path.open("rb") as file:
            table = parquet.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError(broken(f"{path} must be a readable Parquet file", error)) from error
    if sorted(table.column_names) != sorted(columns):
        raise DataError(
            broken(
                f"{path} must have the columns {', '.join(columns)}", ", ".join(table.column_names)
            )
        )
    return {column: table.column(column) for column in columns}


def make_header(scenario: Scenario) -> dict[str, Any]:
    """What the JSON of an artefact says."""
    return {
        "sha256": scenario.sha256,
        "dataset": dataclasses.asdict(scenario.dataset),
        "classes": scenario.classes,
        "seed": scenario.seed,
        "clients": scenario.clients,
        "true_labels": scenario.true is not None,
        "tasks": scenario.tasks is not None,
        "test_capped": scenario.test is not None,
        "plan": dict(scenario.plan),
    }


def make_tables(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """The Parquet tables of an artefact. Unknown columns are left out, not filled."""
    samples: dict[str, Any] = {
        "index": np.arange(len(scenario.owner)),
        "owner": scenario.owner,
        "given": scenario.given,
    }
    clients: dict[str, Any] = {
        "client": np.arange(scenario.clients),
        "samples": scenario.sizes(),
        "nominal": scenario.nominal,
    }
    tables = {"samples": samples, "clients": clients}
    if scenario.true is not None:
        samples["true"], clients["realised"] = scenario.true, scenario.realised
    if scenario.tasks is not None:
        clients["tasks"] = [list(task) for task in scenario.tasks]
    if scenario.test is not None:
        tables["test"] = {"index": scenario.test}
    return tables


def read_fields(directory: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a scenario, but for its dataset."""
    truth, tasks = header["true_labels"], header["tasks"]
    samples = _read_table(
        directory, "samples", ["index", "owner", "given", *(["true"] if truth else [])]
    )
    per_client = [
        "client",
        "samples",
        "nominal",
        *(["realised"] if truth else []),
        *(["tasks"] if tasks else []),
    ]
    clients = _read_table(directory, "clients", per_client)
    return {
        "classes": tuple(header["classes"]),
        "seed": header["seed"],
        "plan": header["plan"],
        "owner": samples["owner"].to_numpy().astype(np.int32),
        "given": samples["given"].to_numpy().astype(np.int64),
        "true": samples["true"].to_numpy().astype(np.int64) if truth else None,
        "nominal": clients["nominal"].to_numpy().astype(np.float64),
        "tasks": tuple(tuple(task) for task in clients["tasks"].to_pylist()) if tasks else None,
        "test": _read_table(directory, "test", ["index"])["index"].to_numpy()
        if header["test_capped"]
        else None,
    }
