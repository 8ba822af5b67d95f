"""Columns of whole numbers out of a user's file: Parquet, CSV with a header, JSON, or a NumPy
array."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.bounds import check_whole
from rayfl.federation.decoding import refuse_undecodable
from rayfl.regular_files import open_regular, read_regular

_Columns = Mapping[str, Any]
_MOST_BYTES = 1_000_000_000
_MOST_ROWS = 200_000_000


def read_columns(path: Path, only: str) -> dict[str, Ints]:
    """The named column of a file, and its column `index` if it has one.

    Parameters
    ----------
    path
        The file; its suffix says which kind it is.
    only
        The column. A file that holds a single one without a name is taken to be this.
    """
    read = _READERS.get(path.suffix)
    if read is None:
        rule = f"{path}: a table is one of {', '.join(_READERS)}"
        raise DataError(broken(rule, path.suffix or "no suffix"))
    if not path.is_file():
        raise DataError(broken(f"{path}: the file exists", "nothing there", "Correct the path"))
    with refuse_undecodable(f"{path}: a readable {path.suffix} table"):
        columns = read(path, only)
    if only not in columns:
        raise DataError(broken(f"{path}: a column '{only}'", f"columns {sorted(columns)}"))
    found = {}
    for name in columns:
        if name in (only, "index"):
            found[name] = check_whole(f"{path}: column '{name}'", columns[name])
    return found


def _read_csv(path: Path, only: str) -> _Columns:  # noqa: ARG001
    text = read_regular(path, _MOST_BYTES).decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if len(rows) < 2:
        return {}
    columns = {}
    for place, name in enumerate(rows[0]):
        columns[name.strip()] = [row[place] for row in rows[1:]]
    return columns


def _read_json(path: Path, only: str) -> _Columns:
    content = json.loads(read_regular(path, _MOST_BYTES))
    return content if isinstance(content, dict) else {only: content}


def _read_npy(path: Path, only: str) -> _Columns:
    with open_regular(path) as file:
        return {only: np.load(file, allow_pickle=False)}


def _read_parquet(path: Path, only: str) -> _Columns:
    import pyarrow.parquet as pq

    with open_regular(path) as file, pq.ParquetFile(file) as opened:
        rows = opened.metadata.num_rows
        if rows > _MOST_ROWS:
            raise ValueError(f"{rows:,} rows, where {_MOST_ROWS:,} are the most")
        wanted = sorted({only, "index"} & set(opened.schema_arrow.names))
        # Only these, so that a wide file costs no more than what is wanted of it.
        table = opened.read(columns=wanted)
        return {name: table[name].to_numpy() for name in wanted}


_READERS: dict[str, Callable[[Path, str], _Columns]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".json": _read_json,
    ".npy": _read_npy,
}
