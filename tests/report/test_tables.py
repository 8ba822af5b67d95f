"""What goes where in a table, which figure is the best, and how ranks agree."""

from __future__ import annotations

import math

import pytest
from scipy.stats import kendalltau, spearmanr

from rayfl.report.markdown import write_markdown
from rayfl.report.ranking import measure_agreements
from rayfl.report.slots import find_compared_axis
from rayfl.report.tables import build_table, explain_missing
from rayfl.study.schema import TableLayout
from tests.report.results import cell, grid, result

GRID = grid({
    "a": {"x": ([90.0, 92.0], 91.0), "y": ([50.0, 50.0], 60.0)},
    "b": {"x": ([95.0, 95.0], 90.0), "y": ([40.0, 41.0], 50.0)},
    "c": {"x": ([80.0, 81.0], 85.0), "y": ([70.0, 70.0], 70.0)},
    "d": {"x": ([70.0, 71.0], None), "y": ([30.0, 30.0], 40.0)},
})  # fmt: skip


def test_rows_and_columns_follow_the_layout() -> None:
    table = build_table(GRID)
    assert [table.row_titles(row) for row in table.rows] == [["A"], ["B"], ["C"], ["D"]]
    assert [table.column_title(column) for column in table.columns] == ["X", "Y"]
    assert table.slots[("b",), ("x",)].value.mean == 95.0
    assert table.constant == ["accuracy (%)"]


def test_an_axis_with_one_choice_is_said_once() -> None:
    found = result([cell({"method": method, "dataset": "mnist"}, [1.0]) for method in "ab"])
    table = build_table(found)
    assert table.constant == ["MNIST"]
    assert [table.column_title(column) for column in table.columns] == ["accuracy (%)"]


def test_the_best_of_each_column_is_marked_ours_and_printed_apart() -> None:
    slots = build_table(GRID).slots
    assert {key for key, slot in slots.items() if slot.best} == {(("b",), ("x",)), (("c",), ("y",))}
    assert {key for key, slot in slots.items() if slot.printed_best} == {
        (("a",), ("x",)),
        (("c",), ("y",)),
    }


@pytest.mark.parametrize(("lower", "best"), [(False, "b"), (True, "a")])
def test_the_best_is_the_least_where_lower_is_better(lower: bool, best: str) -> None:
    levels = (("a", 1.0), ("b", 3.0), ("c", 2.0))
    found = result([cell({"method": m, "dataset": "x"}, [v, v], lower=lower) for m, v in levels])
    assert [key[0][0] for key, slot in build_table(found).slots.items() if slot.best] == [best]


def test_a_difference_is_no_rival_and_one_alone_is_not_the_best() -> None:
    cells = [cell({"method": "a", "dataset": "x"}, [1.0], 1.0)]
    cells.append(cell({"method": "gain", "dataset": "x"}, [9.0], 9.0, "difference"))
    found = result(cells)
    assert not [
        slot for slot in build_table(found).slots.values() if slot.best or slot.printed_best
    ]
    assert measure_agreements(found) == []


def test_only_methods_of_one_setting_are_rivals_wherever_they_stand() -> None:
    levels = (("a", "x", 1), ("b", "x", 3), ("c", "x", 2), ("a", "y", 9))
    cells = [cell({"method": m, "dataset": d}, [v, v]) for m, d, v in levels]
    down = result(cells, TableLayout(rows=["dataset", "method"], columns=["score"]))
    assert [key[0] for key, slot in build_table(down).slots.items() if slot.best] == [("x", "b")]


def test_without_methods_the_last_axis_of_the_rows_is_compared() -> None:
    found = result(
        [cell({"k": k, "dataset": "x"}, [1.0]) for k in ("1", "2")],
        TableLayout(rows=["k"], columns=["dataset"]),
    )
    assert find_compared_axis(found) == "k"


def test_agreement_is_that_of_scipy_within_each_column_and_weighted_by_pairs_over_all() -> None:
    x, y, overall = measure_agreements(GRID)
    ours, printed = [91.0, 95.0, 80.5], [91.0, 90.0, 85.0]
    assert (x.title, x.methods, x.concordant, x.pairs) == ("X", 3, 2, 3)
    assert x.kendall == pytest.approx(kendalltau(ours, printed).statistic) == pytest.approx(1 / 3)
    assert x.spearman == pytest.approx(spearmanr(ours, printed).statistic) == pytest.approx(0.5)
    assert (y.methods, y.pairs) == (4, 6)
    assert y.kendall == pytest.approx(1.0)
    assert overall.kendall == pytest.approx((3 * (1 / 3) + 6 * 1) / 9)
    assert (overall.title, overall.concordant, overall.pairs) == ("overall", 8, 9)


def test_equal_figures_have_no_rank() -> None:
    rows = (("a", 1.0), ("b", 2.0), ("c", 3.0))
    (only,) = measure_agreements(grid({m: {"x": ([5.0, 5.0], p)} for m, p in rows}))
    assert math.isnan(only.kendall)
    assert math.isnan(only.spearman)
    assert (only.concordant, only.pairs) == (0, 3)


@pytest.mark.parametrize(
    ("methods", "ours", "scaled"),
    [("ab", [1.0, 2.0], ""), ("abc", [1.0], ""), ("abc", [1.0, 2.0], "rounds 100 -> 5")],
    ids=["one pair", "one seed", "levels that are not comparable"],
)
def test_what_says_nothing_has_no_rank_no_bold_and_no_difference(
    methods: str, ours: list[float], scaled: str
) -> None:
    cells = []
    for place, method in enumerate(methods):
        values = [value + place for value in ours]
        cells.append(cell({"method": method, "dataset": "x"}, values, 9.0 + place, scaled=scaled))
    found = result(cells, scale=0.05 if scaled else 1.0)
    table = build_table(found)
    assert measure_agreements(found) == []
    assert not [slot for slot in table.slots.values() if slot.best]
    assert "Rank agreement" not in write_markdown(found)
    alone = len(ours) < 2
    told = [each.difference_text("accuracy") != "-" for each in cells]
    assert told == [not (scaled or alone)] * len(cells)


def test_what_is_absent_is_told_briefly() -> None:
    cells = [cell({"method": "rhfl", "dataset": d}, missing="not built") for d in "xyz"]
    cells += [cell({"method": "moon", "dataset": d}, missing="not run yet") for d in "xy"]
    cells += [cell({"method": "moon", "dataset": "z"}, [1.0])]
    cells += [cell({"method": "ifca", "dataset": str(d)}, missing="not run yet") for d in range(4)]
    cells += [cell({"method": "ifca", "dataset": "z"}, [1.0])]
    told = explain_missing(result(cells))
    assert told == {"not built": ["RHFL"], "not run yet": ["MOON (X; Y)", "IFCA (4 of 5 cells)"]}


def test_a_wide_table_is_told_in_as_few_parts_as_will_do() -> None:
    cells = [
        cell({"method": m, "noise": n, "dataset": d}, [1.0], 2.0)
        for m in "ab"
        for n in ("n1", "n2", "n3")
        for d in "xy"
    ]
    whole = build_table(result(cells))
    parts = whole.parts()
    assert len(whole.columns) * whole.width == 18
    assert [part.title for part in parts] == ["A & B: X", "A & B: Y"]
    assert [[part.column_title(c) for c in part.columns] for part in parts] == [
        ["N1", "N2", "N3"]
    ] * 2
    assert sum(len(part.slots) for part in parts) == len(whole.slots) == len(cells)
    assert build_table(GRID).parts()[0].title == "A & B"
