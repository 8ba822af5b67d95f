"""Figures of the report's page: charts that the page draws itself, drawings as SVG, pictures as
PNG."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from rayfl.plots.style import render_png, render_svg
from rayfl.report.chart import Chart
from rayfl.report.html_tables import format_rows
from rayfl.report.material import Drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SVG = 300_000
"""Letters of an inline SVG; a larger figure goes in as PNG."""
MOST_PIXELS = 1000
"""On a side of a picture that goes in as it is."""
MOST_COLOURS = 256
BROAD = 7.0
"""A figure of more inches than this stands alone in its row."""
LEAST_PIXELS = 55
"""Of an inch: below it an SVG's writing is too small."""
MOST_INCH_PIXELS = 92
"""Above it an SVG's writing is too large."""
HELP = (
    "Drag in a chart to zoom, double-click to come back, click a name to hide its line. "
    "With the keyboard: arrow keys read values, + and - zoom, 0 comes back."
)


def format_figures(drawn: Sequence[Drawing], lacking: Mapping[str, str]) -> str:
    """All figures, and what could not be drawn with the reasons."""
    figures = "".join(_format_figure(number, drawing) for number, drawing in enumerate(drawn, 1))
    zooms = any(drawing.chart for drawing in drawn)
    hint = f'<p class="soft">{HELP}</p>' if zooms else ""
    reasons = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in lacking.items())
    left = f'<p class="soft">Not drawn:</p><ul class="soft">{reasons}</ul>' if reasons else ""
    return f'{hint}<div class="gallery">{figures}</div>{left}'


def _format_figure(number: int, drawing: Drawing) -> str:
    """One figure with its caption, and the numbers behind it where they are a table."""
    rows = format_rows(drawing.rows, drawing.title) if drawing.rows else ""
    kind = ' class="broad"' if _is_broad(drawing) else ""
    title = f"<h3>{escape(drawing.title)}</h3>"
    caption = f"<figcaption>Figure {number}. {escape(drawing.caption)}</figcaption>"
    return f"<figure{kind}>{title}{_format_picture(number, drawing)}{rows}{caption}</figure>"


def _is_broad(drawing: Drawing) -> bool:
    if drawing.rows:
        return True
    return drawing.figure is not None and bool(drawing.figure.get_figwidth() > BROAD)


def _format_picture(number: int, drawing: Drawing) -> str:
    label = escape(drawing.alt)
    if drawing.chart is not None:
        return _format_chart(number, drawing.chart, label)
    if drawing.figure is not None:
        return _format_drawn(drawing.figure, label)
    return _format_image(drawing.image or b"", label)


def _format_chart(number: int, chart: Chart, label: str) -> str:
    """A chart's data; the page's script draws it."""
    # `<` is written as an escape, so that no name can end the script element.
    data = json.dumps(chart.data()).replace("<", "\\u003c")
    return (
        f'<div class="chart" id="chart-{number}" data-label="{label}"><div class="plot"></div>'
        '<div class="tip" role="status" hidden></div>'
        '<div class="legend" role="group" aria-label="Lines"></div>'
        f'<script type="application/json">{data}</script></div>'
    )


def _format_drawn(figure: Figure, label: str) -> str:
    """A figure as inline SVG, or as a picture where that would be too large."""
    drawn = render_svg(figure)
    if len(drawn) > MOST_SVG:
        return _format_image(render_png(figure), label)
    least = int(figure.get_figwidth() * LEAST_PIXELS)
    most = int(figure.get_figwidth() * MOST_INCH_PIXELS)
    named = drawn.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return f'<div class="still" style="--least:{least}px;--most:{most}px">{named}</div>'


def _format_image(content: bytes, label: str) -> str:
    letters = base64.b64encode(_shrink_picture(content)).decode()
    return f'<img alt="{label}" src="data:image/png;base64,{letters}">'


def _shrink_picture(content: bytes) -> bytes:
    """A drawn figure with no more pixels and colours than the page shows."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(content)) as picture:
        shown = picture.convert("RGB")
        shown.thumbnail((MOST_PIXELS, MOST_PIXELS))
        shown.quantize(MOST_COLOURS).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
