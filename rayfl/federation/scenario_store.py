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
from rayfl.federation.arrays import Ints
from rayfl.federation.bounds import check_bounds, check_whole
from rayfl.federation.names import SampleNames
from rayfl.federation.public_images import PublicImages
from rayfl.federation.split import Role

if TYPE_CHECKING:
    from rayfl.federation.scenario import Scenario

_HEADER = "scenario.json"
_FORMAT = "rayfl.scenario"
_VERSION = 1

_Columns = Mapping[str, Any]


def write_artefact(
    directory: Path,
    header: Mapping[str, Any],
    tables: Mapping[str, _Columns],
) -> None:
    """Write into a directory beside the target and rename: a reader sees all of it or nothing.

    Writing the scenario that is there already changes nothing; any other content is never
    overwritten.

    Parameters
    ----------
    directory
        The target, new or empty.
    header
        What `make_header` made.
    tables
        What `make_tables` made.
    """
    draft = directory.parent / f".{directory.name}.{uuid.uuid4().hex}"
    try:
        if directory.exists() and any(directory.iterdir()):
            _refuse_other(directory, header)
            return
        draft.mkdir(parents=True)
        for name, columns in tables.items():
            write_table(draft / f"{name}.parquet", columns)
        signed = {"format": _FORMAT, "version": _VERSION, **header}
        text = json.dumps(signed, indent=2)
        (draft / _HEADER).write_text(text + "\n", encoding="utf-8")
        draft.rename(directory)
    except OSError as error:
        rule = "a scenario needs a writable directory"
        raise StorageError(broken(rule, f"{directory}: {error}")) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _refuse_other(directory: Path, header: Mapping[str, Any]) -> None:
    """Pass if the directory holds this very scenario."""
    has_header = (directory / _HEADER).exists()
    found = read_header(directory)["sha256"] if has_header else "other files"
    if found != header["sha256"]:
        rule = "a scenario is written to a new or empty directory"
        remedy = "Choose another, or remove it first."
        raise StorageError(broken(rule, f"{directory}, which holds {found}", remedy))


def read_header(directory: Path) -> dict[str, Any]:
    """The JSON of the artefact in `directory`, once it has shown that it is one and of a version
    that we read."""
    path = directory / _HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        rule = f"a scenario is a directory with a {_HEADER}"
        remedy = "Make one with `rayfl scenario build CONFIG -o DIR`."
        raise DataError(broken(rule, directory, remedy)) from error
    except (OSError, ValueError) as error:
        raise DataError(broken(f"{path} must be readable JSON", error)) from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise DataError(broken(f"{path} must say format '{_FORMAT}'", repr(found)))
    version = header.get("version")
    if version != _VERSION:
        rule = f"{path} must have version {_VERSION}"
        raise DataError(broken(rule, version, "Build it again with this version of rayfl."))
    return header


def write_table(path: Path, columns: _Columns) -> None:
    """Write `columns` as the Parquet file `path`."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = pa.table(dict(columns))
    parquet.write_table(table, path, compression="zstd")


def _read_table(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """The named columns of one table as pyarrow columns; a damaged or incomplete file is refused by
    name."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        # A handle on the one file: a path would make pyarrow search its parents for a partitioned
        # dataset.
        with path.open("rb") as file:
            table = parquet.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError(broken(f"{path} must be a readable Parquet file", error)) from error
    found = table.column_names
    if sorted(found) != sorted(columns):
        rule = f"{path} must have the columns {', '.join(columns)}"
        raise DataError(broken(rule, ", ".join(found)))
    return {column: table.column(column) for column in columns}


