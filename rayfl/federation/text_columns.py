"""Columns of text out of a user's table: Parquet, or CSV with a header; whole numbers are read as
their digits."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Strings


def list_columns(path: Path) -> list[str]:
    """The names of the columns of a table; `path` must be one that can be read."""
    _check_table(path)
    with _refuse_unreadable(path):
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                return [name.strip() for name in next(csv.reader(file), [])]
        import pyarrow.parquet as pq

        names: list[str] = pq.read_schema(path).names
        return names


def read_text_columns(path: Path, wanted: Sequence[str]) -> dict[str, Strings]:
    """Columns of a table, as text without blanks around it.

    Parameters
    ----------
    path
        The file; its suffix says which kind it is.
    wanted
        The columns. One that is not there, and a cell without a value, is refused by name.
    """
    there = list_columns(path)
    for name in wanted:
        if name not in there:
            rule = f"{path}: a column '{name}'"
            raise DataError(broken(rule, f"columns {', '.join(there) or 'none'}"))
    with _refuse_unreadable(path):
        columns = _READERS[path.suffix](path, wanted)
    for name, values in columns.items():
        empty = np.flatnonzero(values == "")
        if len(empty):
            rule = f"{path}: column '{name}' has a value in every row"
            raise DataError(broken(rule, f"none in row {empty[0]}"))
    return columns


def _check_table(path: Path) -> None:
    if path.suffix not in _READERS:
        rule = f"{path}: a table is one of {', '.join(_READERS)}"
        raise DataError(broken(rule, path.suffix or "no suffix"))
    if not path.is_file():
        raise DataError(broken(f"{path}: the file exists", "nothing there", "Correct the path"))


@contextmanager
def _refuse_unreadable(path: Path) -> Iterator[None]:
    """What the readers of tables raise, as one sentence."""
    try:
        yield
    # Errors of pyarrow are of these kinds, too.
    except (ValueError, OSError, TypeError, NotImplementedError, csv.Error) as error:
        rule = f"{path}: a readable {path.suffix} table"
        raise DataError(broken(rule, error)) from error


def _read_csv(path: Path, wanted: Sequence[str]) -> dict[str, Strings]:
    # A spreadsheet's files begin with a mark of their encoding.
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = csv.reader(file)
    rows = [row for row in rows if row]
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells of {len(header)}")
    titles = [name.strip() for name in header]
    columns = {}
    for name in wanted:
        place = titles.index(name)
        columns[name] = np.array([row[place].strip() for row in rows], dtype=np.str_)
    return columns


def _read_parquet(path: Path, wanted: Sequence[str]) -> dict[str, Strings]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A handle on the one file: a path would make pyarrow search its parents for a partitioned
    # dataset. Only these columns, so that a wide file costs no more than what is wanted of it.
    with path.open("rb") as file:
        table = pq.read_table(file, columns=list(wanted))
    columns = {}
    for name in wanted:
        text = table[name].cast(pa.string()).fill_null("").to_pylist()
        columns[name] = np.array([value.strip() for value in text], dtype=np.str_)
    return columns


_READERS: dict[str, Callable[[Path, Sequence[str]], dict[str, Strings]]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}
