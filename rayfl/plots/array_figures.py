"""Figures of arrays by their shape: a line, a matrix, a table, a merge history, or words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Floats
from rayfl.plots.style import BLUE, INK, escape_math, make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMES = 20
"""Most classes or clients whose names fit on an axis."""
MOST_NUMBERED = 14
"""Most rows or columns of a matrix whose cells have room for a number."""
MOST_LEAVES = 120
"""Most clients whose numbers fit below a dendrogram."""
MOST_DEPTH = 250
"""Most merges one above the other in a dendrogram, which scipy draws by recursion."""
MOST_LENGTH = 2000
"""Most values along an axis: more than a picture has pixels for."""
MOST_BLOCKS = 40
"""Most parts of a flattened array with lines between them."""
FEW_POINTS = 30
"""Fewer points than this are marked one by one."""
MOST_SIZE = 1e30
"""What is larger is drawn as this large: scales of colour and place are computed in floats."""
NUMBERS = "biufc"
"""The kinds of numpy's types that are numbers: truth values, whole, real, complex."""


def convert_to_numbers(array: NDArray[Any]) -> Floats | None:
    """The values as floats with gaps for what is not finite; None for text, for no values at all,
    and for one that needs no picture."""
    numbers = array.dtype.kind in NUMBERS
    if not numbers or array.size == 0 or array.ndim == 0:
        return None
    # Of complex numbers, such as a spectrum's, the size is what can be seen.
    real = np.abs(array) if array.dtype.kind == "c" else array
    values = real.astype(np.float64)
    blank = np.where(np.isfinite(values), values, np.nan)
    return np.clip(blank, -MOST_SIZE, MOST_SIZE)


def write_in_words(name: str, array: NDArray[Any]) -> Figure:
    """What cannot be drawn, in words."""
    figure, axes = make_figure(4.6, 1.6)
    axes.set_axis_off()
    axes.set_title(escape_math(name))
    said = f"{array.item()}"[:60] if array.ndim == 0 else _describe_kind(array)
    axes.text(
        0.5,
        0.5,
        escape_math(said),
        ha="center",
        va="center",
    )
    return figure


def _describe_kind(array: NDArray[Any]) -> str:
    """`no values, shape 0 x 3`, or what else keeps an array from being drawn."""
    shape = _format_shape(array)
    if array.size == 0:
        return f"no values, shape {shape}"
    if array.dtype.kind in NUMBERS:
        return f"no finite value, shape {shape}"
    return f"no numbers but {array.dtype}, shape {shape}"


# -- one axis --------------------------------------------------------------------------------------


def draw_values(name: str, values: Floats) -> Figure:
    """Values over their places."""
    figure, axes = make_figure(7, 4)
    step = _choose_step(len(values))
    places = np.arange(0, len(values), step)
    marker = "o" if len(places) < FEW_POINTS else None
    axes.plot(
        places,
        values[::step],
        color=BLUE,
        marker=marker,
        linewidth=1.4,
    )
    title = escape_math(name)
    axes.set(xlabel=_name_axis("place", step), ylabel=title, title=title)
    axes.grid(alpha=0.3)
    axes.locator_params(axis="x", integer=True)
    return figure


