"""What the ledger has of each method, and what the queue will record next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rayfl.errors import RayflError
from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row
from rayfl.run.progress import format_duration
from rayfl.study.cells import Cell, list_cells, load_study, parse_filters
from rayfl.study.queue import list_orders, load_queue
from rayfl.study.recorded import RecordedStudy, list_recorded
from rayfl.study.result import CellResult


@dataclass(frozen=True)
class RecordedCell:
    """A cell of a study that a method was run in."""

    study: str
    grade: str
    cell: str
    score: str
    ours: str
    printed: str
    difference: str
    seconds: str
    megabytes: str
    images: str
    command: str


class QueuedCell(NamedTuple):
    """A cell that the queue has in store."""

    title: str
    command: str


def collect_recorded(root: Path) -> dict[str, list[RecordedCell]]:
    """By method, what is recorded of it.

    Parameters
    ----------
    root
        The top of the checkout.
    """
    found: dict[str, list[RecordedCell]] = {}
    for study in list_recorded(Ledger(root / "results")):
        for method, cell in _iterate_cells(study):
            found.setdefault(method, []).append(_describe_cell(study, cell))
    return found


def _iterate_cells(study: RecordedStudy) -> Iterator[tuple[str, CellResult]]:
    """Every cell that was run, with the name of its method."""
    seen: set[tuple[str, ...]] = set()
    for cell, _, made in study.order.configurations():
        result = study.result.at(**cell.choices)
        if result is None or not result.rows or isinstance(made, RayflError) or cell.key in seen:
            continue
        seen.add(cell.key)
        yield made.config.name_of("method"), result


def _describe_cell(study: RecordedStudy, cell: CellResult) -> RecordedCell:
    name, value = next(iter(cell.scores.items()))
    rows = list(cell.rows.values())
    several = [axis for axis in cell.titles if len(study.result.study.axes[axis]) > 1]
    seconds = _find_median(rows, "seconds")
    images = _find_median(rows, "forward") + _find_median(rows, "backward")
    megabytes = _find_median(rows, "down_mb") + _find_median(rows, "up_mb")
    return RecordedCell(
        study=study.result.study.title,
        grade=study.grade,
        cell=", ".join(cell.titles[axis] for axis in several or cell.titles),
        score=value.title,
        ours=value.text(),
        printed=value.printed_text(),
        difference=cell.difference_text(name),
        seconds="-" if math.isnan(seconds) else format_duration(seconds),
        megabytes="-" if math.isnan(megabytes) else f"{megabytes:,.0f}",
        images="-" if math.isnan(images) else f"{images / 1e6:.3g}",
        command=cell.command,
    )


def _find_median(rows: Sequence[Row], cost: str) -> float:
    """One run that was held up says nothing of the others."""
    values: list[float] = [getattr(row, cost) for row in rows]
    return statistics.median(values)


# -- the queue -------------------------------------------------------------------------------------


def collect_queued(root: Path) -> dict[str, QueuedCell]:
    """By method, the first cell of it that the queue has.

    Parameters
    ----------
    root
        The top of the checkout.
    """
    queue = load_queue(root / "results" / "queue.yaml")
    found: dict[str, QueuedCell] = {}
    for entry in queue.queue:
        study = load_study(root / entry.study)
        for cell in list_cells(study, parse_filters(study, tuple(entry.only))):
            method = _name_method(cell) if cell.runs else ""
            if method and method not in found:
                order = list_orders(queue, entry, root, None)[0]
                # Where the queue puts its runs is its own affair.
                command = replace(order, output=None).command(cell)
                found[method] = QueuedCell(f"{study.title}: {cell.label}", f"{command} --record")
    return found


def _name_method(cell: Cell) -> str:
    """The method of a cell; nothing where it is the usual one."""
    told: Any = cell.settings().get("method", "")
    return str(told.get("name", "")) if isinstance(told, dict) else str(told)
