"""Figures of a run: whatever a method leaves is drawn, and none of it ends the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.plots.run_figures import (
    draw_confusion,
    draw_estimate,
    draw_learning_curve,
    draw_left_array,
)
from rayfl.plots.style import render_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RNG = np.random.default_rng(0)
GAPS = np.where(np.arange(12) % 3 == 0, np.nan, np.arange(12.0))
SQUARE = RNG.random((6, 6))
MERGES = np.array([[0, 1, 0.1, 2], [2, 3, 0.2, 2], [4, 5, 0.7, 4]])


def is_drawn(figure: Figure) -> bool:
    """Whether the figure becomes a picture."""
    return render_png(figure).startswith(b"\x89PNG")


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


# -- what a method leaves --------------------------------------------------------------------------

LINES: dict[str, NDArray[Any]] = {
    "few numbers": np.array([0.2, 0.5, 0.1]),
    "one number": np.array([0.2]),
    "whole numbers": np.arange(5),
    "yes and no": np.array([True, False, True]),
    "gaps": GAPS,
    "no end": np.array([1.0, np.inf, -np.inf, 2.0]),
    "complex": np.exp(1j * np.arange(8.0)) * np.arange(8),
    "half precision": np.arange(4, dtype=np.float16),
    "unsigned": np.arange(4, dtype=np.uint8),
    "more than a picture has pixels": RNG.random(300_001),
    "huge": np.array([-1e308, 1e308, 0.0]),
    "all the same": np.full(4, 7.0),
}
TABLES: dict[str, NDArray[Any]] = {
    "clients by classes": RNG.random((7, 3)),
    "a row": RNG.random((1, 9)),
    "a column": RNG.random((9, 1)),
    "many rows": RNG.random((4001, 3)),
    "yes and no": RNG.random((5, 9)) > 0.5,
    "gaps": GAPS.reshape(3, 4),
    "all the same": np.full((2, 5), 1e9),
    "huge": np.array([[-1e308, 0.0, 1e308]]),
    "three axes": RNG.random((4, 3, 5)),
    "three axes, all equal": RNG.random((3, 3, 3)),
    "four axes": RNG.random((2, 2, 3, 4)),
    "many blocks": RNG.random((100, 2, 3)),
}
SQUARES: dict[str, NDArray[Any]] = {
    "similarity": SQUARE,
    "one client": np.array([[1.0]]),
    "one client is nobody's": np.array([[0.0]]),
    "gaps": np.where(SQUARE > 0.5, np.nan, SQUARE),
    "only a diagonal": np.where(np.eye(4, dtype=bool), 1.0, np.nan),
    "negative": -SQUARE,
    "counts": np.arange(16).reshape(4, 4),
    "yes and no": SQUARE > 0.5,
    "many clients": RNG.random((150, 150)),
    "all the same": np.full((3, 3), 1e12),
}
WORDS: dict[str, tuple[NDArray[Any], str]] = {
    "one value": (np.array(0.25), "0.25"),
    "no value": (np.zeros(0), "no values, shape 0"),
    "no row": (np.zeros((0, 3)), "no values, shape 0 x 3"),
    "nothing known": (np.full(3, np.nan), "no finite value, shape 3"),
    "nothing known of pairs": (np.full((2, 2), np.inf), "no finite value, shape 2 x 2"),
    "text": (np.array(["a", "b"]), "no numbers but <U1, shape 2"),
    "days": (np.array(["2026-01-01"], dtype="datetime64[D]"), "no numbers but datetime64[D]"),
    "records": (np.zeros(2, dtype=[("x", "f8")]), "no numbers but [('x', '<f8')], shape 2"),
}


@pytest.mark.parametrize("kind", LINES)
def test_one_axis_is_a_line(kind: str) -> None:
    figure = draw_left_array("history", LINES[kind])
    assert is_drawn(figure)
    (line,) = figure.axes[0].lines
    assert 1 <= np.size(line.get_xdata()) <= 2000
    assert (figure.axes[0].get_title(), figure.axes[0].get_ylabel()) == ("history", "history")


@pytest.mark.parametrize("kind", TABLES)
def test_two_axes_and_more_are_a_table(kind: str) -> None:
    array = TABLES[kind]
    figure = draw_left_array("shares", array)
    assert is_drawn(figure)
    rows, columns = np.asarray(figure.axes[0].images[0].get_array()).shape
    assert columns == array.shape[-1]
    assert rows == array.size // columns or rows <= 2000
    assert figure.axes[0].get_xlabel().startswith("column")


@pytest.mark.parametrize("kind", SQUARES)
def test_a_square_is_of_clients_by_clients(kind: str) -> None:
    figure = draw_left_array("similarity", SQUARES[kind])
    assert is_drawn(figure)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("client", "client")


@pytest.mark.parametrize("kind", WORDS)
def test_what_is_no_picture_is_told(kind: str) -> None:
    array, said = WORDS[kind]
    figure = draw_left_array("state", array)
    assert is_drawn(figure)
    (text,) = texts_of(figure)
    assert text.startswith(said)


@pytest.mark.parametrize("name", ["cost in $", "$x_{$", "100 % & more", "a_b^c", "", "ü" * 90])
@pytest.mark.parametrize("array", [np.zeros(0), np.arange(3), SQUARE, np.zeros((2, 3))])
def test_a_name_may_be_any_text(name: str, array: NDArray[Any]) -> None:
    assert is_drawn(draw_left_array(name, array))


def test_a_merge_history_is_a_tree() -> None:
    figure = draw_left_array("dendrogram", MERGES)
    assert is_drawn(figure)
    assert figure.axes[0].get_title() == "order of merging"


CHAIN = np.array([[i and 1999 + i, i + 1, i, i + 2] for i in range(1999)], dtype=float)
"""Everybody joins the first client: deeper than Python's recursion."""


