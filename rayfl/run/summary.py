"""One number for a whole run: the best that a metric came to, and its mean over the last rounds, as
papers report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

LAST = 10
"""Rounds that the mean of the last ones is over."""
SUMMARISED = ("test/", "labels/precision", "labels/recall")
LEFT_OUT = "test/recall/"
"""One number a class would bury the others."""
LOWER_IS_BETTER = ("loss",)


def summarise_history(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`best/NAME` and `last10/NAME` of every test metric.

    Parameters
    ----------
    history : sequence of mapping
        The run's records; the mean is over the last ten rounds that measured the metric.
    """
    series: dict[str, list[float]] = {}
    for record in history:
        for name, value in record["metrics"].items():
            if name.startswith(SUMMARISED) and not name.startswith(LEFT_OUT):
                series.setdefault(name, []).append(float(value))
    best = {f"best/{name}": _find_best(name, values) for name, values in series.items()}
    last = {f"last{LAST}/{name}": fmean(values[-LAST:]) for name, values in series.items()}
    return {**best, **last}


def _find_best(name: str, values: Sequence[float]) -> float:
    lower = name.rpartition("/")[2] in LOWER_IS_BETTER
    return min(values) if lower else max(values)
