"""Figures of what happens over rounds and over a setting: learning curves, label selection,
sensitivity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rayfl.report.chart import Chart, Line, over_seeds
from rayfl.report.material import Drawing, NoData, Panel, joined

PERCENT = re.compile(r"(test|labels)/(?!loss)")
NAMES = {
    "test/accuracy": "test accuracy",
    "test/loss": "test loss",
    "test/macro_f1": "test macro F1",
    "labels/precision": "label precision",
    "labels/recall": "label recall",
    "labels/right_after": "right labels after correction",
    "labels/right_before": "right labels before correction",
}


def named(metric: str) -> str:
    """A metric with its unit."""
    name = NAMES.get(metric, metric)
    return f"{name} (%)" if PERCENT.match(metric) else name


def over_rounds(metric: str, panel: Panel) -> Chart | None:
    """One metric of all groups; None where no run has it."""
    factor = 100.0 if PERCENT.match(metric) else 1.0
    found = [
        (
            group.style,
            over_seeds(group.title, [record.series(metric) for record in group.records], factor),
        )
        for group in panel.groups
    ]
    lines = [replace(line, style=style) for style, line in found if line is not None]
    return Chart(panel.title, "round", named(metric), lines) if lines else None


def drawings_of(metrics: Sequence[str], panels: Sequence[Panel]) -> Iterator[Drawing]:
    for panel in panels:
        for metric in metrics:
            chart = over_rounds(metric, panel)
            if chart is not None:
                what = named(metric)
                title = joined(f"{what[0].upper()}{what[1:]} over rounds", panel.title)
                name = f"{metric.replace('/', '_')}_{slug(panel.title)}".rstrip("_")
                yield Drawing(name, title, spread_of(panel), chart.summary(), chart=chart)


def spread_of(panel: Panel) -> str:
    """What lines and bands of a chart are."""
    counts = sorted({len(group.records) for group in panel.groups})
    if counts == [1]:
        return "One run a line."
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"Lines: mean over {runs} seeds. Bands: the least and the greatest of them in each round."
    )


def curves(panels: Sequence[Panel], metrics: Sequence[str] = ("test/accuracy",)) -> list[Drawing]:
    """The metrics that the scores come from, over rounds."""
    drawn = list(drawings_of(metrics, panels))
    if not drawn:
        raise NoData(f"no run has {' or '.join(metrics)}")
    return drawn


def precision_recall(panels: Sequence[Panel]) -> list[Drawing]:
    """How many of the labels that a method keeps are right, and how many of the right ones it
    keeps."""
    drawn = list(drawings_of(("labels/precision", "labels/recall"), panels))
    if not drawn:
        raise NoData(
            "no method of these runs selects samples (metrics labels/precision, labels/recall)"
        )
    return drawn


# -- sensitivity -----------------------------------------------------------------------------------------------------

OURS = "ours"
"""The name of a line where there are no methods to name it after."""

Point = tuple[float, float, float, float]
"""A setting's value, and the score's mean, least and greatest value at it."""


def sensitivity_chart(
    title: str,
    setting: str,
    score: str,
    ours: Mapping[str, Sequence[Point]],
    printed: Mapping[str, Sequence[tuple[float, float]]],
) -> Chart:
    """A score against a number that was varied; what a paper prints is drawn with open markers."""
    lines: list[Line] = []
    for number, (name, points) in enumerate(ours.items()):
        if points:
            x, y, low, high = zip(*sorted(points), strict=True)
            band = (low, high) if low != high else ((), ())
            lines.append(Line(name, x, y, *band, style=number))
        if printed.get(name):
            x, y = zip(*sorted(printed[name]), strict=True)
            lines.append(
                Line(
                    "printed" if name == OURS else f"{name}, printed",
                    x,
                    y,
                    joined=False,
                    style=number,
                )
            )
    every = [x for line in lines for x in line.x]
    return Chart(title, setting, score, lines, log=spans_decades(every))


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows these better."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > 20


def number_in(text: str) -> float | None:
    """The one number in a title such as `K = 4` or `0.3`; the 10 of `CIFAR-10` is none."""
    found = re.findall(r"(?<![\w.-])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.-])", text)
    return float(found[0]) if len(found) == 1 else None


def slug(text: str) -> str:
    """A title as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60]
