"""An audit as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from rayfl.audit.findings import OPINIONS, Findings
from rayfl.audit.html import (
    PageCell,
    format_filters,
    format_headlines,
    format_table,
    tell_count,
    tell_interval,
    tell_number,
    tell_share,
    tell_text,
    tell_verdict,
)
from rayfl.audit.subject import Subject
from rayfl.audit.wording import (
    ESTIMATORS,
    describe_sending,
    format_bytes,
    list_headlines,
    name_worst,
)
from rayfl.plots.style import render_svg
from rayfl.report.page import POLICY, PageSection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SUSPECTS = 500
"""Rows of the page's table; the files have all."""
MOST_TWINS = 100
SUSPECTS = "suspects-table"
THUMB = 56
LEAST_WIDTH = 440
"""Pixels that a figure is not made narrower than, so that its words can be read."""


@dataclass(frozen=True)
class PageContent:
    """What a page is written from.

    Attributes
    ----------
    samples
        Whether single samples are shown.
    images
        Whether their images are.
    sheet
        The contact sheet, where the page shows it.
    facts
        What the audit was made from, by name."""

    findings: Findings
    subject: Subject
    figures: Mapping[str, Figure]
    facts: Mapping[str, str]
    samples: bool = True
    images: bool = False
    sheet: bytes | None = None


def write_page(content: PageContent) -> str:
    """The whole document."""
    house = files("rayfl.report") / "page"
    own = files("rayfl.audit") / "page"
    css = (house / "style.css").read_text("utf-8") + (own / "style.css").read_text("utf-8")
    script = (house / "page.js").read_text("utf-8") + (own / "audit.js").read_text("utf-8")
    links = ""
    bodies = ""
    for slug, title, body in list_sections(content):
        links += f'<li><a href="#{slug}">{title}</a></li>'
        bodies += f'<section id="{slug}"><h2>{title}</h2>{body}</section>'
    title = f"Audit of {escape(content.subject.dataset.name)}"
    toggle = '<button type="button" id="theme">Dark</button>'
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{css}</style></head><body>"
        f"<header><div><h1>{title}</h1>{_format_subtitle(content)}</div>{toggle}</header><main>"
        f"{format_headlines(list_headlines(content.findings))}{_format_notes(content.findings)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>{bodies}</main>'
        f'<footer class="soft">Written by rayfl.</footer><script>{script}</script></body></html>\n'
    )


def _format_subtitle(content: PageContent) -> str:
    findings = content.findings
    text = (
        f"{len(findings.samples):,} samples of {len(findings.clients)} clients, "
        f"{len(findings.classes)} classes. No image and no feature was joined."
    )
    return f'<p class="soft">{text}</p>'


def _format_notes(findings: Findings) -> str:
    return "".join(f'<p class="warn">{escape(note)}</p>' for note in findings.notes)


def list_sections(content: PageContent) -> Iterator[PageSection]:
    """The sections in order."""
    yield PageSection("clients", "Clients", _format_clients(content))
    if content.samples:
        yield PageSection("labels", "Suspicious labels", _format_suspects(content))
    yield PageSection("classes", "Classes", _format_classes(content))
    if content.samples:
        yield PageSection("duplicates", "Near duplicates", _format_twins(content))
    yield PageSection("estimators", "Estimators beside each other", _format_estimators(content))
    yield PageSection("privacy", "What a federation would have sent", _format_sending(content))
    yield PageSection("provenance", "Provenance", _format_facts(content))


# -- clients ---------------------------------------------------------------------------------------


def _format_clients(content: PageContent) -> str:
    findings = content.findings
    rows = []
    for client in sorted(findings.clients, key=lambda client: -client.share.value):
        mine = findings.samples.clients == client.client
        rows.append(
            {
                "client": tell_text(client.name),
                "wrong labels": tell_interval(client.share, client.accused),
                "verdict": tell_verdict(client.verdict),
                "trust": tell_number(client.trust.value),
                "samples": tell_count(client.samples),
                "flagged": tell_count(int(findings.samples.flagged[mine].sum())),
                "worst labels": tell_text(name_worst(client), "long"),
            }
        )
    reading = (
        "Shares of wrong labels have 90 % intervals. Trust is 1 where all labels are right and 0 "
        "where they are no better than drawn at random."
    )
    table = format_table(rows, "Clients")
    notes = _format_client_notes(findings)
    return f'{table}<p class="soft">{reading}</p>{notes}{_format_figure(content, "shares")}'


def _format_client_notes(findings: Findings) -> str:
    """What makes the figures of single clients unsure, by client."""
    items = ""
    for client in findings.clients:
        if client.notes:
            told = escape(" ".join(client.notes))
            items += f"<dt>{escape(client.name)}</dt><dd>{told}</dd>"
    return f'<h3>What is unsure</h3><dl class="facts">{items}</dl>' if items else ""


def _format_figure(content: PageContent, name: str) -> str:
    if name not in content.figures:
        return ""
    figure = content.figures[name]
    drawn = render_svg(figure).replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
    width = int(figure.get_figwidth() * 92)
    sizes = f"--most:{width}px;--least:{LEAST_WIDTH}px"
    return f'<figure><div class="still" style="{sizes}">{drawn}</div></figure>'


# -- samples ---------------------------------------------------------------------------------------


