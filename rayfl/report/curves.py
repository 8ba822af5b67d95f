"""Figures of what happens over rounds: learning curves and label selection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rayfl.report.chart import Chart, average_seeds
from rayfl.report.material import Drawing, NoData, Panel, join_titles, make_name

PERCENT = re.compile(r"(test|labels)/(?!loss)")
"""Metrics that are shares."""
NAMES = {
    "test/accuracy": "test accuracy",
    "test/loss": "test loss",
    "test/macro_f1": "test macro F1",
    "train/loss_right": "training loss of samples with right labels",
    "train/loss_wrong": "training loss of samples with wrong labels",
    "labels/precision": "label precision",
    "labels/recall": "label recall",
    "labels/right_after": "right labels after correction",
    "labels/right_before": "right labels before correction",
}


def draw_curves(
    panels: Sequence[Panel], metrics: Sequence[str] = ("test/accuracy",)
) -> list[Drawing]:
    """The metrics that the scores come from, over rounds."""
    drawn = list(_draw_metrics(metrics, panels))
    if not drawn:
        raise NoData(f"no run has {' or '.join(metrics)}")
    return drawn


def draw_precision_recall(panels: Sequence[Panel]) -> list[Drawing]:
    """How many of the labels that a method keeps are right, and how many of the right ones it
    keeps."""
    drawn = list(_draw_metrics(("labels/precision", "labels/recall"), panels))
    if not drawn:
        raise NoData(
            "no method of these runs selects samples (metrics labels/precision, labels/recall)"
        )
    return drawn


def _draw_metrics(metrics: Sequence[str], panels: Sequence[Panel]) -> Iterator[Drawing]:
    for panel in panels:
        for metric in metrics:
            chart = _chart_metric(metric, panel)
            if chart is None:
                continue
            what = _name_metric(metric)
            yield Drawing(
                make_name(metric.replace("/", "_"), panel.title),
                join_titles(f"{what[0].upper()}{what[1:]} over rounds", panel.title),
                _describe_spread(panel),
                chart.summary(),
                chart=chart,
            )


def _chart_metric(metric: str, panel: Panel) -> Chart | None:
    """One metric of all groups; None where no run has it."""
    factor = 100.0 if PERCENT.match(metric) else 1.0
    lines = []
    for group in panel.groups:
        series = [record.series(metric) for record in group.records]
        line = average_seeds(group.title, series, factor)
        if line is not None:
            lines.append(replace(line, style=group.style))
    return Chart(panel.title, "round", _name_metric(metric), lines) if lines else None


def _name_metric(metric: str) -> str:
    """A metric with its unit."""
    name = NAMES.get(metric, metric)
    return f"{name} (%)" if PERCENT.match(metric) else name


def _describe_spread(panel: Panel) -> str:
    """What lines and bands of a chart are."""
    counts = sorted({len(group.records) for group in panel.groups})
    if counts == [1]:
        return "One run a line."
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"Lines: mean over {runs} seeds. Bands: the least and the greatest of them in each round."
    )
