"""Figures of one run: the learning curve, the confusion matrix, and what the method left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.plots.style import BLUE, GREEN, INK, VERMILION, blank, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 20
"""Most classes whose names fit on an axis."""
NUMBERED = 14
"""Most rows of a matrix whose cells have room for a number."""
ACROSS = 3


def wide(count: int, width: float, height: float) -> Figure:
    """Several axes in rows of three, each of this size; `figure.axes` has as many as are asked
    for."""
    from matplotlib.figure import Figure

    columns = min(count, ACROSS)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(width * columns, 4.6), height * rows), layout="constrained")
    for axes in figure.subplots(rows, columns, squeeze=False).ravel()[count:]:
        axes.remove()
    return figure


def learning_curve(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Test accuracy and, where the method selects labels, their precision and recall, over
    rounds."""
    figure, axes = blank(7, 4)
    series = {
        "test/accuracy": ("test accuracy", BLUE, "-"),
        "labels/precision": ("label precision", VERMILION, "--"),
    }
    series["labels/recall"] = ("label recall", GREEN, ":")
    for name, (label, colour, dash) in series.items():
        points = [
            (record["round"], record["metrics"][name])
            for record in history
            if name in record["metrics"]
        ]
        if points:
            rounds, values = zip(*points, strict=True)
            axes.plot(
                rounds,
                values,
                dash,
                color=colour,
                label=label,
                marker="o" if len(points) < 3 else None,
            )
    axes.set(xlabel="round", ylabel="share", ylim=(0, 1), title=title)
    axes.grid(alpha=0.3)
    if len(axes.lines) == 1:
        axes.set_ylabel(str(axes.lines[0].get_label()))
    legend_below(figure, axes)
    return figure


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str], title: str) -> Figure:
    """Row-normalised confusion matrix; counts are written where there is room."""
    side = float(np.clip(2.5 + 0.45 * len(classes), 4.5, 12))
    figure, axes = blank(side + 1, side)
    image = confusion_on(axes, confusion, classes)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    axes.set_title(title)
    if len(classes) <= NAMED:
        numbered(axes, confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1), confusion)
    return figure


def confusion_on(axes: Axes, confusion: NDArray[np.int64], classes: Sequence[str] | None) -> Any:
    """The shares of a confusion matrix as an image, with the classes' names where they fit."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="predicted class", ylabel="true class")
    if classes is not None and len(classes) <= NAMED:
        upright = max(map(len, classes)) <= 2
        axes.set_xticks(
            range(len(classes)),
            classes,
            rotation=0 if upright else 45,
            ha="center" if upright else "right",
        )
        axes.set_yticks(range(len(classes)), classes)
    return image


def numbered(axes: Axes, shares: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
    """Write counts into the cells of an image of shares."""
    for (row, column), share in np.ndenumerate(shares):
        ink = "white" if share > 0.5 else INK
        axes.text(
            column, row, f"{counts[row, column]}", ha="center", va="center", color=ink, fontsize=7
        )


def estimate_figure(name: str, believed: NDArray[np.float64], wrong: NDArray[np.float64]) -> Figure:
    """What a method believes of each client, against the client's true share of wrong labels."""
    known = np.isfinite(believed)
    figure, axes = blank(5.5, 4)
    axes.scatter(wrong[known], believed[known], color=BLUE, edgecolor="white", linewidth=0.5)
    axes.set(
        xlabel="share of wrong labels",
        ylabel=name,
        title=f"{name} of {known.sum()} clients, last known value",
    )
    axes.grid(alpha=0.3)
    return figure


def left_figure(name: str, array: NDArray[Any]) -> Figure:
    """An array that a method left: a merge history as a dendrogram, a matrix as a heat map."""
    return dendrogram_figure(array) if name == "dendrogram" else matrix_figure(name, array)


def matrix_figure(name: str, matrix: NDArray[np.float64]) -> Figure:
    """A clients-by-clients matrix; values are written where there is room.

    Colours spread over what is off the diagonal: the ones on it would make everything else look
    alike."""
    clients = len(matrix)
    side = float(np.clip(2.5 + 0.3 * clients, 4.5, 8))
    apart = matrix[~np.eye(clients, dtype=bool)] if clients > 1 else matrix.ravel()
    known = apart[np.isfinite(apart)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    figure, axes = blank(side + 1, side)
    image = axes.imshow(
        matrix, cmap="viridis", interpolation="nearest", vmin=low, vmax=max(high, low + 1e-9)
    )
    figure.colorbar(
        image,
        ax=axes,
        label=name,
        shrink=0.8,
        extend="max" if np.nanmax(matrix) > high else "neither",
    )
    axes.set(xlabel="client", ylabel="client", title=name)
    if clients <= NAMED:
        axes.set_xticks(range(clients))
        axes.set_yticks(range(clients))
    if clients <= NUMBERED:
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                ink = INK if value > (low + high) / 2 else "white"
                text = f"{value:.2f}".replace("0.", ".", 1)
                axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
    return figure


def dendrogram_figure(merges: NDArray[np.float64]) -> Figure:
    """A merge history in the linkage form: who joined whom at which distance."""
    from scipy.cluster.hierarchy import dendrogram

    clients = len(merges) + 1
    figure, axes = blank(float(np.clip(0.3 * clients, 6, 14)), 4)
    size = 9 if clients <= 40 else max(4, 360 // clients)
    dendrogram(merges, ax=axes, color_threshold=0, above_threshold_color=BLUE, leaf_font_size=size)
    if clients > 120:
        axes.set_xticks([])
    axes.set(xlabel="client", ylabel="distance (1 - similarity)", title="order of merging")
    return figure
