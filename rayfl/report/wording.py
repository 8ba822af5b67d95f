"""What a report says in every format: the texts of a slot, how to read the table, what a scale
changed."""

from __future__ import annotations

import math
from typing import NamedTuple

from rayfl.report.slots import TableSlot
from rayfl.report.tables import Table
from rayfl.study.result import CellResult, StudyResult
from rayfl.study.scores import scale_window

HEADS = ("ours", "printed", "difference")


class SlotText(NamedTuple):
    """One figure of a slot, and whether it is the best."""

    text: str
    bold: bool


def list_texts(slot: TableSlot | None) -> list[SlotText]:
    """Ours, printed and their difference."""
    if slot is None:
        return [SlotText("", False)] * len(HEADS)
    value = slot.value
    return [
        SlotText(value.text(), slot.best),
        SlotText(value.printed_text(), slot.printed_best),
        SlotText(slot.cell.difference_text(slot.score), False),
    ]


def describe_scale(result: StudyResult) -> str:
    """What `--scale` changed, in a sentence that warns of comparing."""
    changes = list(dict.fromkeys(cell.scaled for cell in result.cells if cell.scaled))
    if result.scale == 1 and not changes:
        return ""
    what = "; ".join(changes) or "smaller than printed"
    return f"Scale {result.scale:g}: {what}. Levels are not comparable with printed ones."


def describe_notes(result: StudyResult) -> str:
    """The study's notes; they speak of its full size, which is said where that was not run."""
    notes = " ".join(result.study.notes.split())
    scaled = any(cell.scaled for cell in result.cells)
    return f"At full size: {notes}" if notes and scaled else notes


def describe_rounds(result: StudyResult) -> str:
    """Over which of the rounds that were run the scores are; nothing where nothing was run."""
    rounds = sorted({run.rounds for cell in result.cells for run in cell.made.values()})
    windows = {
        scale_window(score, result.scale).window
        for score in result.study.scores.values()
        if score.over == "last" and score.array is None
    }
    if not rounds or not windows:
        return ""
    ran = f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,}"
    last = f"the last {min(max(windows), rounds[-1])}" if max(windows) > 1 else "the last one"
    return f"Rounds run here: {ran}; a score is the mean over {last} that measured it."


def explain_reading(table: Table) -> str:
    """How the figures of a table are to be read."""
    said = "Mean ± sample standard deviation over n seeds. "
    if table.bold:
        said += "Bold: the best among three rivals or more"
        said += ", ours (of two seeds or more) and printed apart" if table.printed else ""
    else:
        said += "Nothing is bold: that takes three rivals or more, of two seeds each at full size"
    if table.printed:
        said += ". A difference takes two seeds, at full size"
    fixed = f" Throughout: {', '.join(table.constant)}." if table.constant else ""
    return f"{said}.{fixed}"


def format_decimal(value: float) -> str:
    """Two decimals, or a dash."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def describe_runs(cell: CellResult) -> str:
    """A cell and what of it was run, in one line."""
    seeds = ", ".join(map(str, sorted(cell.records))) or "none"
    recorded = ", ".join(map(str, sorted(cell.rows)))
    known = f"; recorded: {recorded}" if recorded else ""
    titles = ", ".join(cell.titles.values())
    return " ".join(f"{titles} (seeds run: {seeds}{known})".split())
