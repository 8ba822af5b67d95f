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


def estimate_figure(name: str, believed: NDArray[np.float64], wrong: NDArray[np.float64]) -> Figure:
    """What a method believes of each client, against the client's true share of wrong labels."""
    from matplotlib.figure import Figure

    known = np.isfinite(believed)
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.scatter(wrong[known], believed[known], color=BLUE, edgecolor="white", linewidth=0.5)
    axes.set(xlabel="share of wrong labels", ylabel=name, title=f"{name} of {known.sum()} clients, last known value")
    axes.grid(alpha=0.3)
    return figure


def left_figure(name: str, array: NDArray[Any]) -> Figure:
    """An array that a method left: a merge history as a dendrogram, a matrix as a heat map."""
    return dendrogram_figure(array) if name == "dendrogram" else matrix_figure(name, array)


def matrix_figure(name: str, matrix: NDArray[np.float64]) -> Figure:
    """A clients-by-clients matrix; values are written where there is room."""
    from matplotlib.figure import Figure

    clients = len(matrix)
    side = float(np.clip(2.5 + 0.3 * clients, 4.5, 9))
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(matrix, cmap="viridis", interpolation="nearest")
    figure.colorbar(image, ax=axes, label=name, shrink=0.8)
    axes.set(xlabel="client", ylabel="client", title=name)
    if clients <= NAMED:
        middle = (np.nanmin(matrix) + np.nanmax(matrix)) / 2
        axes.set_xticks(range(clients))
        axes.set_yticks(range(clients))
        for (row, column), value in np.ndenumerate(matrix):
            colour = "black" if value > middle else "white"
            axes.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", color=colour, fontsize=6)
    return figure


def dendrogram_figure(merges: NDArray[np.float64]) -> Figure:
    """A merge history in the linkage form: who joined whom at which distance."""
    from matplotlib.figure import Figure
    from scipy.cluster.hierarchy import dendrogram

    figure = Figure(figsize=(float(np.clip(0.3 * len(merges), 6, 14)), 4), layout="constrained")
    axes = figure.subplots()
    dendrogram(merges, ax=axes, color_threshold=0, above_threshold_color=BLUE)
    axes.set(xlabel="client", ylabel="distance (1 - similarity)", title="order of merging")
    return figure
