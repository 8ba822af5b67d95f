"""How all figures look: colours that every kind of eye tells apart, a line style and a marker
besides, PNG and SVG."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
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


def style(number: int) -> dict[str, str]:
    """Colour, dash and marker of the n-th line of a chart."""
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": dash,
        "marker": MARKERS[number % len(MARKERS)],
    }


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def wrapped(title: str, letters: int = 30) -> str:
    """A title in lines of at most so many letters."""
    return "\n".join(textwrap.wrap(title, letters, break_long_words=False)) or title


def columns_for(labels: Sequence[str]) -> int:
    """How many columns of a legend fit below a chart."""
    longest = max(map(len, labels), default=0)
    return max(1, min(4, len(labels), MOST_LEGEND_LETTERS // (longest + 8)))


def legend_below(figure: Figure, axes: Axes, least: int = 2) -> None:
    """The legend of some axes outside of them, where it covers no data; none for fewer lines than
    `least`."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < least:
        return
    columns = columns_for(labels)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )


def png(figure: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """The figure as an inline SVG element: transparent, black replaced by the colour of the text
    around it."""
    import matplotlib

    buffer = io.StringIO()
    # A fixed salt makes equal figures equal texts; text stays text, so that it can be searched and
    # scales.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rayfl"}):
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = buffer.getvalue()
    element = text[text.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r' (?:width|height)="[\d.]+pt"', "", element, count=2)
    return re.sub(r"#000000\b", "currentColor", element)
