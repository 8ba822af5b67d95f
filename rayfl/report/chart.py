"""A line chart as data: drawn by matplotlib for files, and by the page itself, where it can be
zoomed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.plots.style import (
    choose_line_style,
    count_legend_columns,
    make_figure,
    place_legend_below,
    wrap_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 400
MARKS = 8
"""About how many markers a line has."""
TITLE_LETTERS = 75


@dataclass(frozen=True)
class ChartLine:
    """One series. `low` and `high` are a band around it; without `joined` only its markers are
    drawn."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    joined: bool = True
    style: int | None = None
    """Drawn like the line of this number; by default its own."""

    def data(self, number: int) -> dict[str, Any]:
        """The line for the page, as the n-th of its chart."""
        points = {name: getattr(self, name) for name in ("x", "y", "low", "high")}
        return {
            "name": self.name,
            "style": self.choose_style(number),
            "joined": self.joined,
            **{name: _round_values(thin_points(values)) for name, values in points.items()},
        }

    def choose_style(self, number: int) -> int:
        """The number of its look, where it is the n-th line of its chart."""
        return number if self.style is None else self.style


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[ChartLine]
    log: bool = False
    """Whether the horizontal axis is logarithmic."""

    def summary(self) -> str:
        """What somebody who does not see the chart is told: each line's end."""
        lines = [line for line in self.lines if len(line.y)]
        ends = [f"{line.name} {line.y[-1]:.4g} at {line.x[-1]:g}" for line in lines]
        return f"{self.ylabel} over {self.xlabel}. Last values: {'; '.join(ends)}."

    def data(self) -> dict[str, Any]:
        """The chart for the page."""
        return {
            "title": self.title,
            "x": self.xlabel,
            "y": self.ylabel,
            "log": self.log,
            "lines": [line.data(number) for number, line in enumerate(self.lines)],
        }


def average_seeds(
    name: str,
    series: Sequence[tuple[Sequence[int], Sequence[float]]],
    factor: float = 1.0,
) -> ChartLine | None:
    """Mean, least and greatest value over repetitions, at the rounds that all of them have.

    Parameters
    ----------
    series
        Rounds and values of each repetition.
    factor
        What the values are multiplied with.

    Returns
    -------
    ChartLine | None
        None where there is no round that all have."""
    tables = [dict(zip(rounds, values, strict=True)) for rounds, values in series if len(rounds)]
    if not tables:
        return None
    common = sorted(set.intersection(*map(set, tables)))
    if not common:
        return None
    rows = [list(map(table.__getitem__, common)) for table in tables]
    values = factor * np.array(rows)
    mean = values.mean(axis=0).tolist()
    if len(tables) == 1:
        return ChartLine(name, common, mean)
    low = values.min(axis=0).tolist()
    high = values.max(axis=0).tolist()
    return ChartLine(name, common, mean, low, high)


def thin_points(values: Sequence[float]) -> Sequence[float]:
    """Every n-th value and the last one, so that there are not too many."""
    step = math.ceil(len(values) / MOST_POINTS)
    if step <= 1:
        return values
    last = len(values) - 1
    return [*values[:last:step], values[last]]


def _round_values(values: Sequence[float]) -> list[float]:
    """Five significant digits: a page does not show more."""
    return [float(f"{value:.5g}") for value in values]


# -- drawing ---------------------------------------------------------------------------------------


def draw_chart(chart: Chart) -> Figure:
    """The chart as a figure; the legend lies below it."""
    names = [line.name for line in chart.lines]
    rows = math.ceil(len(names) / count_legend_columns(names))
    figure, axes = make_figure(6.4, 3.7 + 0.19 * rows)
    for number, line in enumerate(chart.lines):
        _draw_line(axes, line, line.choose_style(number))
    title = wrap_title(chart.title, TITLE_LETTERS)
    axes.set(xlabel=chart.xlabel, ylabel=chart.ylabel, title=title)
    axes.title.set_fontsize(11)
    if chart.log:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.margins(x=0.03)
    # What is printed must say so, even alone.
    all_ours = all(line.joined for line in chart.lines)
    place_legend_below(figure, axes, least=2 if all_ours else 1)
    return figure


def _draw_line(axes: Axes, line: ChartLine, style: int) -> None:
    """One line with its band; a marker now and then tells it from the others without colour."""
    look: dict[str, Any] = choose_line_style(style)
    every = max(1, len(line.x) // MARKS)
    # Lines begin their markers at different places, so that those of near lines do not meet.
    first = (style * every // MARKS) % every
    if line.joined:
        look |= {"markeredgewidth": 0, "markersize": 5}
    else:
        # What a paper prints is open, so that it is not taken for a measurement.
        look |= {"linestyle": "", "markerfacecolor": "none"}
        look |= {"markeredgewidth": 1.6, "markersize": 7}
    axes.plot(
        line.x,
        line.y,
        **look,
        label=line.name,
        markevery=(first, every),
        linewidth=1.6,
    )
    if len(line.low):
        colour = look["color"]
        axes.fill_between(
            line.x,
            line.low,
            line.high,
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