def _choose_step(length: int) -> int:
    """Every how many values one is drawn."""
    return -(-length // MOST_LENGTH)


def _name_axis(what: str, step: int) -> str:
    return what if step == 1 else f"{what} (one in {step} is drawn)"


# -- two axes and more -----------------------------------------------------------------------------


def draw_matrix(name: str, matrix: Floats) -> Figure:
    """A clients-by-clients matrix; values are written where there is room.

    Colours spread over what is off the diagonal: the ones on it would make everything else look
    alike."""
    clients = len(matrix)
    side = float(np.clip(2.5 + 0.3 * clients, 4.5, 8))
    off_diagonal = matrix[~np.eye(clients, dtype=bool)] if clients > 1 else matrix.ravel()
    low, high = _find_range(off_diagonal)
    figure, axes = make_figure(side + 1, side)
    _paint_matrix(axes, name, matrix, (low, high))
    axes.set(xlabel="client", ylabel="client", title=escape_math(name))
    _label_places(axes, matrix.shape)
    if clients <= MOST_NUMBERED:
        _write_values(axes, matrix, (low + high) / 2)
    return figure


def draw_table(name: str, values: Floats) -> Figure:
    """A matrix that is not square, or an array of more axes, the last one across and all others
    down."""
    table = values.reshape(-1, values.shape[-1])
    row_step, column_step = map(_choose_step, table.shape)
    shown = table[::row_step, ::column_step]
    rows, columns = shown.shape
    height = float(np.clip(2.0 + 0.3 * rows, 3, 8))
    width = float(np.clip(2.5 + 0.3 * columns, 4.5, 9))
    figure, axes = make_figure(width + 1, height)
    low, high = _find_range(shown)
    _paint_matrix(axes, name, shown, (low, high))
    # Cells need not be square: 100 clients by 2 numbers would be a hair's breadth.
    axes.set_aspect("auto")
    axes.set_xlabel(_name_axis("column", column_step))
    axes.set_ylabel(_name_axis("row", row_step))
    shape = "" if values.ndim == 2 else f", {_format_shape(values)}"
    axes.set_title(escape_math(f"{name}{shape}"))
    if row_step == 1:
        _part_blocks(axes, values.shape)
    _label_places(axes, shown.shape)
    if max(rows, columns) <= MOST_NUMBERED:
        _write_values(axes, shown, (low + high) / 2)
    return figure


def _format_shape(array: NDArray[Any]) -> str:
    return " x ".join(map(str, array.shape))


def _find_range(values: Floats) -> tuple[float, float]:
    """The least and the greatest known value; 0 and 1 where nothing is known."""
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    return float(known.min()), float(known.max())


def _paint_matrix(
    axes: Axes,
    name: str,
    matrix: Floats,
    span: tuple[float, float],
) -> None:
    """The image of a matrix with its scale."""
    low, high = span
    # A scale has a length, even where all values are the same.
    shortest = max(1e-9, 1e-9 * abs(low))
    image = axes.imshow(
        matrix,
        cmap="viridis",
        interpolation="nearest",
        vmin=low,
        vmax=max(high, low + shortest),
    )
    beyond = "max" if np.nanmax(matrix) > high else "neither"
    label = escape_math(name)
    axes.figure.colorbar(
        image,
        ax=axes,
        label=label,
        shrink=0.8,
        extend=beyond,
    )


def _label_places(axes: Axes, shape: tuple[int, ...]) -> None:
    """A number at every row and column, where there are few."""
    rows, columns = shape
    if columns <= MOST_NAMES:
        axes.set_xticks(range(columns))
    if rows <= MOST_NAMES:
        axes.set_yticks(range(rows))


def _part_blocks(axes: Axes, shape: tuple[int, ...]) -> None:
    """Lines between the matrices of an array of more than two axes."""
    height = shape[-2]
    blocks = int(np.prod(shape[:-2]))
    if not 1 < blocks <= MOST_BLOCKS:
        return
    for block in range(1, blocks):
        axes.axhline(block * height - 0.5, color="white", linewidth=2)


def _write_values(axes: Axes, matrix: Floats, middle: float) -> None:
    """Write the known values into their cells, in an ink that shows on their colour."""
    for (row, column), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            axes.text(
                column,
                row,
                _format_value(value),
                ha="center",
                va="center",
                color=INK if value > middle else "white",
                fontsize=7,
            )


def _format_value(value: float) -> str:
    """Two decimals without the nought before them, as there is little room; large ones in short."""
    if abs(value) >= 1000:
        return f"{value:.0e}"
    text = f"{value:.2f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


# -- merge histories -------------------------------------------------------------------------------


def is_merge_history(values: Floats) -> bool:
    """Whether an array has the linkage form and is not too deep to be drawn as a tree."""
    if values.ndim != 2 or values.shape[1] != 4 or not np.isfinite(values).all():
        return False
    pairs = values[:, :2]
    clusters = np.arange(len(values))[:, None] + len(values) + 1
    # Every merge takes two clusters that are there by then, and that no other merge has taken.
    there = (pairs >= 0) & (pairs < clusters) & (pairs == np.round(pairs))
    once = len(np.unique(pairs)) == pairs.size
    return bool(there.all() and once and _measure_depth(pairs) <= MOST_DEPTH)


def _measure_depth(pairs: Floats) -> int:
    """How many merges lie between a client and the root, at most."""
    depths = [0] * (len(pairs) + 1)
    for one, other in pairs.astype(int):
        if max(one, other) >= len(depths):
            return MOST_DEPTH + 1
        depths.append(1 + max(depths[one], depths[other]))
    return max(depths)


def draw_dendrogram(merges: Floats) -> Figure:
    """A merge history in the linkage form: who joined whom at which distance."""
    from scipy.cluster.hierarchy import dendrogram

    clients = len(merges) + 1
    width = float(np.clip(0.3 * clients, 6, 14))
    figure, axes = make_figure(width, 4)
    size = 9 if clients <= 40 else max(4, 360 // clients)
    dendrogram(merges, ax=axes, color_threshold=0, above_threshold_color=BLUE, leaf_font_size=size)
    if clients > MOST_LEAVES:
        axes.set_xticks([])
    axes.set(xlabel="client", ylabel="distance (1 - similarity)", title="order of merging")
    return figure
