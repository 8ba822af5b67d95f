from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.errors import DataError

from .pools import assign, pool_of

Table = dict[str, list[Any]]


def write_csv(path: Path, table: Table) -> None:
    rows = zip(*table.values(), strict=True)
    path.write_text(
        "\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)]), encoding="utf-8"
    )


def write_json(path: Path, table: Table) -> None:
    path.write_text(json.dumps(table), encoding="utf-8")


def write_parquet(path: Path, table: Table) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(table), path)


WRITERS: dict[str, Callable[[Path, Table], None]] = {
    "csv": write_csv,
    "json": write_json,
    "parquet": write_parquet,
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("extra", [{}, {"note": ["a", "b", "c", "d"]}])
def test_owners_come_from_the_file(tmp_path: Path, suffix: str, extra: Table) -> None:
    path = tmp_path / f"owners.{suffix}"
    WRITERS[suffix](path, {"client": [1, -1, 0, 1], **extra})
    assert assign(
        {"name": "explicit", "file": str(path)}, pool_of([4], clients=2)
    ).owner.tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize("suffix", WRITERS)
def test_an_index_column_places_rows_and_leaves_the_rest_unused(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"owners.{suffix}"
    WRITERS[suffix](path, {"index": [3, 0], "client": [1, 0]})
    assert assign({"name": "explicit", "file": path}, pool_of([4], clients=2)).owner.tolist() == [
        0,
        -1,
        -1,
        1,
    ]


def test_bare_arrays_and_lists_need_no_column_name(tmp_path: Path) -> None:
    np.save(tmp_path / "owners.npy", np.array([0, 1]))
    (tmp_path / "owners.json").write_text("[0, 1]", encoding="utf-8")
    for name in ("owners.npy", "owners.json"):
        assert assign(
            {"name": "explicit", "file": tmp_path / name}, pool_of([2], clients=2)
        ).owner.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({"client": [0, 1, 2]}, r"'client' lies in \[-1, 2\); got 2 at row 2"),
        ({"client": [0, -2, 0]}, r"'client' lies in \[-1, 2\); got -2 at row 1"),
        ({"client": [0, 1]}, r"a row for each of 3 samples; got 2"),
        ({"client": [0, 1.5, 1]}, r"column 'client' holds whole numbers; got 1.5 at row 1"),
        (
            {"client": [0, 2**64, 1]},
            r"whole numbers in \[-2\*\*53, 2\*\*53\]; got 1.8.*e\+19 at row 1",
        ),
        ({"client": [0, float("inf"), 1]}, r"whole numbers in \[-2.*; got inf at row 1"),
        ({"client": [0, "x", 1]}, r"column 'client' holds whole numbers; got could not convert"),
        ({"owner": [0, 1, 1]}, r"a column 'client'; got columns \['owner'\]"),
        ({"index": [0, 3], "client": [0, 1]}, r"'index' lies in \[0, 3\); got 3 at row 1"),
        ({"index": [2, 2], "client": [0, 1]}, r"every index occurs once; got 2 again"),
        ({"index": [0, 1], "client": [0]}, r"as many rows.*got 2 and 1"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, table: Table, rule: str) -> None:
    path = tmp_path / "owners.json"
    write_json(path, table)
    with pytest.raises(DataError, match=rule):
        assign({"name": "explicit", "file": path}, pool_of([3], clients=2))


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("owners.txt", b"0", r"a table is one of \.parquet, \.csv, \.json, \.npy; got \.txt"),
        ("owners.json", b"{", r"a readable \.json table"),
        ("owners.json", b"3", r"column 'client' holds whole numbers; got shape \(\)"),
        ("owners.json", b"[null, 1, 1]", r"column 'client' holds whole numbers; got nan at row 0"),
        ("owners.parquet", b"PAR1", r"a readable \.parquet table"),
        ("owners.npy", b"junk", r"a readable \.npy table"),
        ("owners.csv", b"index,client\n1\n", r"a readable \.csv table"),
        ("owners.csv", b"", r"a column 'client'; got columns \[\]"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, content: bytes, rule: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rule):
        assign({"name": "explicit", "file": tmp_path / name}, pool_of([3], clients=2))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the file exists; got nothing there"):
        assign({"name": "explicit", "file": tmp_path / "none.csv"}, pool_of([3], clients=2))
