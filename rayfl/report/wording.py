"""What a report says in every format: the texts of a slot, how to read the table, what a scale
changed."""

from __future__ import annotations

import math
from typing import NamedTuple

from rayfl.report.slots import TableSlot
from rayfl.report.tables import Table
from rayfl.study.result import CellResult, StudyResult

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
        SlotText(value.difference_text(), False),
    ]


def describe_scale(result: StudyResult) -> str:
    """What `--scale` changed, in a sentence that warns of comparing."""
    changes = list(dict.fromkeys(cell.scaled for cell in result.cells if cell.scaled))
    if result.scale == 1 and not changes:
        return ""
    what = "; ".join(changes) or "smaller than printed"
    return f"Scale {result.scale:g}: {what}. Levels are not comparable with printed ones."


def explain_reading(table: Table) -> str:
    """How the figures of a table are to be read."""
    said = "Mean ± sample standard deviation over n seeds. Bold: the best among rivals"
    if table.printed:
        said += ", ours and printed apart"
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
