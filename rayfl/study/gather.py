"""From the runs of an output folder to what a study came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rayfl.config.schema import Config
from rayfl.errors import RayflError
from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row
from rayfl.run.store import Record, Shelf
from rayfl.study.cells import Cell
from rayfl.study.order import StudyOrder
from rayfl.study.plan import find_row
from rayfl.study.printed_figures import find_printed
from rayfl.study.result import CellResult, Kind, StudyResult, Value
from rayfl.study.schema import ChoiceKey, Score
from rayfl.study.scores import scale_window, score_row, score_run

NOT_RUN = "not run yet"


def gather_results(
    study: Path | StudyOrder,
    output: Path | None = None,
    problems: Mapping[ChoiceKey, str] | None = None,
    ledger: Ledger | None = None,
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
        What keeps cells from running, by the names of their choices.
    ledger
        Rows that stand for runs which the folder does not hold."""
    order = study if isinstance(study, StudyOrder) else StudyOrder.remembered(study, output)
    return _make_result(order, _find_runs(order, Shelf(order.folder), ledger, problems))


def gather_recorded(order: StudyOrder, ledger: Ledger) -> StudyResult:
    """All cells of an order as the ledger alone has them."""
    return _make_result(order, _find_runs(order, None, ledger))


def _make_result(order: StudyOrder, found: FoundRuns) -> StudyResult:
    results = _make_cells(order, found)
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


@dataclass
class FoundRuns:
    """The runs of an order, by the names of their cells' choices."""

    problems: dict[ChoiceKey, str]
    records: dict[ChoiceKey, dict[int, Record]] = field(default_factory=dict)
    rows: dict[ChoiceKey, dict[int, Row]] = field(default_factory=dict)
    notes: dict[ChoiceKey, str] = field(default_factory=dict)


def _find_runs(
    order: StudyOrder,
    shelf: Shelf | None,
    ledger: Ledger | None,
    problems: Mapping[ChoiceKey, str] | None = None,
) -> FoundRuns:
    """What the store and, where that has nothing, the ledger hold."""
    found = FoundRuns(dict(problems or {}))
    for cell, seed, made in order.configurations():
        if isinstance(made, RayflError):
            found.problems.setdefault(cell.key, str(made))
            continue
        found.notes[cell.key] = made.note
        record = None if shelf is None else shelf.find(made.config)
        if record is not None:
            found.records.setdefault(cell.key, {})[seed] = record
        elif ledger is not None:
            row = _choose_row(ledger, cell, made.config, order.scale)
            if row is not None:
                found.rows.setdefault(cell.key, {})[seed] = row
    return found


def _choose_row(ledger: Ledger, cell: Cell, config: Config, scale: float) -> Row | None:
    """The row with all scores, or else one with some of them."""
    whole = find_row(ledger, cell, config, scale)
    return whole or ledger.find(config.digest, config.training.rounds)


def _make_cells(order: StudyOrder, found: FoundRuns) -> dict[ChoiceKey, CellResult]:
    """The cells that are run."""
    results = {}
    for cell in order.cells:
        if cell.computed:
            continue
        records = found.records.get(cell.key, {})
        rows = found.rows.get(cell.key, {})
        lacking = "" if records or rows else found.problems.get(cell.key, NOT_RUN)
        results[cell.key] = CellResult(
            cell.choices,
            cell.titles,
            records=records,
            rows=rows,
            scores=_measure_scores(order, cell, {**rows, **records}),
            missing=cell.missing or lacking,
            scaled=found.notes.get(cell.key, ""),
            command=_find_command(order, cell),
        )
    return results


def _find_command(order: StudyOrder, cell: Cell) -> str:
    """The command that runs a cell; a cell that is missing in the study has none."""
    return "" if cell.missing else order.command(cell)


def _measure_scores(
    order: StudyOrder,
    cell: Cell,
    runs: Mapping[int, Record | Row],
) -> dict[str, Value]:
    """All scores of a cell, seeds in the order in which they are asked for."""
    ordered = {seed: runs[seed] for seed in order.wanted_seeds if seed in runs}
    return {
        name: _measure_score(cell, scale_window(score, order.scale), ordered)
        for name, score in cell.scores.items()
    }


def _measure_score(
    cell: Cell,
    score: Score,
    runs: Mapping[int, Record | Row],
) -> Value:
    """One score over the seeds that have it."""
    values = {seed: _score_any(run, score) for seed, run in runs.items()}
    known = {seed: value for seed, value in values.items() if not math.isnan(value)}
    return _add_printed(
        cell,
        score,
        tuple(known.values()),
        tuple(known),
    )


def _score_any(run: Record | Row, score: Score) -> float:
    return score_run(run, score) if isinstance(run, Record) else score_row(run, score)


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
