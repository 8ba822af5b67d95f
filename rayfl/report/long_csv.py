"""A report's figures as CSV, a line each."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable

from rayfl.report.slots import SCORE, TableSlot
from rayfl.report.tables import build_table
from rayfl.study.result import StudyResult


def write_csv(result: StudyResult) -> str:
    """One line a cell and score, with everything that is known about it."""
    slots = build_table(result).slots.values()
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_list_heads(result))
    writer.writerows(_list_fields(result, slot) for slot in slots)
    return buffer.getvalue()


def _list_heads(result: StudyResult) -> list[str]:
    return [
        "study",
        *result.study.axes,
        SCORE,
        *("kind", "mean", "std", "n", "values", "seeds"),
        *("printed", "printed_std", "printed_value", "difference"),
        *("best", "printed_best", "missing"),
        *("scale", "scaled", "rounds", "scenarios", "digests", "command"),
    ]


def _list_fields(result: StudyResult, slot: TableSlot) -> list[object]:
    """What stands below the heads, in their order."""
    cell = slot.cell
    value = slot.value
    runs = cell.made.values()
    return [
        result.name,
        *(cell.titles[axis] for axis in result.study.axes),
        value.title,
        cell.kind,
        _format_number(value.mean),
        _format_number(value.std),
        value.n,
        _join_by_spaces(map(_format_number, value.values)),
        _join_by_spaces(value.seeds),
        value.printed,
        value.printed_std,
        _format_number(value.printed_value),
        _format_number(slot.cell.difference(slot.score)),
        int(slot.best),
        int(slot.printed_best),
        cell.missing,
        result.scale,
        cell.scaled,
        _join_by_spaces(sorted({run.rounds for run in runs})),
        _join_by_spaces(run.scenario for run in runs),
        _join_by_spaces(run.digest for run in runs),
        cell.command,
    ]


def _format_number(value: float) -> str:
    """Ten digits; nothing where nothing is known."""
    return "" if math.isnan(value) else f"{value:.10g}"


def _join_by_spaces(values: Iterable[object]) -> str:
    return " ".join(map(str, values))
