"""What is known of each client of a run: what it holds, and what the method believes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.durable import write_file
from rayfl.federation.scenario import Scenario

if TYPE_CHECKING:
    import pandas

FILE = "clients.json"
ESTIMATE = "estimate/"
"""What the names of arrays begin with that say what a method believes of each client."""
DIVERGED = "clients/diverged/"
WRONG, CHANGED = "wrong labels", "changed labels"
"""Columns: shares of a client's labels that are wrong, and that a table of labels changed."""

ClientRow = dict[str, Any]


def list_clients(
    scenario: Scenario,
    left: Mapping[str, NDArray[Any]],
    history: Sequence[Mapping[str, Any]] = (),
) -> list[ClientRow]:
    """A row a client: samples, classes, wrong labels where the truth is known, estimates.

    Parameters
    ----------
    scenario : Scenario
        Who holds what.
    left : mapping
        The arrays that the method left, by name.
    history : sequence of mapping
        The run's records, which say whose updates were not finite.
    """
    sizes = scenario.sizes()
    labels = scenario.given if scenario.true is None else scenario.true
    held = (scenario.class_counts(labels) > 0).sum(axis=1)
    columns: dict[str, Sequence[Any]] = {
        "client": range(scenario.clients),
        "samples": [int(size) for size in sizes],
        "classes": [int(count) for count in held],
    }
    if scenario.realised is not None:
        columns[WRONG] = [_round_share(share) for share in scenario.realised]
    if scenario.changed is not None:
        columns[CHANGED] = [_round_share(share) for share in scenario.changed]
    columns |= _list_estimates(scenario.clients, left)
    lost = [_count_diverged(history, client) for client in range(scenario.clients)]
    if any(lost):
        columns["diverged"] = lost
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _list_estimates(clients: int, left: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    """What was left under the name of an estimate and has one number a client."""
    found = {}
    for name, array in left.items():
        numbers = array.shape == (clients,) and array.dtype.kind in "biuf"
        if name.startswith(ESTIMATE) and numbers:
            found[name.removeprefix(ESTIMATE)] = [_round_share(value) for value in array]
    return found


def _round_share(value: Any) -> float | None:
    """A number for a table; None where there is none, which JSON has a word for."""
    number = float(value)
    return round(number, 6) if math.isfinite(number) else None


def _count_diverged(history: Sequence[Mapping[str, Any]], client: int) -> int:
    return sum(f"{DIVERGED}{client}" in record["metrics"] for record in history)


# -- files and frames ------------------------------------------------------------------------------


def write_clients(directory: Path, rows: Sequence[ClientRow]) -> Path:
    """Write the table in the form that MLflow shows as one: columns, and rows of values."""
    return write_rows(directory / FILE, rows)


def write_rows(path: Path, rows: Sequence[ClientRow]) -> Path:
    """Write rows of equal keys as a table of MLflow's."""
    columns = list(rows[0]) if rows else []
    data = [list(row.values()) for row in rows]
    write_file(path, json.dumps({"columns": columns, "data": data}))
    return path


def read_clients(directory: Path) -> list[ClientRow] | None:
    """The table that a run has left; None where it has none."""
    try:
        table = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def frame_clients(rows: Sequence[ClientRow]) -> pandas.DataFrame:
    """The table as a data frame, a line a client."""
    import pandas

    frame = pandas.DataFrame(rows)
    # A column of nothing but None would be one of objects.
    numbers = frame.replace({None: np.nan}).infer_objects()
    return numbers.set_index("client")
