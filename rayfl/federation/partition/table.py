"""Columns of whole numbers out of a user's file: Parquet, CSV with a header, JSON, or a NumPy
array."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints

Columns = Mapping[str, Any]


def read_columns(path: Path, only: str) -> dict[str, Ints]:
    """Every column of the file that holds whole numbers; `only` names the column of a file that has
    just one."""
    if path.suffix not in _READERS:
        raise DataError(
            broken(f"{path}: a table is one of {', '.join(_READERS)}", path.suffix or "no suffix")
        )
    if not path.is_file():
        raise DataError(broken(f"{path}: the file exists", "nothing there", "Correct the path"))
    try:
        columns = _READERS[path.suffix](path, only)
    except (ValueError, IndexError, OSError, csv.Error) as error:
        raise DataError(broken(f"{path}: a readable {path.suffix} table", error)) from error
    if only not in columns:
        raise DataError(broken(f"{path}: a column '{only}'", f"columns {sorted(columns)}"))
    return {
        name: _to_whole_numbers(path, name, values)
        for name, values in columns.items()
        if name in {only, "index"}
    }


def _to_whole_numbers(path: Path, name: str, values: Any) -> Ints:
    """The values as int64, or a refusal that names the first that is not whole."""
    try:
        # by way of floats, because a CSV holds text and a column with gaps holds nan
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(broken(f"{path}: column '{name}' holds whole numbers", error)) from error
    wrong = (
        np.flatnonzero(numbers != np.rint(numbers)) if numbers.ndim == 1 else np.zeros(1, np.int64)
    )
    if len(wrong):
        got = (
            f"{numbers.ravel()[wrong[0]]} at row {wrong[0]}"
            if numbers.ndim == 1
            else f"shape {numbers.shape}"
        )
        raise DataError(broken(f"{path}: column '{name}' holds whole numbers", got))
    return numbers.astype(np.int64)


def _read_csv(path: Path, only: str) -> Columns:  # noqa: ARG001
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    return {name.strip(): [row[i] for row in rows] for i, name in enumerate(header)} if rows else {}


def _read_json(path: Path, only: str) -> Columns:
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {only: content}


def _read_npy(path: Path, only: str) -> Columns:
    return {only: np.load(path, allow_pickle=False)}


def _read_parquet(path: Path, only: str) -> Columns:
    import pyarrow.parquet as pq

    names = pq.read_schema(path).names
    return {
        name: pq.read_table(path, columns=[name])[name].to_numpy()
        for name in {only, "index"} & set(names)
    }


_READERS: dict[str, Callable[[Path, str], Columns]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".json": _read_json,
    ".npy": _read_npy,
}
