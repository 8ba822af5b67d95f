"""A line chart as data: drawn by matplotlib for files, and by the page itself, where it can be
zoomed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.plots.style import blank, columns_for, legend_below, style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 400
MARKS = 8


@dataclass(frozen=True)
class Line:
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


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    log: bool = False
    """Whether the horizontal axis is logarithmic."""

    def summary(self) -> str:
        """What somebody who does not see the chart is told: each line's end."""
        ends = [
            f"{line.name} {line.y[-1]:.4g} at {line.x[-1]:g}" for line in self.lines if len(line.y)
        ]
        return f"{self.ylabel} over {self.xlabel}. Last values: {'; '.join(ends)}."

    def data(self) -> dict[str, Any]:
        """The chart for the page."""
        lines = [
            {
                "name": line.name,
                "style": number if line.style is None else line.style,
                "joined": line.joined,
                **{key: rounded(thinned(getattr(line, key))) for key in ("x", "y", "low", "high")},
            }
            for number, line in enumerate(self.lines)
        ]
        return {
            "title": self.title,
            "x": self.xlabel,
            "y": self.ylabel,
            "log": self.log,
            "lines": lines,
        }


def over_seeds(
    name: str, series: Sequence[tuple[Sequence[int], Sequence[float]]], factor: float = 1.0
) -> Line | None:
    """Mean, least and greatest value over repetitions, at the rounds that all of them have."""
    tables = [dict(zip(rounds, values, strict=True)) for rounds, values in series if len(rounds)]
    if not tables:
        return None
    common = sorted(set.intersection(*(set(table) for table in tables)))
    if not common:
        return None
    values = factor * np.array([[table[t] for t in common] for table in tables])
    mean = values.mean(axis=0).tolist()
    if len(tables) == 1:
        return Line(name, common, mean)
    return Line(name, common, mean, values.min(axis=0).tolist(), values.max(axis=0).tolist())


def thinned(values: Sequence[float]) -> Sequence[float]:
    """Every n-th value and the last one, so that there are not too many."""
    step = math.ceil(len(values) / MOST_POINTS)
    if step <= 1:
        return values
    return [*values[: len(values) - 1 : step], values[-1]]


def rounded(values: Sequence[float]) -> list[float]:
    """Five significant digits: a page does not show more."""
    return [float(f"{value:.5g}") for value in values]


def chart_figure(chart: Chart) -> Figure:
    """The chart as a figure; the legend lies below it."""
    rows = math.ceil(len(chart.lines) / columns_for([line.name for line in chart.lines]))
    figure, axes = blank(6.4, 3.7 + 0.19 * rows)
    for number, line in enumerate(chart.lines):
        draw(axes, line, number if line.style is None else line.style)
    axes.set(xlabel=chart.xlabel, ylabel=chart.ylabel, title=wrapped(chart.title, 75))
    axes.title.set_fontsize(11)
    if chart.log:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.margins(x=0.03)
    # What is printed must say so, even alone.
    legend_below(figure, axes, 2 if all(line.joined for line in chart.lines) else 1)
    return figure


def draw(axes: Any, line: Line, number: int) -> None:
    """One line with its band; a marker now and then tells it from the others without colour."""
    look = style(number)
    if not line.joined:
        # What a paper prints is open, so that it is not taken for a measurement.
        look |= {"linestyle": "", "markerfacecolor": "none", "markeredgewidth": "1.6"}
    every = max(1, len(line.x) // MARKS)
    place = (number * every // MARKS) % every
    axes.plot(line.x, line.y, **{**look, "markeredgewidth": 1.6 if not line.joined else 0}, label=line.name,
              markersize=7 if not line.joined else 5, markevery=(place, every), linewidth=1.6)  # fmt: skip
    if len(line.low):
        axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.18, linewidth=0)
