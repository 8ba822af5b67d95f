"""Which clients stand out at the end of a run, by what its method believes of them: its estimates,
the share of their samples that it kept, the share of their labels that it corrected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Floats
from rayfl.run.client_table import write_rows
from rayfl.run.store import Record, read_record

if TYPE_CHECKING:
    from rayfl.federation.scenario import Scenario
    from rayfl.fleet.base import BaseFleet

ESTIMATE = "estimate/"
KEPT, CORRECTED = "estimate/kept", "estimate/corrected"
FILE = "standing.json"
FAR = 3.5
"""Robust deviations from the median (of 1.4826 median absolute ones) from which a client stands
out."""
LEAST_SPREAD = 0.02
"""Of a robust deviation: where all agree to a hair, a hair is nothing."""
LEAST_CLIENTS = 4
MOST = 10
MOST_ASKED = 2000
"""More clients than this are not fetched one by one for a table at the end."""


def measure_decisions(
    fleet: BaseFleet, table: Mapping[int, Mapping[str, Any]], scenario: Scenario
) -> dict[str, Floats]:
    """The share of samples that clients keep, and of labels that they changed, where the method
    does either; nan for those that said nothing.

    Parameters
    ----------
    table
        The clients' states at the end.
    scenario
        Whose labels clients were given."""
    if len(fleet.clients) > MOST_ASKED:
        return {}
    kept = np.full(len(fleet.sizes), np.nan)
    corrected = kept.copy()
    for client in fleet.clients:
        state = table.get(client, {})
        if "kept" in state:
            kept[client] = np.asarray(fleet.get(state["kept"])).mean()
        if "y" in state:
            corrected[client] = _measure_change(fleet.get(state["y"]), scenario, client)
    found = {KEPT: kept, CORRECTED: corrected}
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _measure_change(labels: Any, scenario: Scenario, client: int) -> float:
    """The share of a client's labels that are others than the given ones."""
    return float((np.asarray(labels) != scenario.given[scenario.shard(client)]).mean())


def list_standing(left: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """The clients that are far from the others in anything that the method believes of them, the
    farthest first.

    Parameters
    ----------
    left
        What a run leaves: arrays by name, those of estimates with one value a client."""
    rows: list[dict[str, Any]] = []
    for name, array in left.items():
        values = np.asarray(array)
        if name.startswith(ESTIMATE) and values.ndim == 1:
            rows += _list_far(name.removeprefix(ESTIMATE), values.astype(np.float64))
    rows.sort(key=lambda row: (-abs(row["deviations"]), row["client"]))
    return rows[:MOST]


def _list_far(name: str, values: Floats) -> Iterator[dict[str, Any]]:
    """The clients that one estimate sets apart."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < LEAST_CLIENTS:
        return
    middle = float(np.median(values[known]))
    spread = 1.4826 * float(np.median(np.abs(values[known] - middle)))
    deviations = (values[known] - middle) / max(spread, LEAST_SPREAD)
    for client, far in zip(known.tolist(), deviations.tolist(), strict=True):
        if abs(far) > FAR:
            yield {
                "client": client,
                "estimate": name,
                "value": float(values[client]),
                "median": middle,
                "deviations": far,
            }


def write_standing(
    directory: Path, left: Mapping[str, NDArray[Any]], scenario: Scenario
) -> Path | None:
    """Write the table beside the run, in the form that MLflow shows as one; None where nobody
    stands out.

    Parameters
    ----------
    directory
        The run's.
    left
        As for `list_standing`.
    scenario
        What clients are called."""
    rows = name_standing(left, scenario.client_names)
    return write_rows(directory / FILE, rows) if rows else None


def name_standing(
    left: Mapping[str, NDArray[Any]], names: Sequence[str] | None
) -> list[dict[str, Any]]:
    """The rows of `list_standing` with what clients are called."""
    rows = list_standing(left)
    for row in rows:
        client = row["client"]
        row["client"] = str(client) if names is None else names[client]
    return rows


def read_standing(record: Record) -> list[dict[str, Any]]:
    """The clients that stand out in a finished run, by what it left."""
    return name_standing(record.arrays, record.facts.get("client_names"))


def tell_standing(directory: Path) -> Iterator[str]:
    """A line for each client that stands out in a finished run."""
    record = read_record(directory)
    rows = [] if record is None else read_standing(record)
    if rows:
        yield "clients that stand out"
    for row in rows:
        told = f"{row['estimate']} {row['value']:.3f}, the median is {row['median']:.3f}"
        yield f"  {row['client']:24} {told}"
