"""Figures of one run: the learning curve, the confusion matrix, what a method believes of its
clients, and the arrays that it left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.plots.array_figures import (
    MOST_NAMES,
    convert_to_numbers,
    draw_dendrogram,
    draw_matrix,
    draw_table,
    draw_values,
    is_merge_history,
    write_in_words,
)
from rayfl.plots.style import (
    BLUE,
    GREEN,
    INK,
    VERMILION,
    choose_line_style,
    escape_math,
    make_figure,
    make_panel_figure,
    place_legend_below,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

CURVES = {
    "test/accuracy": ("test accuracy", BLUE, "-"),
    "labels/precision": ("label precision", VERMILION, "--"),
    "labels/recall": ("label recall", GREEN, ":"),
}
"""By metric: what it is called, its colour and its dash."""
FEW_POINTS = 3
"""Fewer rounds than this are marked, for a line of one point is invisible."""


def draw_learning_curve(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Test accuracy and, where the method selects labels, their precision and recall, over
    rounds.

    Parameters
    ----------
    history
        The run's records, each with its `round` and `metrics`."""
    figure, axes = make_figure(7, 4)
    for metric in CURVES:
        _draw_curve(axes, metric, history)
    axes.set(
        xlabel="round",
        ylabel="share",
        ylim=(0, 1),
        title=escape_math(title),
    )
    axes.grid(alpha=0.3)
    if len(axes.lines) == 1:
        axes.set_ylabel(str(axes.lines[0].get_label()))
    place_legend_below(figure, axes)
    return figure


def _draw_curve(
    axes: Axes,
    metric: str,
    history: Sequence[Mapping[str, Any]],
) -> None:
    """One metric, where any round has it."""
    records = [record for record in history if metric in record["metrics"]]
    if not records:
        return
    label, colour, dash = CURVES[metric]
    axes.plot(
        [record["round"] for record in records],
        [record["metrics"][metric] for record in records],
        dash,
        color=colour,
        label=label,
        marker="o" if len(records) < FEW_POINTS else None,
    )


def draw_metrics(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    metrics: Sequence[str],
    title: str = "",
) -> Figure:
    """Metrics of one or several runs over rounds, a pair of axes a metric.

    Parameters
    ----------
    histories
        By what a run is called: its records.
    metrics
        Metrics, or clock readings, by name.
    title
        What the figure is headed by."""
    figure = make_panel_figure(len(metrics), 4.4, 3.4)
    for axes, metric in zip(figure.axes, metrics, strict=True):
        for style, (label, history) in enumerate(histories.items()):
            _draw_series(axes, metric, history, label, style)
        axes.set(xlabel="round", ylabel=escape_math(metric))
        axes.grid(alpha=0.3)
    if title:
        figure.suptitle(escape_math(title), fontsize=11)
    place_legend_below(figure, figure.axes[0])
    return figure


def _draw_series(
    axes: Axes,
    metric: str,
    history: Sequence[Mapping[str, Any]],
    label: str,
    style: int,
) -> None:
    """One metric of one run, where any round has it."""
    points = [(record["round"], {**record["metrics"], **record["clock"]}) for record in history]
    known = [(number, values[metric]) for number, values in points if metric in values]
    look: dict[str, Any] = {**choose_line_style(style)}
    if len(known) >= FEW_POINTS:
        del look["marker"]
    axes.plot(
        [number for number, _ in known],
        [value for _, value in known],
        label=escape_math(label),
        **look,
    )


# -- confusion -------------------------------------------------------------------------------------


def draw_confusion(
    confusion: NDArray[np.int64],
    classes: Sequence[str],
    title: str,
) -> Figure:
    """A confusion matrix; counts are written where there is room.

    Parameters
    ----------
    confusion
        Counts, true classes down and predicted ones across.
    classes
        The names of the classes."""
    side = float(np.clip(2.5 + 0.45 * len(classes), 4.5, 12))
    figure, axes = make_figure(side + 1, side)
    image = paint_confusion(axes, confusion, classes)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    axes.set_title(escape_math(title))
    if len(classes) <= MOST_NAMES:
        _write_counts(axes, confusion)
    return figure


