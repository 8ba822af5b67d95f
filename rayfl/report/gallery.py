"""The figures of a report by name, drawn from a study's result; what cannot be drawn says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rayfl.report.clients import (
    draw_confusion_matrices,
    draw_distributions,
    draw_merge_order,
    draw_reliability,
    draw_similarity,
)
from rayfl.report.costs import draw_costs
from rayfl.report.curves import draw_curves, draw_precision_recall
from rayfl.report.feature_space import draw_retrieved, draw_tsne
from rayfl.report.material import Drawing, Group, NoData, Panel
from rayfl.report.sensitivity import draw_sensitivity
from rayfl.report.slots import find_compared_axis
from rayfl.run.store import Record
from rayfl.study.result import CellResult, StudyResult
from rayfl.study.schema import FIGURES, Score

OF_RUNS: Mapping[str, Callable[[Sequence[Panel]], list[Drawing]]] = {
    "precision_recall": draw_precision_recall,
    "reliability": draw_reliability,
    "confusion": draw_confusion_matrices,
    "similarity": draw_similarity,
    "dendrogram": draw_merge_order,
    "tsne": draw_tsne,
    "distributions": draw_distributions,
    "retrieved": draw_retrieved,
    "costs": draw_costs,
}
MOST_LOOKS = 14
"""Most methods that have a colour and a dash each."""
SLOW = ("tsne", "retrieved")
"""Those that load datasets and networks: drawn only where they are asked for."""
EVEN = ("cost/", "time/")
"""What the names of metrics begin with that hardly change over rounds."""
NO_CURVES = (
    "it keeps scores, neither curves nor arrays, and figures are drawn from folders of runs "
    "(`rayfl study FILE --ledger none` makes them here)"
)


def draw_gallery(result: StudyResult, names: Sequence[str]) -> tuple[list[Drawing], dict[str, str]]:
    """The figures of these names in their order, and for each that cannot be drawn the reason."""
    drawn: list[Drawing] = []
    lacking: dict[str, str] = {}
    panels = group_panels(result)
    recorded = sum(len(cell.rows) for cell in result.cells)
    if recorded and names:
        lacking["recorded runs"] = f"{recorded} are known by their rows in the ledger; {NO_CURVES}"
    for name in names:
        try:
            drawn += _draw_named(name, result, panels)
        except NoData as reason:
            lacking[name] = str(reason)
    return drawn, lacking


def _draw_named(
    name: str,
    result: StudyResult,
    panels: Sequence[Panel],
) -> list[Drawing]:
    """The figures of one name."""
    if name not in FIGURES:
        raise NoData(f"there is no figure of this name; there are {', '.join(FIGURES)}")
    # The only one that also shows what is printed: it needs no runs.
    if name == "sensitivity":
        return draw_sensitivity(result)
    if not panels:
        raise NoData("no run is finished")
    if name == "curves":
        return draw_curves(panels, list_metrics(result))
    return OF_RUNS[name](panels)


def group_panels(result: StudyResult) -> list[Panel]:
    """Runs that are rivals of each other, by what they have in common."""
    compared = find_compared_axis(result)
    others = [axis for axis in result.study.axes if axis != compared]
    fixed = [axis for axis in others if len(result.used(axis)) > 1]
    ran = [cell for cell in result.cells if cell.kind == "run" and cell.records]
    order = list(dict.fromkeys(cell.choices[compared] for cell in ran))
    found: dict[str, list[Group]] = {}
    for cell in ran:
        title = ", ".join(cell.titles[axis] for axis in fixed)
        groups = found.setdefault(title, [])
        # Where there are too many methods for a look each, looks are dealt out anew in every panel.
        enough = len(order) <= MOST_LOOKS
        style = order.index(cell.choices[compared]) if enough else len(groups)
        groups.append(Group(cell.titles[compared], _sort_records(cell), style))
    return [Panel(title, groups) for title, groups in found.items()]


def _sort_records(cell: CellResult) -> list[Record]:
    """A cell's runs in the order of their seeds."""
    return [cell.records[seed] for seed in sorted(cell.records)]


def list_metrics(result: StudyResult) -> list[str]:
    """Test accuracy, and what other scores come from but for costs, which hardly change over
    rounds."""
    metrics = ["test/accuracy"]
    for score in _iterate_scores(result):
        # Without a metric, or with an array, it is a score of the end alone.
        if score.metric is None or score.array is not None:
            continue
        if not score.metric.startswith(EVEN):
            metrics.append(score.metric)
    return list(dict.fromkeys(metrics))


def _iterate_scores(result: StudyResult) -> Iterator[Score]:
    """The study's scores, and those that its choices put in their place."""
    yield from result.study.scores.values()
    for choices in result.study.axes.values():
        for choice in choices.values():
            yield from choice.scores.values()
