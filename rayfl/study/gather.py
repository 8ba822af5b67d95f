"""From the runs of an output folder to what a study came to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rayfl.errors import RayflError
from rayfl.run.store import Record, Shelf
from rayfl.study.cells import Cell
from rayfl.study.order import StudyOrder
from rayfl.study.printed_figures import find_printed
from rayfl.study.result import CellResult, Kind, StudyResult, Value
from rayfl.study.schema import Score

NOT_RUN = "not run yet"

Key = tuple[str, ...]


def gather_results(
    study: Path | StudyOrder, output: Path | None = None, problems: Mapping[Key, str] | None = None
) -> StudyResult:
    """All cells of a study with the finished runs below an output folder.

    Of a path, the cells, seeds and scale are those that were last run in that folder, or else all
    of the study's. What keeps cells from running is told by `problems`, by the names of their
    choices."""
    order = study if isinstance(study, StudyOrder) else StudyOrder.remembered(study, output)
    found = _find_runs(order, Shelf(order.folder), dict(problems or {}))
    results: dict[Key, CellResult] = {}
    # Computed cells come last, because they stand on the others.
    for cell in sorted(order.cells, key=lambda cell: cell.computed is not None):
        results[cell.key] = (
            _compute_cell(order, cell, results) if cell.computed else found[cell.key]
        )
    ordered = [results[cell.key] for cell in order.cells]
    return StudyResult(order.name, order.study, ordered, order.scale, order.wanted_seeds)


def _find_runs(order: StudyOrder, shelf: Shelf, problems: dict[Key, str]) -> dict[Key, CellResult]:
    """The cells that are run, with their records."""
    records: dict[Key, dict[int, Record]] = {}
    notes: dict[Key, str] = {}
    for cell, seed, made in order.configurations():
        if isinstance(made, RayflError):
            problems.setdefault(cell.key, str(made))
            continue
        notes[cell.key] = made.note
        record = shelf.find(made.config)
        if record is not None:
            records.setdefault(cell.key, {})[seed] = record
    results = {}
    for cell in order.cells:
        runs = records.get(cell.key, {})
        missing = cell.missing or ("" if runs else problems.get(cell.key, NOT_RUN))
        scores = {
            name: _measure_score(cell, scale_window(score, order.scale), runs)
            for name, score in cell.scores.items()
        }
        results[cell.key] = _make_result(
            order, cell, "run", scores, missing, runs, notes.get(cell.key, "")
        )
    return results


def _make_result(
    order: StudyOrder,
    cell: Cell,
    kind: Kind,
    scores: Mapping[str, Value],
    missing: str,
    records: Mapping[int, Record],
    note: str,
) -> CellResult:
    command = "" if cell.missing else order.command(cell)
    return CellResult(cell.choices, cell.titles, kind, records, scores, missing, note, command)


def _measure_score(cell: Cell, score: Score, records: Mapping[int, Record]) -> Value:
    """One score over the seeds that have it."""
    values = {seed: _score_run(record, score) for seed, record in records.items()}
    known = {seed: value for seed, value in values.items() if not math.isnan(value)}
    return _add_printed(cell, score, tuple(known.values()), tuple(known))


def scale_window(score: Score, scale: float) -> Score:
    """A score whose window shrinks with the rounds: the last 10 of 100 are the last 2 of 20."""
    return score.model_copy(update={"window": max(round(score.window * scale), 1)})


def _score_run(record: Record, score: Score) -> float:
    """A score of one run, nan if the run does not have it."""
    if score.array is not None:
        value = read_entry(record.arrays.get(score.array), score.at)
    else:
        value = record.score(score.metric or "", score.over, score.window, score.lower_is_better)
    return 100 * value if score.percent else value


def read_entry(array: NDArray[Any] | None, at: tuple[int, ...]) -> float:
    """One entry of what a method left; nan where it left nothing there."""
    if array is None or len(at) != array.ndim:
        return math.nan
    inside = all(-size <= place < size for place, size in zip(at, array.shape, strict=True))
    return float(array[at]) if inside else math.nan


def _add_printed(
    cell: Cell, score: Score, values: tuple[float, ...], seeds: tuple[int, ...] = ()
) -> Value:
    """Our values with the printed one."""
    figure = find_printed(cell, score)
    return Value(
        score.title,
        values,
        seeds,
        figure.mean,
        figure.std,
        figure.value,
        score.digits,
        score.lower_is_better,
    )


def _compute_cell(order: StudyOrder, cell: Cell, results: Mapping[Key, CellResult]) -> CellResult:
    """A cell that is the difference or the average of others."""
    axis = cell.computed
    assert axis is not None, "only computed cells come here"
    parts = [results[part.key] for part in cell.parts()]
    kind: Kind = "difference" if cell.chosen[axis].difference else "average"
    make = subtract_seeds if kind == "difference" else average_cells
    scores = {}
    for name, score in cell.scores.items():
        values = make([part.scores[name] for part in parts if name in part.scores])
        scores[name] = _add_printed(
            cell, score, tuple(values.values()), tuple(values) if kind == "difference" else ()
        )
    lacking = dict.fromkeys(part.missing for part in parts if part.missing)
    note = next((part.scaled for part in parts if part.scaled), "")
    return _make_result(
        order, cell, kind, scores, "; ".join([cell.missing] if cell.missing else lacking), {}, note
    )


def subtract_seeds(values: list[Value]) -> dict[int, float]:
    """Seed by seed, because runs of one seed share their data and their participants."""
    if len(values) != 2:
        return {}
    # A seed that only one side has says nothing of their difference.
    first, second = (dict(zip(value.seeds, value.values, strict=True)) for value in values)
    return {seed: first[seed] - second[seed] for seed in first if seed in second}


def average_cells(values: list[Value]) -> dict[int, float]:
    """The means, by their place; none unless all are there."""
    means = {place: value.mean for place, value in enumerate(values)}
    return {} if any(map(math.isnan, means.values())) else means
