"""The report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

from rayfl.report.corrections import (
    CorrectedRun,
    explain_corrections,
    find_corrections,
    list_client_corrections,
    list_corrections,
)
from rayfl.report.html_figures import format_figures
from rayfl.report.html_tables import format_agreements, format_rows, format_table
from rayfl.report.material import Drawing
from rayfl.report.provenance import collect_facts, list_hashes
from rayfl.report.ranking import measure_agreements
from rayfl.report.stand_out import EXPLAINED, list_stand_out
from rayfl.report.tables import Table, build_table, explain_missing
from rayfl.report.wording import (
    describe_notes,
    describe_rounds,
    describe_runs,
    describe_scale,
    explain_reading,
)
from rayfl.study.result import CellResult, StudyResult

MOST_OPEN = 12
"""Cells whose commands are shown without being asked for."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class PageSection(NamedTuple):
    """A part of the page with its anchor and its heading."""

    slug: str
    title: str
    body: str


def write_page(
    result: StudyResult,
    drawn: Sequence[Drawing],
    lacking: Mapping[str, str],
) -> str:
    """The whole document.

    Parameters
    ----------
    drawn
        The figures in their order.
    lacking
        Why a figure could not be drawn, by its name."""
    static = files("rayfl.report") / "page"
    css = (static / "style.css").read_text(encoding="utf-8")
    script = (static / "page.js").read_text(encoding="utf-8")
    sections = list(_list_sections(result, drawn, lacking))
    links = ""
    bodies = ""
    for slug, title, body in sections:
        links += f'<li><a href="#{slug}">{title}</a></li>'
        bodies += f'<section id="{slug}"><h2>{title}</h2>{body}</section>'
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(result.study.title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{css}</style></head><body>"
        f"{_format_header(result)}<main>{_format_notes(result)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>{bodies}</main>'
        f'<footer class="soft">Written by rayfl.</footer><script>{script}</script></body></html>\n'
    )


def _format_header(result: StudyResult) -> str:
    title = f"<h1>{escape(result.study.title)}</h1>"
    paper = f'<p class="soft">{escape(result.study.paper)}</p>' if result.study.paper else ""
    toggle = '<button type="button" id="theme">Dark</button>'
    return f"<header><div>{title}{paper}</div>{toggle}</header>"


def _format_notes(result: StudyResult) -> str:
    """What a reader must know before the table."""
    scale = describe_scale(result)
    notes = f'<p class="warn">{escape(scale)}</p>' if scale else ""
    for paragraph in (describe_notes(result), describe_rounds(result)):
        if paragraph:
            notes += f"<p>{escape(paragraph)}</p>"
    return notes


def _list_sections(
    result: StudyResult, drawn: Sequence[Drawing], lacking: Mapping[str, str]
) -> Iterator[PageSection]:
    """The sections in order; those without content are left out."""
    yield PageSection("table", "Table", _format_tables(result))
    if measure_agreements(result):
        heading = "Rank agreement with the printed figures"
        yield PageSection("agreement", heading, format_agreements(result))
    if drawn or lacking:
        yield PageSection("figures", "Figures", format_figures(drawn, lacking))
    standing = list_stand_out(result)
    if standing:
        body = f'{format_rows(standing, "Clients that stand out")}<p class="soft">{EXPLAINED}</p>'
        yield PageSection("standing", "Clients that stand out", body)
    corrected = find_corrections(result)
    if corrected:
        yield PageSection("corrections", "Corrected labels", _format_corrections(corrected))
    if any(cell.command for cell in result.cells):
        yield PageSection("commands", "Commands", _format_commands(result))
    yield PageSection("provenance", "Provenance", _format_provenance(result))


# -- tables ----------------------------------------------------------------------------------------


def _format_tables(result: StudyResult) -> str:
    """The table, in parts where it is too broad, how to read it, and what is missing."""
    table = build_table(result)
    parts = "".join(_format_heading(part, table) + format_table(part) for part in table.parts())
    reading = f'<p class="soft">{escape(explain_reading(table))}</p>'
    return f"{parts}{reading}{_format_missing(result)}"


def _format_heading(part: Table, table: Table) -> str:
    """What a part of a table is about; a whole table needs no heading."""
    if part is table:
        return ""
    title = part.title.removeprefix(table.title).lstrip(": ")
    return f"<h3>{escape(title)}</h3>"


def _format_missing(result: StudyResult) -> str:
    items = ""
    for why, cells in explain_missing(result).items():
        items += f"<li>{escape(', '.join(cells))}: {escape(why)}</li>"
    return f"<h3>Without runs</h3><ul>{items}</ul>" if items else ""


# -- clients ---------------------------------------------------------------------------------------


def _format_corrections(found: list[CorrectedRun]) -> str:
    """Runs on corrected labels beside those on given ones, and what changed at whom."""
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in explain_corrections(found))
    whole = format_rows(list_corrections(found), "Runs on corrected labels")
    clients = list_client_corrections(found)
    if not clients:
        return whole + notes
    return f"{whole}{notes}<h3>By client</h3>{format_rows(clients, 'Changed labels by client')}"


# -- commands and provenance -----------------------------------------------------------------------


def _format_commands(result: StudyResult) -> str:
    commands = "".join(_format_command(cell) for cell in result.cells if cell.command)
    folded = "" if len(result.cells) > MOST_OPEN else " open"
    return f"<details{folded}><summary>One for each cell</summary>{commands}</details>"


def _format_command(cell: CellResult) -> str:
    about = escape(describe_runs(cell))
    label = f'aria-label="Copy the command of {about}"'
    copy = f'<button type="button" class="copy" {label}>Copy</button>'
    code = f'<pre tabindex="0"><code>{escape(cell.command)}</code></pre>'
    return f'<p class="cell">{about}</p><div class="command">{code}{copy}</div>'


def _format_provenance(result: StudyResult) -> str:
    pairs = ""
    for name, text in collect_facts(result).items():
        pairs += f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
    facts = f'<dl class="facts">{pairs}</dl>'
    rows = list_hashes(result)
    if not rows:
        return facts
    table = format_rows(rows, "Runs")
    return f"{facts}<details><summary>Runs and hashes</summary>{table}</details>"
