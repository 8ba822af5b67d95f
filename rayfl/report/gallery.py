"""The figures of a report by name, drawn from a study's result; what cannot be drawn says why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rayfl.report.chart import Chart
from rayfl.report.clients import confusion, dendrogram, distributions, reliability, similarity
from rayfl.report.costs import costs
from rayfl.report.curves import OURS, curves, number_in, precision_recall, sensitivity_chart, slug
from rayfl.report.material import Drawing, Group, NoData, Panel, joined
from rayfl.report.space import retrieved, tsne
from rayfl.report.tables import SCORE, choice, compared_axis, place, slots_of
from rayfl.study.result import StudyResult, Value
from rayfl.study.schema import FIGURES, Choice

OF_RUNS: Mapping[str, Callable[[Sequence[Panel]], list[Drawing]]] = {
    "precision_recall": precision_recall,
    "reliability": reliability,
    "confusion": confusion,
    "similarity": similarity,
    "dendrogram": dendrogram,
    "tsne": tsne,
    "distributions": distributions,
    "retrieved": retrieved,
    "costs": costs,
}
MOST_LOOKS = 14
SLOW = ("tsne", "retrieved")
"""Those that load datasets and networks: drawn only where they are asked for."""


def gallery(result: StudyResult, names: Sequence[str]) -> tuple[list[Drawing], dict[str, str]]:
    """The figures of these names in their order, and for each that cannot be drawn the reason."""
    drawn: list[Drawing] = []
    lacking: dict[str, str] = {}
    panels = panels_of(result)
    for name in names:
        try:
            drawn += drawings(name, result, panels)
        except NoData as reason:
            lacking[name] = str(reason)
    return drawn, lacking


def drawings(name: str, result: StudyResult, panels: Sequence[Panel]) -> list[Drawing]:
    """The figures of one name."""
    if name not in FIGURES:
        raise NoData(f"there is no figure of this name; there are {', '.join(FIGURES)}")
    if name == "sensitivity":
        return sensitivity(result)
    if not panels:
        raise NoData("no run is finished")
    if name == "curves":
        return curves(panels, metrics_of(result))
    return OF_RUNS[name](panels)


def panels_of(result: StudyResult) -> list[Panel]:
    """Runs that are rivals of each other, by what they have in common."""
    compared = compared_axis(result)
    fixed = [axis for axis in result.study.axes if axis != compared and len(result.used(axis)) > 1]
    ran = [cell for cell in result.cells if cell.kind == "run" and cell.records]
    order = list(dict.fromkeys(cell.choices[compared] for cell in ran))
    found: dict[str, list[Group]] = {}
    for cell in ran:
        groups = found.setdefault(", ".join(cell.titles[axis] for axis in fixed), [])
        # Where there are too many methods for a look each, looks are dealt out anew in every panel.
        style = order.index(cell.choices[compared]) if len(order) <= MOST_LOOKS else len(groups)
        groups.append(
            Group(
                cell.titles[compared], [cell.records[seed] for seed in sorted(cell.records)], style
            )
        )
    return [Panel(title, groups) for title, groups in found.items()]


def metrics_of(result: StudyResult) -> list[str]:
    """Test accuracy, and what other scores come from but for costs, which hardly change over
    rounds."""
    choices = [choice for choices in result.study.axes.values() for choice in choices.values()]
    scores = [
        *result.study.scores.values(),
        *(score for choice in choices for score in choice.scores.values()),
    ]
    named = [score.metric for score in scores if score.metric is not None and score.array is None]
    return list(
        dict.fromkeys(
            ["test/accuracy", *(name for name in named if not name.startswith(("cost/", "time/")))]
        )
    )


# -- sensitivity -----------------------------------------------------------------------------------------------------

Setting = tuple[str, float]
"""A number that a choice sets, and what it is called."""


def sensitivity(result: StudyResult) -> list[Drawing]:
    """Scores against an axis of numbers."""
    axis = numeric_axis(result)
    if axis is None:
        raise NoData("no axis of the study is a number that takes several values")
    caption = "Filled markers and lines are ours (bands: least and greatest seed), open markers are printed."
    drawn = []
    for chart in (
        chart
        for name in numbers_of(result, axis)
        for chart in sensitivity_charts(result, axis, name)
    ):
        title = joined(f"{chart.ylabel} against {chart.xlabel}", chart.title)
        drawn.append(
            Drawing(f"sensitivity_{slug(title)}", title, caption, chart.summary(), chart=chart)
        )
    if not drawn:
        raise NoData("no run is finished, and nothing is printed")
    return drawn


def sensitivity_charts(result: StudyResult, axis: str, name: str) -> Iterator[Chart]:
    """One chart for each choice on the other axes but the methods', which are the lines."""
    lines_axis = "method" if "method" in result.study.axes and axis != "method" else None
    fixed = tuple(other for other in (*result.study.axes, SCORE) if other not in (axis, lines_axis))
    groups: dict[tuple[str, ...], dict[str, list[tuple[float, Value]]]] = {}
    for slot in slots_of(result.cells):
        setting = setting_of(axis, result.study.axes[axis][choice(slot, axis)])
        if slot.cell.kind == "run" and setting is not None and setting[0] == name:
            line = slot.cell.titles[lines_axis] if lines_axis else OURS
            groups.setdefault(place(slot, fixed), {}).setdefault(line, []).append(
                (setting[1], slot.value)
            )
    for key, lines in groups.items():
        several = [
            pair
            for pair in zip(fixed, key, strict=True)
            if pair[0] != SCORE and len(result.used(pair[0])) > 1
        ]
        title = ", ".join(result.title(*pair) for pair in several)
        ours = {
            line: [point for x, value in found if (point := measured(x, value))]
            for line, found in lines.items()
        }
        printed = {
            line: [pair for x, value in found if (pair := stated(x, value))]
            for line, found in lines.items()
        }
        if any(ours.values()) or any(printed.values()):
            ylabel = next(iter(lines.values()))[0][1].title
            yield sensitivity_chart(title, name.replace("_", " "), ylabel, ours, printed)


def measured(x: float, value: Value) -> tuple[float, float, float, float] | None:
    return (
        (x, value.mean, min(value.values), max(value.values)) if math.isfinite(value.mean) else None
    )


def stated(x: float, value: Value) -> tuple[float, float] | None:
    return (x, value.printed_value) if math.isfinite(value.printed_value) else None


def numeric_axis(result: StudyResult) -> str | None:
    """The axis with the most numbers; of equal ones not the methods'."""
    counts = {axis: sum(map(len, numbers_of(result, axis).values())) for axis in result.study.axes}
    best = max(counts, key=lambda axis: (counts[axis], axis != "method"))
    return best if counts[best] else None


def numbers_of(result: StudyResult, axis: str) -> dict[str, set[float]]:
    """What the choices of an axis set to a number, by name, where that takes several values."""
    found: dict[str, set[float]] = {}
    for name in result.used(axis):
        setting = setting_of(axis, result.study.axes[axis][name])
        if setting is not None:
            found.setdefault(setting[0], set()).add(setting[1])
    return {name: values for name, values in found.items() if len(values) > 1}


def setting_of(axis: str, chosen: Choice) -> Setting | None:
    """The one number that a choice sets, or that its title names."""
    numbers = list(numbers_in(chosen.set))
    if len(numbers) == 1:
        return numbers[0]
    number = number_in(chosen.title)
    return None if number is None else (axis, number)


def numbers_in(tree: Mapping[str, Any]) -> Iterator[Setting]:
    """All numbers of nested settings, by the last part of their keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield key.rpartition(".")[2], float(value)
