"""How all figures look: colours that every kind of eye tells apart, a line style and a marker
besides, PNG and SVG."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREY = "#666666"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
"""Okabe and Ito's, without the yellow that paper swallows; `page/style.css` has the same, and
lighter ones."""
DASHES = ("-", "--", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#111111"
"""Writing on a coloured ground. Not pure black, which becomes the page's own text colour."""
DPI = 140
MOST_LEGEND_LETTERS = 75
MOST_LEGEND_COLUMNS = 4
ACROSS = 3
"""Most panels side by side."""
LEAST_WIDTH = 4.6
"""Inches that a title needs."""


def choose_line_style(number: int) -> dict[str, str]:
    """Colour, dash and marker of the n-th line of a chart."""
    place = number % len(COLOURS)
    dash = number // len(COLOURS) % len(DASHES)
    return {
        "color": COLOURS[place],
        "linestyle": DASHES[dash],
        "marker": MARKERS[place],
    }


# -- figures and their parts -----------------------------------------------------------------------


def make_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def make_panel_figure(count: int, width: float, height: float) -> Figure:
    """Several axes in rows of three.

    Parameters
    ----------
    count
        How many axes `figure.axes` has.
    width, height
        The size of one of them, in inches."""
    from matplotlib.figure import Figure

    columns = min(count, ACROSS)
    rows = math.ceil(count / columns)
    size = (max(width * columns, LEAST_WIDTH), height * rows)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[count:]:
        axes.remove()
    return figure


def wrap_title(title: str, letters: int = 30) -> str:
    """A title in lines of at most so many letters."""
    lines = textwrap.wrap(title, letters, break_long_words=False)
    return "\n".join(lines) or title


def escape_math(text: str) -> str:
    """Text that matplotlib shows as it is written.

    Between two dollar signs it looks for a formula, and fails on what is none."""
    return text.replace("$", r"\$")


def count_legend_columns(labels: Sequence[str]) -> int:
    """How many columns of a legend fit below a chart."""
    # A line's sample takes the room of some eight letters beside each label.
    longest = max(map(len, labels), default=0) + 8
    fitting = min(len(labels), MOST_LEGEND_LETTERS // longest)
    return max(1, min(MOST_LEGEND_COLUMNS, fitting))


def place_legend_below(figure: Figure, axes: Axes, least: int = 2) -> None:
    """Put the legend of some axes outside of them, where it covers no data.

    Parameters
    ----------
    least
        There is no legend for fewer lines than this."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < least:
        return
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=count_legend_columns(labels),
        frameon=False,
        fontsize=9,
    )


# -- files -----------------------------------------------------------------------------------------


def render_png(figure: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def render_svg(figure: Figure) -> str:
    """The figure as an inline SVG element: transparent, black replaced by the colour of the text
    around it."""
    import matplotlib

    buffer = io.StringIO()
    # Without a date the same figure is the same text.
    metadata = {"Date": None, "Creator": None}
    # A fixed salt makes equal figures equal texts; text stays text, so that it can be searched and
    # scales.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rayfl"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    element = text[text.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    # The page gives the size; the view box keeps the proportions.
    element = re.sub(r' (?:width|height)="[\d.]+pt"', "", element, count=2)
    return re.sub(r"#000000\b", "currentColor", element)