def _format_suspects(content: PageContent) -> str:
    findings, samples = content.findings, content.findings.samples
    places = samples.worst(MOST_SUSPECTS)
    if not len(places):
        return "<p>No label is flagged.</p>"
    names = content.subject.name_files(samples.rows[places])
    rows = []
    data = []
    for place, name in zip(places.tolist(), names, strict=True):
        site = content.subject.client_names[int(samples.clients[place])]
        given = findings.classes[int(samples.given[place])]
        suggested = findings.classes[int(samples.suggested[place])]
        picture = {"image": _show_image(content, place)} if content.images else {}
        rows.append(
            {
                "sample": tell_text(name),
                **picture,
                "site": tell_text(site),
                "given": tell_text(given),
                "suggested": tell_text(suggested),
                "score": tell_number(float(samples.score[place]), 3),
                "disputed": tell_text("yes" if samples.disputed[place] else ""),
                **_show_opinions(content, place),
            }
        )
        data.append({"site": site, "given": given, "suggested": suggested})
    choices = {key: sorted({of[key] for of in data}) for key in ("site", "given", "suggested")}
    filters = format_filters(SUSPECTS, choices)
    table = format_table(rows, "Suspicious labels", SUSPECTS, data)
    return f"{_tell_flagged(findings, len(places))}{filters}{table}{_format_sheet(content)}"


def _tell_flagged(findings: Findings, shown: int) -> str:
    flagged = int(findings.samples.flagged.sum())
    told = f"{flagged:,} labels are flagged ({flagged / len(findings.samples):.1%})"
    rest = f"; the {shown} worst are here, all in suspects.csv" if flagged > shown else ""
    text = (
        f"{told}{rest}. The score is the chance that the given label is right: low is "
        "suspicious. Disputed: most single estimators, on the right, say otherwise."
    )
    return f'<p class="soft">{text}</p>'


def _show_opinions(content: PageContent, place: int) -> dict[str, PageCell]:
    values = content.findings.samples.opinions[place].tolist()
    return {name: tell_number(value) for name, value in zip(OPINIONS[1:], values[1:], strict=True)}


def _show_image(content: PageContent, place: int) -> PageCell:
    from rayfl.audit.contact_sheet import open_image

    row = int(content.findings.samples.rows[place])
    buffer = io.BytesIO()
    open_image(content.subject.dataset.train.x[row], THUMB).save(buffer, format="PNG")
    letters = base64.b64encode(buffer.getvalue()).decode()
    image = f'<img alt="" loading="lazy" src="data:image/png;base64,{letters}">'
    return PageCell(image, "", "text")


def _format_sheet(content: PageContent) -> str:
    if content.sheet is None:
        return ""
    letters = base64.b64encode(content.sheet).decode()
    image = f'<img class="sheet" alt="The worst labels" src="data:image/png;base64,{letters}">'
    return f"<h3>The worst, as given and as suggested</h3>{image}"


# -- classes, duplicates, estimators ---------------------------------------------------------------


def _format_classes(content: PageContent) -> str:
    findings = content.findings
    rates = [
        {
            "class": tell_text(pair.one),
            "written as": tell_text(pair.other),
            "of all labels": tell_share(pair.value),
        }
        for pair in findings.rates
    ]
    hesitations = [
        {
            "class": tell_text(pair.one),
            "and": tell_text(pair.other),
            "overlap": tell_number(pair.value, 3),
        }
        for pair in findings.ambiguous
    ]
    return (
        f"<h3>What is written as what</h3>{format_table(rates, 'Rates of pairs')}"
        f"{_format_figure(content, 'transitions')}"
        "<h3>Classes between which the heads hesitate</h3>"
        f"{format_table(hesitations, 'Ambiguous classes')}"
    )


def _format_twins(content: PageContent) -> str:
    twins, names = content.findings.twins, content.subject.client_names
    rows = []
    for twin in twins[:MOST_TWINS]:
        (one, other) = content.subject.name_files([twin.row, twin.other_row])
        rows.append(
            {
                "sample": tell_text(one),
                "site": tell_text(names[twin.client]),
                "looks like": tell_text(other),
                "at": tell_text(names[twin.other_client]),
                "bits apart": tell_count(twin.bits),
                "labels": tell_text("equal" if twin.same_label else "differ"),
            }
        )
    more = f"<p>{len(twins):,} pairs, of which {MOST_TWINS} are here.</p>"
    return f"{more if len(twins) > MOST_TWINS else ''}{format_table(rows, 'Near duplicates')}"


def _format_estimators(content: PageContent) -> str:
    findings = content.findings
    clients = [
        {
            "client": tell_text(client.name),
            "joined": tell_number(client.share.value),
            **{name: tell_number(value) for name, value in client.evidence.items()},
        }
        for client in findings.clients
    ]
    agreements = [
        {
            "estimator": tell_text(name),
            "rank correlation": tell_number(value),
            "what it is": tell_text(ESTIMATORS[name], "notes"),
        }
        for name, value in findings.agreements.items()
    ]
    return (
        f"{format_table(clients, 'Estimators by client')}"
        "<h3>Agreement with the joined share, over clients</h3>"
        f"{format_table(agreements, 'Agreement of estimators')}"
    )


def _format_sending(content: PageContent) -> str:
    rows = [
        {
            "stage": tell_text(sent.stage),
            "what": tell_text(sent.what, "notes"),
            "up, all clients": PageCell(format_bytes(sent.up), str(sent.up)),
            "down, all clients": PageCell(format_bytes(sent.down), str(sent.down)),
        }
        for sent in content.findings.sent
    ]
    text = escape(describe_sending(content.findings, content.samples))
    return f"<p>{text}</p>{format_table(rows, 'What would have been sent')}"


def _format_facts(content: PageContent) -> str:
    pairs = ""
    for name, text in content.facts.items():
        pairs += f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
    return f'<dl class="facts">{pairs}</dl>'