def make_header(scenario: Scenario) -> dict[str, Any]:
    """What the JSON of the artefact of `scenario` says."""
    public = scenario.public
    named: dict[str, Any] = {} if public is None else {"public": _describe_public(public)}
    if scenario.names is not None:
        named["names"] = {"sha256": scenario.names.sha256, "sites": scenario.names.site is not None}
    if scenario.client_names is not None:
        named["client_names"] = True
    return {
        **named,
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


def _describe_public(public: PublicImages) -> dict[str, Any]:
    """Which dataset the public set is taken from; its rows are a table."""
    return {"name": public.name, "spec": dict(public.spec), "sha256": public.sha256}


def make_tables(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """The Parquet tables of the artefact of `scenario`. Unknown columns are left out, not
    filled."""
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
        samples["true"] = scenario.true
        clients["realised"] = scenario.realised
    if scenario.tasks is not None:
        clients["tasks"] = [list(task) for task in scenario.tasks]
    if scenario.client_names is not None:
        clients["name"] = scenario.client_names
    if scenario.names is not None:
        tables["names"] = _tabulate_names(scenario.names)
    if scenario.test is not None:
        tables["test"] = {"index": scenario.test}
    if scenario.public is not None:
        tables["public"] = {"index": scenario.public.rows}
    return tables


def _tabulate_names(names: SampleNames) -> dict[str, Any]:
    columns: dict[str, Any] = {"index": np.arange(len(names.names)), "name": names.names}
    if names.site is not None:
        columns["site"] = np.array(names.sites, dtype=np.str_)[names.site]
    return columns


def read_fields(directory: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a scenario, but for its dataset.

    Parameters
    ----------
    directory
        Where the tables lie.
    header
        What `read_header` read there: it says which columns there are.
    """
    truth = header["true_labels"]
    tasks = header["tasks"]
    sample_columns = ["index", "owner", "given"]
    client_columns = ["client", "samples", "nominal"]
    if truth:
        sample_columns.append("true")
        client_columns.append("realised")
    if tasks:
        client_columns.append("tasks")
    client_named = bool(header.get("client_names"))
    if client_named:
        client_columns.append("name")
    samples_path = directory / "samples.parquet"
    samples = _read_table(samples_path, sample_columns)
    clients = _read_table(directory / "clients.parquet", client_columns)
    nominal = clients["nominal"].to_numpy().astype(np.float64)
    owner = _read_whole(samples_path, "owner", samples)
    # Before it becomes narrower: 2**32 would turn into client 0.
    check_bounds(f"{samples_path}: owner lies", owner, min(Role), len(nominal), "sample")
    return {
        "classes": tuple(header["classes"]),
        "seed": header["seed"],
        "plan": header["plan"],
        "owner": owner.astype(np.int32),
        "given": _read_labels(samples_path, "given", samples, header),
        "true": _read_labels(samples_path, "true", samples, header) if truth else None,
        "nominal": nominal,
        "tasks": tuple(map(tuple, clients["tasks"].to_pylist())) if tasks else None,
        "test": _read_rows(directory, "test") if header["test_capped"] else None,
        "public": _read_public(directory, header),
        "names": _read_names(directory, header),
        "client_names": tuple(clients["name"].to_pylist()) if client_named else None,
    }


def _read_names(directory: Path, header: Mapping[str, Any]) -> SampleNames | None:
    """The names of the samples, if the scenario has them."""
    said = header.get("names")
    if said is None:
        return None
    path = directory / "names.parquet"
    columns = _read_table(path, ["index", "name", *(["site"] if said["sites"] else [])])
    names = np.array(columns["name"].to_pylist(), dtype=np.str_)
    found = SampleNames(names)
    if said["sites"]:
        sites, site = np.unique(columns["site"].to_pylist(), return_inverse=True)
        found = SampleNames(names, site.astype(np.int64), tuple(sites.tolist()))
    if found.sha256 != said["sha256"]:
        rule = f"{path} must hash to {said['sha256']}"
        raise DataError(broken(rule, found.sha256, "It was changed or mixed up; build it again."))
    return found


def _read_public(directory: Path, header: Mapping[str, Any]) -> PublicImages | None:
    """The public set of another dataset, if the scenario has one."""
    if "public" not in header:
        return None
    return PublicImages(**header["public"], rows=_read_rows(directory, "public"))


def _read_rows(directory: Path, table: str) -> Ints:
    path = directory / f"{table}.parquet"
    return _read_whole(path, "index", _read_table(path, ["index"]))


def _read_labels(
    path: Path,
    name: str,
    columns: _Columns,
    header: Mapping[str, Any],
) -> Ints:
    labels = _read_whole(path, name, columns)
    check_bounds(f"{path}: {name} lies", labels, 0, len(header["classes"]), "sample")
    return labels


def _read_whole(
    path: Path,
    name: str,
    columns: _Columns,
) -> Ints:
    return check_whole(f"{path}: column '{name}'", columns[name].to_numpy())
