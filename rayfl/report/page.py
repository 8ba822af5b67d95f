"""The report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from rayfl.plots.style import png, svg
from rayfl.report.formats import HEADS, about, decimal, reading, scale_note, texts
from rayfl.report.material import Drawing
from rayfl.report.provenance import facts, hashes
from rayfl.report.tables import Slot, Table, absent, agreements, table_of
from rayfl.study.result import CellResult, StudyResult

MOST_SVG = 300_000
"""Letters of an inline SVG; a larger figure goes in as PNG."""
MOST_PIXELS, COLOURS = 1000, 256
"""Of a picture that goes in as it is."""
MOST_OPEN = 12
"""Cells whose commands are shown without being asked for."""
BROAD = 7.0
PIXELS_OF_AN_INCH = 55, 92
"""Below the first an SVG's writing is too small, above the second too large."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
HELP = (
    "Drag in a chart to zoom, double-click to come back, click a name to hide its line. "
    "With the keyboard: arrow keys read values, + and - zoom, 0 comes back."
)


def page(result: StudyResult, drawn: Sequence[Drawing], lacking: Mapping[str, str]) -> str:
    """The whole document."""
    static = files("rayfl.report") / "page"
    css, script = ((static / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    sections = dict(sections_of(result, drawn, lacking))
    links = "".join(
        f'<li><a href="#{slug}">{title}</a></li>' for slug, (title, _) in sections.items()
    )
    bodies = "".join(
        f'<section id="{slug}"><h2>{title}</h2>{body}</section>'
        for slug, (title, body) in sections.items()
    )
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(result.study.title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{css}</style></head><body>"
        f'{header(result)}<main>{notes(result)}<nav aria-label="Sections"><ul>{links}</ul></nav>{bodies}</main>'
        f'<footer class="soft">Written by rayfl.</footer><script>{script}</script></body></html>\n'
    )


def header(result: StudyResult) -> str:
    paper = f'<p class="soft">{escape(result.study.paper)}</p>' if result.study.paper else ""
    toggle = '<button type="button" id="theme">Dark</button>'
    return f"<header><div><h1>{escape(result.study.title)}</h1>{paper}</div>{toggle}</header>"


def notes(result: StudyResult) -> str:
    """What a reader must know before the table."""
    texts_ = [paragraph for paragraph in result.study.notes.split("\n\n") if paragraph.strip()]
    scale = scale_note(result)
    warned = f'<p class="warn">{escape(scale)}</p>' if scale else ""
    return warned + "".join(f"<p>{escape(' '.join(text.split()))}</p>" for text in texts_)


def sections_of(
    result: StudyResult, drawn: Sequence[Drawing], lacking: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Sections by their anchors, in order; those without content are left out."""
    table = table_of(result)
    several = "".join(f"{heading(part, table)}{grid(part)}" for part in table.parts())
    yield (
        "table",
        ("Table", f'{several}<p class="soft">{escape(reading(table))}</p>{missing(result)}'),
    )
    if agreements(result):
        yield "agreement", ("Rank agreement with the printed figures", agreement_table(result))
    if drawn or lacking:
        yield "figures", ("Figures", figures_section(drawn, lacking))
    commands = "".join(command(cell) for cell in result.cells if cell.command)
    if commands:
        folded = "" if len(result.cells) > MOST_OPEN else " open"
        yield (
            "commands",
            (
                "Commands",
                f"<details{folded}><summary>One for each cell</summary>{commands}</details>",
            ),
        )
    yield "provenance", ("Provenance", provenance(result))


# -- tables ----------------------------------------------------------------------------------------------------------


def heading(part: Table, table: Table) -> str:
    """What a part of a table is about; a whole table needs no heading."""
    return (
        ""
        if part is table
        else f"<h3>{escape(part.title.removeprefix(table.title).lstrip(': '))}</h3>"
    )


def grid(table: Table) -> str:
    """Ours, printed and the difference, by row and column; every column sorts."""
    body = "".join(grid_row(table, row, table.width) for row in table.rows)
    return scrolled(
        f"<thead>{grid_head(table, table.width)}</thead><tbody>{body}</tbody>", table.title
    )


def grid_head(table: Table, width: int) -> str:
    names = [sortable(name, i, "row") for i, name in enumerate(table.row_heads())]
    titles = [table.column_title(column) for column in table.columns]
    if width == 1:
        return f"<tr>{''.join(names)}{''.join(sortable(t, len(names) + i, 'ours') for i, t in enumerate(titles))}</tr>"
    over = f'<th class="row" colspan="{len(names)}"></th>'
    spans = "".join(
        f'<th class="ours" colspan="{width}" scope="colgroup">{escape(title)}</th>'
        for title in titles
    )
    heads = [
        sortable(head, len(names) + width * column + i, head)
        for column in range(len(titles))
        for i, head in enumerate(HEADS)
    ]
    return f"<tr>{over}{spans}</tr><tr>{''.join(names)}{''.join(heads)}</tr>"


def sortable(title: str, column: int, kind: str) -> str:
    button = f'<button type="button">{escape(title)}</button>'
    return f'<th class="{kind}" scope="col" data-column="{column}">{button}</th>'


def grid_row(table: Table, row: tuple[str, ...], width: int) -> str:
    heads = "".join(f'<th scope="row">{escape(title)}</th>' for title in table.row_titles(row))
    cells = "".join(grid_cells(table.slots.get((row, column)), width) for column in table.columns)
    return f"<tr>{heads}{cells}</tr>"


def grid_cells(slot: Slot | None, width: int) -> str:
    cells = []
    for head, (text, bold), value in zip(HEADS[:width], texts(slot), values(slot), strict=False):
        shown = f"<b>{escape(text)}</b>" if bold else escape(text)
        why = (
            f' title="{escape(slot.cell.missing)}"'
            if slot and slot.cell.missing and head == "ours"
            else ""
        )
        cells.append(
            f'<td class="{head}" data-value="{"" if math.isnan(value) else repr(value)}"{why}>{shown}</td>'
        )
    return "".join(cells)


def values(slot: Slot | None) -> tuple[float, float, float]:
    """What the cells of a slot sort by."""
    if slot is None:
        return (math.nan,) * 3
    return slot.value.mean, slot.value.printed_value, slot.value.difference


def scrolled(inner: str, label: str) -> str:
    """A table in a box of its own that scrolls where the page is narrow."""
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
    return f'{box}<table class="sortable">{inner}</table></div>'


def rows_table(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    """Mappings of equal keys, a row each; the first column names the row."""
    heads = "".join(sortable(name, i, "row" if i == 0 else "") for i, name in enumerate(rows[0]))
    lines = []
    for row in rows:
        first, *rest = map(str, row.values())
        lines.append(
            f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        )
    return scrolled(f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>", label)


def agreement_table(result: StudyResult) -> str:
    rows = [
        {
            "among": each.title,
            "methods": each.methods,
            "Kendall's tau": decimal(each.kendall),
            "Spearman's rho": decimal(each.spearman),
            "pairs in the printed order": f"{each.concordant} of {each.pairs}",
        }
        for each in agreements(result)
    ]
    note = "1: the methods rank as printed; 0: unrelated; -1: reversed. Only cells with both figures count."
    return f'{rows_table(rows, "Rank agreement")}<p class="soft">{note}</p>'


def missing(result: StudyResult) -> str:
    lacking = absent(result)
    if not lacking:
        return ""
    items = "".join(
        f"<li>{escape(', '.join(cells))}: {escape(why)}</li>" for why, cells in lacking.items()
    )
    return f"<h3>Without runs</h3><ul>{items}</ul>"


# -- figures ---------------------------------------------------------------------------------------------------------


def figures_section(drawn: Sequence[Drawing], lacking: Mapping[str, str]) -> str:
    shown = "".join(figure(number, drawing) for number, drawing in enumerate(drawn, 1))
    hint = f'<p class="soft">{HELP}</p>' if any(drawing.chart for drawing in drawn) else ""
    reasons = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in lacking.items())
    left = f'<p class="soft">Not drawn:</p><ul class="soft">{reasons}</ul>' if reasons else ""
    return f'{hint}<div class="gallery">{shown}</div>{left}'


def figure(number: int, drawing: Drawing) -> str:
    """One figure with its caption, and the numbers behind it where they are a table."""
    rows = rows_table(drawing.rows, drawing.title) if drawing.rows else ""
    broad = drawing.rows or (drawing.figure is not None and drawing.figure.get_figwidth() > BROAD)
    caption = f"<figcaption>Figure {number}. {escape(drawing.caption)}</figcaption>"
    kind = ' class="broad"' if broad else ""
    return f"<figure{kind}><h3>{escape(drawing.title)}</h3>{picture(number, drawing)}{rows}{caption}</figure>"


def picture(number: int, drawing: Drawing) -> str:
    label = escape(drawing.alt)
    if drawing.chart is not None:
        # `<` is written as an escape, so that no name can end the script element.
        data = json.dumps(drawing.chart.data()).replace("<", "\\u003c")
        return (
            f'<div class="chart" id="chart-{number}" data-label="{label}"><div class="plot"></div>'
            '<div class="tip" role="status" hidden></div><div class="legend" role="group" aria-label="Lines"></div>'
            f'<script type="application/json">{data}</script></div>'
        )
    if drawing.figure is not None:
        drawn = svg(drawing.figure)
        if len(drawn) <= MOST_SVG:
            least, most = (
                int(drawing.figure.get_figwidth() * pixels) for pixels in PIXELS_OF_AN_INCH
            )
            named = drawn.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
            return f'<div class="still" style="--least:{least}px;--most:{most}px">{named}</div>'
        return image(smaller(png(drawing.figure)), label)
    return image(smaller(drawing.image or b""), label)


def smaller(content: bytes) -> bytes:
    """A drawn figure with no more pixels and colours than the page shows."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(content)) as picture:
        shown = picture.convert("RGB")
        shown.thumbnail((MOST_PIXELS, MOST_PIXELS))
        shown.quantize(COLOURS).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def image(content: bytes, label: str) -> str:
    return f'<img alt="{label}" src="data:image/png;base64,{base64.b64encode(content).decode()}">'


# -- commands and provenance -----------------------------------------------------------------------------------------


def command(cell: CellResult) -> str:
    copy = f'<button type="button" class="copy" aria-label="Copy the command of {escape(about(cell))}">Copy</button>'
    block = f'<div class="command"><pre tabindex="0"><code>{escape(cell.command)}</code></pre>{copy}</div>'
    return f'<p class="cell">{escape(about(cell))}</p>{block}'


def provenance(result: StudyResult) -> str:
    pairs = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(result).items()
    )
    rows = hashes(result)
    runs = (
        f"<details><summary>Runs and hashes</summary>{rows_table(rows, 'Runs')}</details>"
        if rows
        else ""
    )
    return f'<dl class="facts">{pairs}</dl>{runs}'
