"""Charts as data, as figures, and as inline SVG."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, strategies as st
from matplotlib.colors import to_rgb

from rayfl.plots.style import (
    COLOURS,
    DASHES,
    DPI,
    MARKERS,
    choose_line_style,
    make_panel_figure,
    render_png,
    render_svg,
    wrap_title,
)
from rayfl.report.chart import MOST_POINTS, Chart, ChartLine, average_seeds, draw_chart, thin_points

CHART = Chart(
    "MNIST",
    "round",
    "test accuracy (%)",
    [ChartLine("a < b", [1, 2], [50.0, 60.123456]), ChartLine("c", [1], [3.0])],
)


def test_repetitions_become_mean_least_and_greatest_at_rounds_that_all_have() -> None:
    line = average_seeds("x", [([1, 2, 3], [0.1, 0.2, 0.9]), ([1, 2], [0.3, 0.4]), ([], [])], 100)
    assert line is not None
    assert list(line.x) == [1, 2]
    for values, wanted in (
        (line.y, [20.0, 30.0]),
        (line.low, [10.0, 20.0]),
        (line.high, [30.0, 40.0]),
    ):
        assert values == pytest.approx(wanted)


def test_one_run_has_no_band_and_none_no_line() -> None:
    alone = average_seeds("x", [([1, 2], [0.1, 0.2])])
    assert alone is not None
    assert not alone.low
    assert average_seeds("x", [([], [])]) is None
    assert average_seeds("x", [([1], [0.1]), ([2], [0.1])]) is None


@given(st.integers(1, 5000))
def test_thinning_keeps_both_ends_and_bounds_the_number(count: int) -> None:
    values = list(range(count))
    kept = thin_points(values)
    assert kept[0] == 0
    assert kept[-1] == count - 1
    assert len(kept) <= MOST_POINTS + 1
    assert list(kept) == sorted(set(kept))


def test_a_chart_is_plain_data_for_the_page() -> None:
    data = json.loads(json.dumps(CHART.data()))
    assert (data["x"], data["y"], data["log"]) == ("round", "test accuracy (%)", False)
    assert data["lines"][0] == {
        "name": "a < b",
        "style": 0,
        "joined": True,
        "x": [1.0, 2.0],
        "y": [50.0, 60.123],
        "low": [],
        "high": [],
    }
    assert CHART.summary().endswith("Last values: a < b 60.12 at 2; c 3 at 1.")


def test_lines_differ_without_colour_and_colours_without_lines() -> None:
    looks = [choose_line_style(number) for number in range(len(COLOURS) * len(DASHES))]
    assert len({(look["color"], look["linestyle"]) for look in looks}) == len(looks)
    assert len(set(COLOURS)) == len(set(MARKERS)) == len(COLOURS)
    # Okabe and Ito's colours also differ in lightness, which is what a copier keeps.
    light = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in map(to_rgb, COLOURS[:3])]
    assert min(abs(one - other) for i, one in enumerate(light) for other in light[:i]) > 0.02


@pytest.mark.parametrize(
    "names", [["a", "b"], [f"a rather long name of a method, number {i}" for i in range(12)]]
)
def test_the_legend_covers_no_data(names: list[str]) -> None:
    figure = draw_chart(
        Chart("", "round", "y", [ChartLine(name, [1, 2], [i, 1.0]) for i, name in enumerate(names)])
    )
    figure.draw_without_rendering()
    (legend,) = figure.legends
    axes, box = figure.axes[0].get_window_extent(), legend.get_window_extent()
    assert not axes.overlaps(box)
    assert figure.bbox.contains(box.x0, box.y0)
    assert figure.bbox.contains(box.x1 - 1, box.y1)
    assert axes.height > 150


def test_what_is_printed_is_drawn_as_open_markers() -> None:
    figure = draw_chart(
        Chart(
            "",
            "K",
            "y",
            [ChartLine("ours", [1, 20], [1, 2]), ChartLine("p", [1, 20], [1, 2], joined=False)],
            log=True,
        )
    )
    ours, printed = figure.axes[0].lines
    assert (ours.get_linestyle(), printed.get_linestyle(), printed.get_markerfacecolor()) == (
        "-",
        "None",
        "none",
    )
    assert figure.axes[0].get_xscale() == "log"


def test_a_picture_has_enough_points() -> None:
    content = render_png(draw_chart(CHART))
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    assert DPI >= 130
    assert width == round(6.4 * DPI)
    assert height > 400


def test_an_inline_drawing_takes_the_colour_of_the_page_and_is_the_same_twice() -> None:
    first, second = (render_svg(draw_chart(CHART)) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")
    assert not re.search("#000000|<metadata|<script|http://(?!www.w3.org)", first)
    assert "currentColor" in first
    assert "a &lt; b" in first


@pytest.mark.parametrize(("joined", "legends"), [(True, 0), (False, 1)])
def test_one_line_needs_no_legend_unless_it_is_printed(joined: bool, legends: int) -> None:
    figure = draw_chart(Chart("", "K", "y", [ChartLine("printed", [1, 2], [1, 2], joined=joined)]))
    assert len(figure.legends) == legends


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_small_multiples_have_as_many_axes_as_asked_for(count: int) -> None:
    assert len(make_panel_figure(count, 3, 3).axes) == count


def test_titles_break_between_words() -> None:
    assert wrap_title("one two three", 8) == "one two\nthree"
    assert wrap_title("") == ""