@pytest.mark.parametrize(
    "array",
    [
        MERGES[:, :3],
        MERGES[0],
        np.zeros((0, 4)),
        MERGES * np.nan,
        SQUARE[:4, :4],
        MERGES[::-1],
        np.repeat(MERGES, 2, axis=0),
        CHAIN,
    ],
)
def test_what_is_called_a_merge_history_and_is_none_is_drawn_by_its_shape(
    array: NDArray[Any],
) -> None:
    figure = draw_left_array("dendrogram", array)
    assert is_drawn(figure)
    assert figure.axes[0].get_title() != "order of merging"


def test_colours_spread_over_what_is_off_the_diagonal() -> None:
    matrix = np.array([[1.0, 0.2], [0.3, 1.0]])
    (image,) = draw_left_array("similarity", matrix).axes[0].images
    assert image.get_clim() == (0.2, 0.3)


def test_values_are_written_as_they_are() -> None:
    figure = draw_left_array("distance", np.array([[0.25, 10.0], [-0.5, 123456.0]]))
    assert texts_of(figure) == [".25", "10.00", "-.50", "1e+05"]


def test_blocks_of_more_axes_are_told_apart() -> None:
    figure = draw_left_array("votes", np.zeros((4, 3, 5)))
    heights = [np.asarray(line.get_ydata()).min() for line in figure.axes[0].lines]
    assert heights == [2.5, 5.5, 8.5]
    assert figure.axes[0].get_title() == "votes, 4 x 3 x 5"


# -- the others ------------------------------------------------------------------------------------


def test_an_estimate_of_each_client_is_a_point() -> None:
    wrong = np.array([0.1, 0.2, 0.3])
    figure = draw_estimate("reliability", np.array([0.9, np.nan, 0.5]), wrong)
    assert is_drawn(figure)
    assert np.shape(figure.axes[0].collections[0].get_offsets()) == (2, 2)
    assert figure.axes[0].get_title() == "reliability of 2 clients, last known value"


@pytest.mark.parametrize("believed", [np.zeros((2, 3)), np.zeros(2), np.zeros(0)])
def test_an_estimate_of_something_else_is_drawn_by_its_shape(believed: NDArray[Any]) -> None:
    assert is_drawn(draw_estimate("reliability", believed, np.zeros(3)))


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_a_learning_curve_has_the_metrics_that_there_are(rounds: int) -> None:
    history = [{"round": t, "metrics": {"test/accuracy": 0.5}} for t in range(1, rounds + 1)]
    figure = draw_learning_curve(history, "fedavg on $5, seed 0 $")
    assert is_drawn(figure)
    assert len(figure.axes[0].lines) == min(rounds, 1)


@pytest.mark.parametrize("classes", [2, 12, 30])
def test_a_confusion_matrix_has_numbers_where_there_is_room(classes: int) -> None:
    counts = np.arange(classes * classes).reshape(classes, classes)
    counts[0] = 0
    names = [f"$class {number}" for number in range(classes)]
    figure = draw_confusion(counts, names, "digits")
    assert is_drawn(figure)
    assert len(texts_of(figure)) == (classes * classes if classes <= 20 else 0)
