"""From the runs of an output folder to what a study came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rayfl.errors import RayflError
from rayfl.run.store import Record, Shelf
from rayfl.study.cells import Cell
from rayfl.study.order import StudyOrder
from rayfl.study.printed_figures import find_printed
from rayfl.study.result import CellResult, Kind, StudyResult, Value
from rayfl.study.schema import ChoiceKey, Score

NOT_RUN = "not run yet"


def gather_results(
    study: Path | StudyOrder,
    output: Path | None = None,
    problems: Mapping[ChoiceKey, str] | None = None,
) -> StudyResult:
    """All cells of a study with the finished runs below an output folder.

    Parameters
    ----------
    study
        Of a path, the cells, seeds and scale are those that were last run in that folder, or else
        all of the study's.
    output
        The folder, where a path is given.
    problems
        What keeps cells from running, by the names of their choices."""
    order = study if isinstance(study, StudyOrder) else StudyOrder.remembered(study, output)
    results = _find_runs(order, Shelf(order.folder), dict(problems or {}))
    # Computed cells come last, because they stand on the others.
    for cell in order.cells:
        if cell.computed:
            results[cell.key] = _compute_cell(order, cell, results)
    ordered = [results[cell.key] for cell in order.cells]
    return StudyResult(
        order.name,
        order.study,
        ordered,
        order.scale,
        order.wanted_seeds,
    )


# -- cells that are run ----------------------------------------------------------------------------


def _find_runs(
    order: StudyOrder, shelf: Shelf, problems: dict[ChoiceKey, str]
) -> dict[ChoiceKey, CellResult]:
    """The cells that are run, with their records."""
    records: dict[ChoiceKey, dict[int, Record]] = {}
    notes: dict[ChoiceKey, str] = {}
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
        if cell.computed:
            continue
        runs = records.get(cell.key, {})
        lacking = "" if runs else problems.get(cell.key, NOT_RUN)
        results[cell.key] = CellResult(
            cell.choices,
            cell.titles,
            records=runs,
            scores=_measure_scores(order, cell, runs),
            missing=cell.missing or lacking,
            scaled=notes.get(cell.key, ""),
            command=_find_command(order, cell),
        )
    return results


def _find_command(order: StudyOrder, cell: Cell) -> str:
    """The command that runs a cell; a cell that is missing in the study has none."""
    return "" if cell.missing else order.command(cell)


def _measure_scores(
    order: StudyOrder,
    cell: Cell,
    runs: Mapping[int, Record],
) -> dict[str, Value]:
    """All scores of a cell."""
    return {
        name: _measure_score(cell, scale_window(score, order.scale), runs)
        for name, score in cell.scores.items()
    }


def _measure_score(
    cell: Cell,
    score: Score,
    records: Mapping[int, Record],
) -> Value:
    """One score over the seeds that have it."""
    values = {seed: _score_run(record, score) for seed, record in records.items()}
    known = {seed: value for seed, value in values.items() if not math.isnan(value)}
    return _add_printed(
        cell,
        score,
        tuple(known.values()),
        tuple(known),
    )


def scale_window(score: Score, scale: float) -> Score:
    """A score whose window shrinks with the rounds: the last 10 of 100 are the last 2 of 20."""
    window = max(round(score.window * scale), 1)
    return score.model_copy(update={"window": window})


def _score_run(record: Record, score: Score) -> float:
    """A score of one run, nan if the run does not have it."""
    if score.array is not None:
        value = read_entry(record.arrays.get(score.array), score.at)
    else:
        metric = score.metric or ""
        value = record.score(metric, score.over, score.window, score.lower_is_better)
    return 100 * value if score.percent else value


def read_entry(array: NDArray[Any] | None, at: tuple[int, ...]) -> float:
    """One entry of what a method left; nan where it left nothing there."""
    if array is None or len(at) != array.ndim:
        return math.nan
    for place, size in zip(at, array.shape, strict=True):
        if not -size <= place < size:
            return math.nan
    return float(array[at])


def _add_printed(
    cell: Cell,
    score: Score,
    values: tuple[float, ...],
    seeds: tuple[int, ...],
) -> Value:
    """Our values with the printed one."""
    figure = find_printed(cell, score)
    return Value(
        score.title,
        values,
        seeds,
        printed=figure.mean,
        printed_std=figure.std,
        printed_value=figure.value,
        digits=score.digits,
        lower_is_better=score.lower_is_better,
    )


# -- cells that are computed -----------------------------------------------------------------------


def _compute_cell(
    order: StudyOrder, cell: Cell, results: Mapping[ChoiceKey, CellResult]
) -> CellResult:
    """A cell that is the difference or the average of others."""
    axis = cell.computed
    assert axis is not None, "only computed cells come here"
    parts = [results[part.key] for part in cell.parts()]
    kind: Kind = "difference" if cell.chosen[axis].difference else "average"
    scores = {}
    for name, score in cell.scores.items():
        values = [part.scores[name] for part in parts if name in part.scores]
        scores[name] = _compute_score(cell, score, kind, values)
    # Parts often lack for the same reason.
    lacking = dict.fromkeys(part.missing for part in parts if part.missing)
    return CellResult(
        cell.choices,
        cell.titles,
        kind,
        scores=scores,
        missing=cell.missing or "; ".join(lacking),
        scaled=next((part.scaled for part in parts if part.scaled), ""),
        command=_find_command(order, cell),
    )


def _compute_score(
    cell: Cell,
    score: Score,
    kind: Kind,
    values: Sequence[Value],
) -> Value:
    """A score of a computed cell out of those of its parts."""
    if kind == "difference":
        differences = subtract_seeds(values)
        return _add_printed(
            cell,
            score,
            tuple(differences.values()),
            tuple(differences),
        )
    means = average_cells(values)
    # A mean over cells is of no seed.
    return _add_printed(cell, score, tuple(means.values()), ())


def subtract_seeds(values: Sequence[Value]) -> dict[int, float]:
    """Seed by seed, because runs of one seed share their data and their participants."""
    if len(values) != 2:
        return {}
    first, second = (dict(zip(value.seeds, value.values, strict=True)) for value in values)
    # A seed that only one side has says nothing of their difference.
    return {seed: first[seed] - second[seed] for seed in first if seed in second}


def average_cells(values: Sequence[Value]) -> dict[int, float]:
    """The means, by their place; none unless all are there."""
    means = {place: value.mean for place, value in enumerate(values)}
    return {} if any(map(math.isnan, means.values())) else means
