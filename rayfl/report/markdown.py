"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rayfl.report.corrections import (
    explain_corrections,
    find_corrections,
    list_client_corrections,
    list_corrections,
)
from rayfl.report.ranking import Agreement, measure_agreements
from rayfl.report.slots import TableSlot
from rayfl.report.stand_out import list_stand_out
from rayfl.report.tables import Table, build_table, explain_missing
from rayfl.report.wording import (
    HEADS,
    describe_notes,
    describe_rounds,
    describe_runs,
    describe_scale,
    explain_reading,
    format_decimal,
    list_texts,
)
from rayfl.study.result import StudyResult

AGREEMENT_HEADS = (
    "among",
    "methods",
    "Kendall's tau",
    "Spearman's rho",
    "pairs in the printed order",
)


def write_markdown(result: StudyResult) -> str:
    """The whole report as text: notes, table, agreement, what is missing, commands."""
    table = build_table(result)
    lines = [f"# {escape_markdown(result.study.title)}", ""]
    lines += _write_intro(result)
    for part in table.parts():
        # A table in one part has the report's title.
        if part is not table:
            lines += [f"**{escape_markdown(part.title)}**", ""]
        lines += [*_write_table(part), ""]
    lines.append(escape_markdown(explain_reading(table)))
    lines += _write_agreements(result)
    lines += _write_clients(result)
    lines += _write_missing(result)
    lines += _write_commands(result)
    return "\n".join(lines).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """Text that means itself in Markdown, in a table as well."""
    words = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", words)


def _write_intro(result: StudyResult) -> Iterator[str]:
    """Paper, notes, rounds and scale, where there are any."""
    notes = [describe_notes(result), describe_rounds(result), describe_scale(result)]
    for text in (result.study.paper, *notes):
        if text.strip():
            yield from (escape_markdown(text.strip()), "")


def _write_table(table: Table) -> Iterator[str]:
    titles = [escape_markdown(table.column_title(column)) for column in table.columns]
    if table.printed:
        titles = [f"{title}: {head}" for title in titles for head in HEADS]
    yield write_row([*map(escape_markdown, table.row_heads()), *titles])
    yield write_row(["---"] * len(table.row_axes) + ["---:"] * len(titles))
    for row in table.rows:
        cells = [escape_markdown(title) for title in table.row_titles(row)]
        for column in table.columns:
            cells += _write_slot(table.slots.get((row, column)), table.width)
        yield write_row(cells)


def _write_slot(slot: TableSlot | None, width: int) -> list[str]:
    texts = list_texts(slot)[:width]
    return [f"**{each.text}**" if each.bold else each.text for each in texts]


def write_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _write_agreements(result: StudyResult) -> Iterator[str]:
    found = measure_agreements(result)
    if not found:
        return
    yield from ("", "## Rank agreement with the printed figures", "")
    yield write_row(AGREEMENT_HEADS)
    yield write_row(["---", *["---:"] * (len(AGREEMENT_HEADS) - 1)])
    yield from map(_write_agreement, found)


def _write_agreement(found: Agreement) -> str:
    cells = [
        escape_markdown(found.title),
        str(found.methods),
        format_decimal(found.kendall),
        format_decimal(found.spearman),
        f"{found.concordant} of {found.pairs}",
    ]
    return write_row(cells)


def _write_clients(result: StudyResult) -> Iterator[str]:
    """Who stands out, and what corrected labels changed."""
    yield from _write_rows("Clients that stand out", list_stand_out(result))
    found = find_corrections(result)
    yield from _write_rows("Corrected labels", list_corrections(found))
    for note in explain_corrections(found):
        yield from ("", escape_markdown(note))
    yield from _write_rows("Corrected labels by client", list_client_corrections(found))


def _write_rows(title: str, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Mappings of equal keys as a table with a heading; nothing where there are none."""
    if not rows:
        return
    yield from ("", f"## {title}", "")
    yield write_row([*map(escape_markdown, rows[0])])
    yield write_row(["---"] * len(rows[0]))
    for row in rows:
        yield write_row([escape_markdown(text) for text in row.values()])


def _write_missing(result: StudyResult) -> Iterator[str]:
    lacking = explain_missing(result)
    if not lacking:
        return
    yield from ("", "## Without runs", "")
    for why, cells in lacking.items():
        yield f"- {escape_markdown(', '.join(cells))}: {escape_markdown(why)}"


def _write_commands(result: StudyResult) -> Iterator[str]:
    lines: list[str] = []
    for cell in result.cells:
        if cell.command:
            lines += [f"# {describe_runs(cell)}", cell.command]
    if lines:
        yield from ("", "## Commands", "", fence_code("\n".join(lines)))


def fence_code(code: str) -> str:
    """A block of code whose fence is longer than any inside."""
    inside = re.findall(r"`+", code)
    longest = max(map(len, inside), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{code}\n{fence}"
