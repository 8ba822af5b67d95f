"""Which clients stand out at the end of a run, by what its method believes of them: its estimates,
the share of their samples that it kept, the share of their labels that it corrected."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Floats
from rayfl.durable import write_file

if TYPE_CHECKING:
    from rayfl.federation.scenario import Scenario
    from rayfl.fleet.base import BaseFleet
    from rayfl.tracking.tracker import Tracker

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


def tell_standing(
    tracker: Tracker, directory: Path, left: Mapping[str, NDArray[Any]], scenario: Scenario
) -> None:
    """Write the table beside the run and into MLflow; nothing where nobody stands out."""
    rows = [{**row, "name": scenario.name_client(row["client"])} for row in list_standing(left)]
    if not rows:
        return
    write_file(directory / FILE, json.dumps(rows, indent=1))
    tracker.artifact(directory / FILE)


def read_standing(directory: Path) -> list[str]:
    """A line for each client that stands out in a finished run."""
    path = directory / FILE
    if not path.is_file():
        return []
    lines = ["clients that stand out"]
    for row in json.loads(path.read_text(encoding="utf-8")):
        told = f"{row['estimate']} {row['value']:.3f}, the median is {row['median']:.3f}"
        lines.append(f"  {row['name']:24} {told}")
    return lines
