"""Tables of the report's page; every column sorts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rayfl.report.ranking import measure_agreements
from rayfl.report.slots import TableSlot
from rayfl.report.tables import Table
from rayfl.report.wording import HEADS, format_decimal, list_texts
from rayfl.study.result import StudyResult
from rayfl.study.schema import ChoiceKey

AGREEMENT_NOTE = (
    "1: the methods rank as printed; 0: unrelated; -1: reversed. "
    "Only cells with both figures count."
)


def format_table(table: Table) -> str:
    """Ours, printed and the difference, by row and column."""
    head = _format_head(table)
    body = "".join(_format_row(table, row) for row in table.rows)
    inner = f"<thead>{head}</thead><tbody>{body}</tbody>"
    return _make_scrollable(inner, table.title)


def format_rows(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    """Mappings of equal keys, a row each; the first column names the row."""
    kinds = ["row", *[""] * (len(rows[0]) - 1)]
    heads = _format_heads(rows[0], kinds)
    lines = []
    for row in rows:
        first, *rest = (escape(str(value)) for value in row.values())
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return _make_scrollable(inner, label)


def format_agreements(result: StudyResult) -> str:
    """Rank agreement with the printed figures, and how to read it."""
    rows = [
        {
            "among": each.title,
            "methods": each.methods,
            "Kendall's tau": format_decimal(each.kendall),
            "Spearman's rho": format_decimal(each.spearman),
            "pairs in the printed order": f"{each.concordant} of {each.pairs}",
        }
        for each in measure_agreements(result)
    ]
    return f'{format_rows(rows, "Rank agreement")}<p class="soft">{AGREEMENT_NOTE}</p>'


# -- parts -----------------------------------------------------------------------------------------


def _format_head(table: Table) -> str:
    """One row of heads; a second one above where the paper's figures stand beside ours."""
    names = table.row_heads()
    titles = [table.column_title(column) for column in table.columns]
    kinds = ["row"] * len(names)
    if table.width == 1:
        heads = _format_heads([*names, *titles], [*kinds, *["ours"] * len(titles)])
        return f"<tr>{heads}</tr>"
    over = f'<th class="row" colspan="{len(names)}"></th>'
    for title in titles:
        span = f'colspan="{table.width}" scope="colgroup"'
        over += f'<th class="ours" {span}>{escape(title)}</th>'
    figures = [*HEADS] * len(titles)
    heads = _format_heads([*names, *figures], [*kinds, *figures])
    return f"<tr>{over}</tr><tr>{heads}</tr>"


def _format_heads(titles: Sequence[str] | Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Heads that sort their columns, each with what it is of."""
    heads = []
    for column, (title, kind) in enumerate(zip(titles, kinds, strict=True)):
        button = f'<button type="button">{escape(title)}</button>'
        heads.append(f'<th class="{kind}" scope="col" data-column="{column}">{button}</th>')
    return "".join(heads)


def _format_row(table: Table, row: ChoiceKey) -> str:
    cells = [f'<th scope="row">{escape(title)}</th>' for title in table.row_titles(row)]
    for column in table.columns:
        cells += _format_slot(table.slots.get((row, column)), table.width)
    return f"<tr>{''.join(cells)}</tr>"


def _format_slot(slot: TableSlot | None, width: int) -> Iterator[str]:
    """The cells of a slot; what is missing says why where the mouse points."""
    figures = zip(HEADS, list_texts(slot), _list_values(slot), strict=True)
    for head, (text, bold), value in list(figures)[:width]:
        shown = f"<b>{escape(text)}</b>" if bold else escape(text)
        sorts_by = "" if math.isnan(value) else repr(value)
        missing = slot.cell.missing if slot is not None and head == "ours" else ""
        why = f' title="{escape(missing)}"' if missing else ""
        yield f'<td class="{head}" data-value="{sorts_by}"{why}>{shown}</td>'


def _list_values(slot: TableSlot | None) -> tuple[float, float, float]:
    """What the cells of a slot sort by."""
    if slot is None:
        return (math.nan,) * 3
    return slot.value.mean, slot.value.printed_value, slot.cell.difference(slot.score)


def _make_scrollable(inner: str, label: str) -> str:
    """A table in a box of its own that scrolls where the page is narrow."""
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
    return f'{box}<table class="sortable">{inner}</table></div>'
