"""Image files and tables as owners of data have them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ORIENTATION = 0x0112
"""The EXIF tag that says how a camera was held."""


def paint(file: Path, value: int, side: int = 6) -> Path:
    """A grey square, in a folder that is made where there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), value, np.uint8)).save(file)
    return file


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Rows as CSV or Parquet."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
