"""All points of a sweep in parallel coordinates: an axis for every setting, the score at the
right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.tuning.points import format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rayfl.tuning.result import Standing, SweepResult

COLOURS = "cividis"  # the same to every kind of eye, dark to light
LOG_FROM = 30.0
MARKED = 8
LETTERS = 22
APART = 0.012


@dataclass(frozen=True)
class AxisScale:
    """One axis: where a value lies between 0 and 1, and what is written beside it."""

    title: str
    place: Callable[[Any], float]
    marks: Sequence[tuple[float, str]]
    named: bool = False


def draw_coordinates(result: SweepResult) -> Figure:
    """The figure; the best point is the thick line, points that were not run to their end are
    dashed."""
    from matplotlib.figure import Figure

    sweep = result.sweep
    drawn = [point for point in result.points if point.score is not None]
    scales = _scales_of(result, drawn)
    width = 2.2 * len(scales) + 1.2
    figure = Figure(figsize=(max(width, 5), 4.6), layout="constrained")
    axes = figure.add_subplot()
    # The best comes last, and lies over the others.
    for place in reversed(range(len(drawn))):
        _draw_line(axes, scales, drawn[place], place, len(drawn))
    last = len(scales) - 1
    for x, scale in enumerate(scales):
        _draw_axis(axes, x, scale, last=x == last)
    titles = [scale.title.replace(".", ".\n", 1) for scale in scales]
    axes.set(xlim=(-0.55, last + 0.45), ylim=(-0.06, 1.06), yticks=[])
    axes.set_xticks(range(len(scales)), titles)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.spines[:].set_visible(False)
    seeds = f", mean of {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    title = f"{sweep.name}: {len(drawn)} points{seeds}; the best is the thick line"
    axes.set_title(title, fontsize=10, pad=14)
    return figure


def _scales_of(result: SweepResult, drawn: Sequence[Standing]) -> list[AxisScale]:
    """An axis for every setting, and the score's."""
    sweep = result.sweep
    scales = []
    for path in sweep.search:
        values = [point.values[path] for point in result.points]
        scales.append(scale_of(path, values, sweep))
    scores = [point.score for point in drawn if point.score is not None]
    flipped = sweep.mode == "min"
    scales.append(_scale_numbers(sweep.metric, scores or [0.0], log=False, flipped=flipped))
    return scales


def _draw_line(
    axes: Axes, scales: Sequence[AxisScale], point: Standing, place: int, count: int
) -> None:
    """One point, from axis to axis."""
    from matplotlib import colormaps

    best = place == 0
    height = scales[-1].place(point.score)
    # Lines that share a choice run beside each other, not on top of each other.
    middle = (count - 1) / 2
    apart = APART * min(1.0, 8 / max(count, 1))
    aside = apart * (place - middle)
    heights = []
    for scale in scales[:-1]:
        own = scale.place(point.values[scale.title])
        heights.append(own + aside if scale.named or count < MARKED else own)
    axes.plot(
        range(len(scales)),
        [*heights, height],
        color="black" if best else colormaps[COLOURS](0.1 + 0.8 * height),
        linewidth=2.8 if best else 1.2,
        linestyle="-" if point.complete else (0, (4, 2)),
        alpha=1.0 if best or count < 40 else 0.5,
        zorder=3 if best else 2,
    )


def _draw_axis(axes: Axes, x: int, scale: AxisScale, *, last: bool) -> None:
    """An axis with its marks, readable over the lines; those of the last one stand at its free
    side."""
    axes.axvline(x, 0.06 / 1.12, 1.06 / 1.12, color="#666666", linewidth=1, zorder=1)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for height, text in scale.marks:
        axes.plot([x - 0.02, x + 0.02], [height, height], color="#666666", linewidth=1, zorder=1)
        aside, side = (0.05, "left") if last else (-0.05, "right")
        axes.text(x + aside, height, text, ha=side, va="center", fontsize=8, bbox=box, zorder=4)


def scale_of(path: str, values: Sequence[Any], sweep: Any) -> AxisScale:
    """The axis of one setting."""
    domain = sweep.search[path]
    known = domain.values or list(values)
    if not all(_is_number(value) for value in known):
        return _scale_choices(path, known)
    numbers = [float(value) for value in known]
    if domain.values is None:
        log = domain.loguniform is not None
    else:
        log = min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_FROM
    return _scale_numbers(path, numbers, log=log)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scale_choices(title: str, choices: Sequence[Any]) -> AxisScale:
    """Choices from the top down, in the order of the sweep file."""
    places = np.linspace(0.95, 0.05, len(choices)) if len(choices) > 1 else np.array([0.5])
    marks = [(float(y), _shorten_choice(choice)) for y, choice in zip(places, choices, strict=True)]
    return AxisScale(
        title, lambda value: float(places[list(choices).index(value)]), marks, named=True
    )


def _scale_numbers(
    title: str, numbers: Sequence[float], *, log: bool, flipped: bool = False
) -> AxisScale:
    """Numbers from the least to the greatest; where less is better, the other way round."""
    distinct = sorted({*numbers}) or [0.0]
    low, high = distinct[0], distinct[-1]

    def place(value: float) -> float:
        if high == low:
            return 0.5
        if log:
            share = np.log(value / low) / np.log(high / low)
        else:
            share = (value - low) / (high - low)
        return float(1 - share if flipped else share)

    spread = np.geomspace(low, high, 5) if log else np.linspace(low, high, 5)
    # Few values are marked themselves, unless two of them would be written over each other.
    apart = np.diff(sorted(place(value) for value in distinct))
    own = len(distinct) <= MARKED and (len(apart) == 0 or float(apart.min()) > 0.05)
    marked = distinct if own else spread
    marks = [(place(value), f"{value:.3g}") for value in marked]
    return AxisScale(title, place, marks)


def _shorten_choice(choice: Any) -> str:
    """A choice in a few letters; of a component, its name and what is set in it."""
    if isinstance(choice, Mapping) and "name" in choice:
        settings = [
            f"{key}={format_value(value)}" for key, value in choice.items() if key != "name"
        ]
        text = " ".join([str(choice["name"]).rpartition(":")[2], *settings])
    else:
        text = format_value(choice)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"
