"""A score against a number that a study varies, beside what the paper prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rayfl.report.chart import Chart, ChartLine
from rayfl.report.material import Drawing, NoData, join_titles, make_slug
from rayfl.report.slots import SCORE, TableSlot, list_slots, place_slot, read_choice
from rayfl.study.result import StudyResult, Value
from rayfl.study.schema import Choice, ChoiceKey

OURS = "ours"
"""The name of a line where there are no methods to name it after."""
CAPTION = (
    "Filled markers and lines are ours (bands: least and greatest seed), open markers are printed."
)
DECADES = 20
"""A range of more than this factor is shown on a logarithmic axis."""
NUMBER = re.compile(r"(?<![\w.-])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.-])")

Setting = tuple[str, float]
"""A number that a choice sets, and what it is called."""
Point = tuple[float, Value]
"""A setting's value, and the score at it."""
Lines = Mapping[str, Sequence[Point]]


def draw_sensitivity(result: StudyResult) -> list[Drawing]:
    """Scores against an axis of numbers."""
    axis = _find_numeric_axis(result)
    if axis is None:
        raise NoData("no axis of the study is a number that takes several values")
    drawn = []
    for name in _collect_numbers(result, axis):
        for chart in _chart_settings(result, axis, name):
            title = join_titles(f"{chart.ylabel} against {chart.xlabel}", chart.title)
            slug = f"sensitivity_{make_slug(title)}"
            drawn.append(Drawing(slug, title, CAPTION, chart.summary(), chart=chart))
    if not drawn:
        raise NoData("no run is finished, and nothing is printed")
    return drawn


def _chart_settings(result: StudyResult, axis: str, name: str) -> Iterator[Chart]:
    """One chart for each choice on the other axes but the methods', which are the lines."""
    by_method = "method" in result.study.axes and axis != "method"
    varied = {axis, "method"} if by_method else {axis}
    fixed = tuple(other for other in (*result.study.axes, SCORE) if other not in varied)
    groups: dict[ChoiceKey, dict[str, list[Point]]] = {}
    for slot in list_slots(result.cells):
        setting = _find_slot_setting(result, slot, axis)
        if slot.cell.kind != "run" or setting is None or setting[0] != name:
            continue
        lines = groups.setdefault(place_slot(slot, fixed), {})
        line = slot.cell.titles["method"] if by_method else OURS
        lines.setdefault(line, []).append((setting[1], slot.value))
    for key, lines in groups.items():
        title = _name_choices(result, fixed, key)
        chart = _make_chart(title, name.replace("_", " "), lines)
        if chart.lines:
            yield chart


def _find_slot_setting(result: StudyResult, slot: TableSlot, axis: str) -> Setting | None:
    chosen = result.study.axes[axis][read_choice(slot, axis)]
    return find_setting(axis, chosen)


def _name_choices(result: StudyResult, axes: ChoiceKey, key: ChoiceKey) -> str:
    """What a reader calls the choices on axes that have several."""
    titles = [
        result.title(axis, name)
        for axis, name in zip(axes, key, strict=True)
        if axis != SCORE and len(result.used(axis)) > 1
    ]
    return ", ".join(titles)


# -- charts ----------------------------------------------------------------------------------------


def _make_chart(title: str, setting: str, lines: Lines) -> Chart:
    """A score against a number that was varied; what a paper prints is drawn with open markers."""
    drawn: list[ChartLine] = []
    for style, (name, points) in enumerate(lines.items()):
        drawn += _make_measured(name, points, style)
        drawn += _make_printed(name, points, style)
    every = [x for line in drawn for x in line.x]
    score = next(iter(lines.values()))[0][1].title
    return Chart(title, setting, score, drawn, log=spans_decades(every))


def _make_measured(
    name: str,
    points: Sequence[Point],
    style: int,
) -> list[ChartLine]:
    """The line of our means, with a band from the least to the greatest seed."""
    known = [
        (x, value.mean, min(value.values), max(value.values))
        for x, value in points
        if math.isfinite(value.mean)
    ]
    if not known:
        return []
    x, mean, low, high = zip(*sorted(known), strict=True)
    # One seed has no band.
    band = (low, high) if low != high else ((), ())
    return [ChartLine(name, x, mean, *band, style=style)]


def _make_printed(
    name: str,
    points: Sequence[Point],
    style: int,
) -> list[ChartLine]:
    """The markers of what the paper prints."""
    known = [(x, value.printed_value) for x, value in points if math.isfinite(value.printed_value)]
    if not known:
        return []
    x, mean = zip(*sorted(known), strict=True)
    title = "printed" if name == OURS else f"{name}, printed"
    return [ChartLine(title, x, mean, joined=False, style=style)]


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows these better."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > DECADES


# -- numbers of choices ----------------------------------------------------------------------------


def _find_numeric_axis(result: StudyResult) -> str | None:
    """The axis with the most numbers; of equal ones not the methods'."""
    counts = {}
    for axis in result.study.axes:
        numbers = _collect_numbers(result, axis)
        counts[axis] = sum(map(len, numbers.values()))
    best = max(counts, key=lambda axis: (counts[axis], axis != "method"))
    return best if counts[best] else None


def _collect_numbers(result: StudyResult, axis: str) -> dict[str, set[float]]:
    """What the choices of an axis set to a number, by name, where that takes several values."""
    found: dict[str, set[float]] = {}
    for name in result.used(axis):
        setting = find_setting(axis, result.study.axes[axis][name])
        if setting is not None:
            found.setdefault(setting[0], set()).add(setting[1])
    return {name: values for name, values in found.items() if len(values) > 1}


def find_setting(axis: str, chosen: Choice) -> Setting | None:
    """The one number that a choice sets, or that its title names."""
    numbers = list(_iterate_numbers(chosen.set))
    if len(numbers) == 1:
        return numbers[0]
    number = find_number(chosen.title)
    return None if number is None else (axis, number)


def _iterate_numbers(tree: Mapping[str, Any]) -> Iterator[Setting]:
    """All numbers of nested settings, by the last part of their keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _iterate_numbers(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield key.rpartition(".")[2], float(value)


def find_number(text: str) -> float | None:
    """The one number in a title such as `K = 4` or `0.3`; the 10 of `CIFAR-10` is none."""
    found = NUMBER.findall(text)
    return float(found[0]) if len(found) == 1 else None
