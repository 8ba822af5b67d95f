"""Parts of the audit's page: cells, tables, bars and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from rayfl.audit.findings import CLEAN, WRONG
from rayfl.audit.shares import Share


class PageCell(NamedTuple):
    """What a cell shows, what it sorts by, and its class."""

    shown: str
    sorts: str = ""
    kind: str = ""


def tell_text(text: object, kind: str = "text") -> PageCell:
    """Words."""
    return PageCell(escape(str(text)), "", kind)


def tell_number(value: float, digits: int = 2) -> PageCell:
    """A number; nothing where there is none."""
    if value != value:
        return PageCell("", "")
    return PageCell(f"{value:.{digits}f}", repr(float(value)))


def tell_count(value: int) -> PageCell:
    """A whole number."""
    return PageCell(f"{value:,}", str(value))


def tell_share(value: float) -> PageCell:
    """A share in percent."""
    return PageCell(f"{value:.1%}", repr(float(value)))


def tell_interval(share: Share, wrong: bool) -> PageCell:
    """An estimate with its interval, in figures and as a bar."""
    left, width = share.low * 100, max(share.high - share.low, 0.005) * 100
    kind = "bar wrong" if wrong else "bar"
    bar = (
        f'<span class="{kind}" aria-hidden="true"><i style="left:{left:.1f}%;width:{width:.1f}%">'
        f'</i><u style="left:{share.value * 99:.1f}%"></u></span>'
    )
    figures = f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})"
    return PageCell(f"{bar} {figures}", repr(share.value), "text")


def tell_verdict(verdict: str) -> PageCell:
    """A verdict in its colour."""
    kind = {WRONG: "wrong", CLEAN: "clean"}.get(verdict, "")
    return PageCell(f'<span class="verdict {kind}">{escape(verdict)}</span>', "", "text")


def format_table(
    rows: Sequence[Mapping[str, PageCell]],
    label: str,
    name: str = "",
    data: Sequence[Mapping[str, str]] = (),
) -> str:
    """A table whose columns sort.

    Parameters
    ----------
    rows
        Cells by the head of their column; the first column names the row.
    label
        What the table is called for those who do not see it.
    name
        Its id, where something refers to it.
    data
        What each row is known by to filters."""
    if not rows:
        return '<p class="soft">None.</p>'
    heads = ""
    for column, (title, cell) in enumerate(rows[0].items()):
        kind = "row" if not column else cell.kind
        button = f'<button type="button">{escape(title)}</button>'
        heads += f'<th class="{kind}" scope="col" data-column="{column}">{button}</th>'
    known = data or [{}] * len(rows)
    body = "".join(_format_row(row, of) for row, of in zip(rows, known, strict=True))
    named = f' id="{name}"' if name else ""
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'{box}<table class="sortable"{named}>{inner}</table></div>'


def _format_row(row: Mapping[str, PageCell], data: Mapping[str, str]) -> str:
    known = "".join(f' data-{key}="{escape(value)}"' for key, value in data.items())
    first, *rest = row.values()
    cells = f'<th scope="row"{_sorts_by(first)}>{first.shown}</th>'
    for cell in rest:
        kind = f' class="{cell.kind}"' if cell.kind else ""
        cells += f"<td{kind}{_sorts_by(cell)}>{cell.shown}</td>"
    return f"<tr{known}>{cells}</tr>"


def _sorts_by(cell: PageCell) -> str:
    return f' data-value="{escape(cell.sorts)}"' if cell.sorts else ""


def format_filters(table: str, choices: Mapping[str, Iterable[str]]) -> str:
    """Choices that hide the rows of a table which they do not fit.

    Parameters
    ----------
    table
        The id of the table.
    choices
        Values by the name that rows know them by."""
    labels = ""
    for name, values in choices.items():
        options = "".join(f'<option value="{escape(v)}">{escape(v)}</option>' for v in values)
        everything = '<option value="">all</option>'
        labels += f'<label>{name} <select name="{name}">{everything}{options}</select></label>'
    return f'<div class="filters" data-table="{table}">{labels}<output></output></div>'


def format_headlines(figures: Mapping[str, str]) -> str:
    """The most important figures, large."""
    boxes = ""
    for what, figure in figures.items():
        boxes += f"<div><b>{escape(figure)}</b><span>{escape(what)}</span></div>"
    return f'<div class="figures">{boxes}</div>'