def paint_confusion(
    axes: Axes, confusion: NDArray[np.int64], classes: Sequence[str] | None
) -> AxesImage:
    """The shares of a confusion matrix as an image, with the classes' names where they fit."""
    shares = _divide_rows(confusion)
    image = axes.imshow(
        shares,
        cmap="Blues",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    axes.set(xlabel="predicted class", ylabel="true class")
    if classes is not None and len(classes) <= MOST_NAMES:
        _name_classes(axes, classes)
    return image


def _divide_rows(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Shares of each true class; a class without a sample has none."""
    totals = confusion.sum(axis=1, keepdims=True)
    shares: NDArray[np.float64] = confusion / np.maximum(totals, 1)
    return shares


def _name_classes(axes: Axes, classes: Sequence[str]) -> None:
    """Write the classes at both axes; names of more than two letters would meet if upright."""
    upright = max(map(len, classes)) <= 2
    places = range(len(classes))
    names = [escape_math(name) for name in classes]
    axes.set_xticks(
        places,
        names,
        rotation=0 if upright else 45,
        ha="center" if upright else "right",
    )
    axes.set_yticks(places, names)


def _write_counts(axes: Axes, confusion: NDArray[np.int64]) -> None:
    """Write counts into the cells of an image of shares."""
    shares = _divide_rows(confusion)
    for (row, column), share in np.ndenumerate(shares):
        axes.text(
            column,
            row,
            f"{confusion[row, column]}",
            ha="center",
            va="center",
            color="white" if share > 0.5 else INK,
            fontsize=7,
        )


# -- estimates -------------------------------------------------------------------------------------


def draw_estimate(
    name: str,
    believed: NDArray[np.float64],
    wrong: NDArray[np.float64],
) -> Figure:
    """What a method believes of each client, against the client's true share of wrong labels.

    Parameters
    ----------
    believed
        One number a client; nan where nothing is known of it.
    wrong
        The clients' true shares."""
    # A method may leave anything under a name that belongs to estimates.
    if believed.shape != wrong.shape:
        return draw_left_array(name, believed)
    known = np.isfinite(believed)
    figure, axes = make_figure(5.5, 4)
    axes.scatter(
        wrong[known],
        believed[known],
        color=BLUE,
        edgecolor="white",
        linewidth=0.5,
    )
    axes.set(
        xlabel="share of wrong labels",
        ylabel=escape_math(name),
        title=f"{escape_math(name)} of {known.sum()} clients, last known value",
    )
    axes.grid(alpha=0.3)
    return figure


# -- what a method leaves --------------------------------------------------------------------------


def draw_left_array(name: str, array: NDArray[Any]) -> Figure:
    """An array that a method left, of whatever shape and kind: no figure may end a finished run.

    | what is left | what is drawn |
    |---|---|
    | `dendrogram` in the linkage form | the merge history |
    | one axis | a line |
    | two axes, square | a matrix of clients by clients |
    | two axes | a matrix of rows by columns |
    | more axes | a matrix, the leading axes below each other |
    | one value, none, or no numbers | what it is, in words |

    Parameters
    ----------
    name
        The name it was left under.
    array
        Numbers that are not finite are left blank."""
    whole = np.asarray(array)
    values = convert_to_numbers(whole)
    if values is None or not np.isfinite(values).any():
        return write_in_words(name, whole)
    if name == "dendrogram" and is_merge_history(values):
        return draw_dendrogram(values)
    if values.ndim == 1:
        return draw_values(name, values)
    if values.ndim == 2 and len(values) == values.shape[1]:
        return draw_matrix(name, values)
    return draw_table(name, values)
