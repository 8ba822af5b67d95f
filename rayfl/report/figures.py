"""Figures of one run: the learning curve and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito: told apart by every kind of eye
NAMED = 20


def learning_curve(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Test accuracy and, where the method selects labels, their precision and recall, over rounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    series = {"test/accuracy": ("test accuracy", BLUE, "-"), "labels/precision": ("label precision", ORANGE, "--")}
    series["labels/recall"] = ("label recall", "#009E73", ":")
    for name, (label, colour, style) in series.items():
        points = [(record["round"], record["metrics"][name]) for record in history if name in record["metrics"]]
        if points:
            rounds, values = zip(*points, strict=True)
            axes.plot(rounds, values, style, color=colour, label=label, marker="o" if len(points) < 3 else None)
    axes.set(xlabel="round", ylabel="share", ylim=(0, 1), title=title)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    return figure


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str], title: str) -> Figure:
    """Row-normalised confusion matrix; counts are written where there is room."""
    from matplotlib.figure import Figure

    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(2.5 + 0.45 * len(classes), 4.5, 12))
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    axes.set(xlabel="predicted class", ylabel="true class", title=title)
    if len(classes) <= NAMED:
        axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
        axes.set_yticks(range(len(classes)), classes)
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share > 0.5 else "black"
            axes.text(column, row, f"{confusion[row, column]}", ha="center", va="center", color=colour, fontsize=7)
    return figure
