"""Every figure by its name: drawn where there is data, and a reason where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.plots.style import render_png
from rayfl.report.clients import collect_estimates, correlate_points
from rayfl.report.costs import measure_cost
from rayfl.report.gallery import OF_RUNS, draw_gallery, group_panels, list_metrics
from rayfl.report.material import Group
from rayfl.report.sensitivity import draw_sensitivity, find_number, find_setting, spans_decades
from rayfl.study.result import StudyResult
from rayfl.study.schema import FIGURES, Choice, Score, TableLayout
from tests.report.conftest import Made
from tests.report.results import cell, record, result

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:mlflow.*", "ignore::FutureWarning")


def of_runs(tmp_path: Path, **more: object) -> StudyResult:
    runs = [record(tmp_path, (0.5, 0.7), **more), record(tmp_path, (0.7, 0.9), **more)]
    return result(
        [cell({"method": m, "dataset": d}, [1.0, 2.0], records=runs) for m in "ab" for d in "xy"]
    )


def test_every_name_that_a_study_may_use_can_be_drawn() -> None:
    assert {*OF_RUNS, "curves", "sensitivity"} == set(FIGURES)


@pytest.mark.filterwarnings("ignore")  # MLflow's and torch's own, when a model is read
def test_all_figures_of_real_runs(made: Made) -> None:
    drawn, lacking = draw_gallery(made.result, FIGURES)
    names = {drawing.name.split("_")[0] for drawing in drawn}
    assert names == {
        "test",
        "labels",
        "reliability",
        "confusion",
        "similarity",
        "tsne",
        "classes",
        "sizes",
        "noise",
        "transition",
        "retrieved",
        "costs",
    }
    assert lacking == {
        "dendrogram": "no method of these runs leaves the array 'dendrogram'",
        "sensitivity": "no axis of the study is a number that takes several values",
    }
    assert all(drawing.alt and drawing.caption and drawing.title for drawing in drawn)
    assert len({drawing.name for drawing in drawn}) == len(drawn)


def test_curves_are_means_over_seeds_with_bands(tmp_path: Path) -> None:
    drawn, _ = draw_gallery(of_runs(tmp_path), ["curves"])
    assert [drawing.title for drawing in drawn] == [
        "Test accuracy (%) over rounds, X",
        "Test accuracy (%) over rounds, Y",
    ]
    chart = drawn[0].chart
    assert chart is not None
    assert [line.name for line in chart.lines] == ["A", "B"]
    assert chart.lines[0].y == pytest.approx([60.0, 80.0])
    assert chart.lines[0].high == pytest.approx([70.0, 90.0])
    assert "2 seeds" in drawn[0].caption


@pytest.mark.parametrize("name", sorted({*FIGURES} - {"curves", "distributions"}))
def test_runs_without_data_for_a_figure_give_a_reason(name: str, tmp_path: Path) -> None:
    cells = [cell({"method": m, "dataset": "x"}, [1.0], records=[record(tmp_path)]) for m in "ab"]
    drawn, lacking = draw_gallery(result(cells), [name])
    assert drawn == []
    assert len(lacking[name]) > 20


def test_nothing_run_is_a_reason_too() -> None:
    drawn, lacking = draw_gallery(
        result([cell({"method": "a", "dataset": "x"}, missing="not run yet")]), ["curves", "nose"]
    )
    assert drawn == []
    assert lacking["curves"] == "no run is finished"
    assert lacking["nose"].startswith("there is no figure of this name; there are curves")


def test_a_method_looks_the_same_in_every_panel(tmp_path: Path) -> None:
    runs = [record(tmp_path)]
    cells = [cell({"method": m, "dataset": d}, [1.0], records=runs) for m, d in ("ax", "bx", "by")]
    x, y = group_panels(result(cells))
    assert [(group.title, group.style) for group in (*x.groups, *y.groups)] == [
        ("A", 0),
        ("B", 1),
        ("B", 1),
    ]


def test_costs_are_not_drawn_over_rounds() -> None:
    found = result([cell({"method": "a", "dataset": "x"}, [1.0])])
    scores = {
        "a": Score(title="a", metric="cost/up_mb"),
        "b": Score(title="b", metric="clusters/adjusted_rand"),
    }
    object.__setattr__(found.study, "scores", scores)
    assert list_metrics(found) == ["test/accuracy", "clusters/adjusted_rand"]


# -- of clients ------------------------------------------------------------------------------------


def test_reliability_is_held_against_the_true_noise_of_all_seeds(tmp_path: Path) -> None:
    arrays = {
        "estimate/reliability": np.array([0.9, 0.5, np.nan]),
        "noise_rate": np.array([0.0, 0.4, 0.8]),
    }
    found = of_runs(tmp_path, arrays=arrays)
    group = group_panels(found)[0].groups[0]
    points = collect_estimates(group, "estimate/reliability")
    assert points.tolist() == [[0.0, 0.9], [0.4, 0.5]] * 2
    assert correlate_points(points) == pytest.approx(-1.0)
    drawn, _ = draw_gallery(found, ["reliability"])
    assert "A: r = -1.00; B: r = -1.00" in drawn[0].alt
    assert [axes.get_xlabel() for axes in drawn[0].figure.axes] == ["wrong labels (%)"] * 2  # type: ignore[union-attr]


def test_confusions_of_seeds_are_summed(tmp_path: Path) -> None:
    found = of_runs(
        tmp_path,
        arrays={"confusion": np.array([[3, 1], [0, 4]])},
        facts={"classes": ["cat", "dog"]},
    )
    drawn, _ = draw_gallery(found, ["confusion"])
    assert "A 87.5 % on the diagonal" in drawn[0].alt
    axes = drawn[0].figure.axes[0]  # type: ignore[union-attr]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["cat", "dog"]


def test_pictures_and_arrays_of_older_runs_are_used(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "confusion.png").write_bytes(b"picture")
    np.save(tmp_path / "figures" / "dendrogram.npy", np.array([[0, 1, 0.1, 2], [2, 3, 0.4, 3.0]]))
    np.save(
        tmp_path / "figures" / "similarity.npy",
        np.array([[1, 0.5, np.nan], [0.5, 1, 0.2], [np.nan, 0.2, 1]]),
    )
    found = result(
        [cell({"method": m, "dataset": "x"}, [1.0], records=[record(tmp_path)]) for m in "a"]
    )
    drawn, lacking = draw_gallery(found, ["confusion", "dendrogram", "similarity"])
    assert not lacking
    assert drawn[0].image == b"picture"
    assert "3 clients, last merged at distance 0.4" in drawn[1].alt
    assert "between 0.2 and 0.5 off the diagonal" in drawn[2].alt
    assert all(render_png(drawing.figure) for drawing in drawn[1:])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["similarity", "dendrogram"])
@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.arange(3.0), "values of shape 3."),
        (np.zeros((0, 2)), "values of shape 0 x 2."),
        (np.array([[0.5, 0.25, 1.0]]), "1 x 3 values, between 0.25 and 1."),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "2 clients, none known of two."),
        (np.array([[1.0]]), "1 clients, between 1 and 1."),
        (np.zeros((2, 2, 2)), "values of shape 2 x 2 x 2."),
    ],
)
def test_an_array_of_any_shape_has_its_figure_and_its_words(
    name: str, array: NDArray[np.float64], said: str, tmp_path: Path
) -> None:
    drawn, lacking = draw_gallery(of_runs(tmp_path, arrays={name: array}), [name])
    assert not lacking
    assert all(drawing.figure is not None for drawing in drawn)
    assert drawn[0].alt.endswith(f": {said}")


# -- costs -----------------------------------------------------------------------------------------


def test_costs_are_per_participant_and_in_the_units_of_the_paper(tmp_path: Path) -> None:
    metrics = {
        "clients/participants": 2,
        "cost/down_mb": 8,
        "cost/up_mb": 4,
        "cost/forward": 600,
        "cost/backward": 400,
    }
    facts = {"parameters": 500_000, "mean_client_samples": 100.0}
    cost = measure_cost(Group("m", [record(tmp_path, (0.1, 0.2), metrics=metrics, facts=facts)]))
    assert cost is not None
    assert (cost.down, cost.up, cost.forward, cost.backward) == (4.0, 2.0, 300.0, 200.0)
    assert cost.row()["communication (M)"] == "2.00M + 1.00M"
    assert cost.row()["computation (F, B)"] == "3.00F + 2.00B"
    unknown = measure_cost(Group("m", [record(tmp_path, metrics=metrics)]))
    assert unknown is not None
    assert unknown.row()["communication (M)"] == "-"


def test_federated_averaging_costs_one_model_each_way_and_its_epochs(made: Made) -> None:
    found = made.result.at(method="fedavg", noise="noisy")
    assert found is not None
    cost = measure_cost(Group("FedAvg", list(found.records.values())))
    assert cost is not None
    assert cost.row()["communication (M)"] == "1.00M + 1.00M"
    assert cost.row()["computation (F, B)"] == "2.00F + 2.00B"


# -- sensitivity -----------------------------------------------------------------------------------


def test_a_score_is_drawn_against_the_number_that_an_axis_sets() -> None:
    cells = [
        cell({"method": m, "k": k}, [v, v + 1], 50.0)
        for m, k, v in (("a", "k8", 2.0), ("a", "k2", 4.0), ("b", "k2", 6.0))
    ]
    found = result(cells)
    for name in ("k2", "k8"):
        found.study.axes["k"][name] = Choice(title=name, set={"method.k": int(name[1:])})
    (drawing,) = draw_sensitivity(found)
    chart = drawing.chart
    assert chart is not None
    assert (chart.xlabel, chart.ylabel, chart.log) == ("k", "accuracy (%)", False)
    assert [(line.name, tuple(line.x), tuple(line.y)) for line in chart.lines] == [
        ("A", (2.0, 8.0), (4.5, 2.5)),
        ("A, printed", (2.0, 8.0), (50.0, 50.0)),
        ("B", (2.0,), (6.5,)),
        ("B, printed", (2.0,), (50.0,)),
    ]
    assert [line.joined for line in chart.lines] == [True, False] * 2
    assert chart.lines[0].low == (4.0, 2.0)


def test_numbers_of_different_settings_are_different_charts() -> None:
    names = {"K 2": "k", "K 4": "k", "T 0.1": "temperature", "T 1": "temperature"}
    found = result(
        [cell({"setting": name}, [1.0]) for name in names], TableLayout(rows=["setting"])
    )
    for name, key in names.items():
        found.study.axes["setting"][name] = Choice(
            title=name, set={"method": {key: float(name.split()[1])}}
        )
    assert [drawing.chart.xlabel for drawing in draw_sensitivity(found) if drawing.chart] == [
        "k",
        "temperature",
    ]


@pytest.mark.parametrize(
    ("title", "number"),
    [
        ("K = 4", 4.0),
        ("0.3", 0.3),
        ("-1e-3", -1e-3),
        ("CIFAR-10", None),
        ("cifar10", None),
        ("0.0-0.4", None),
        ("IID", None),
    ],
)
def test_numbers_in_titles(title: str, number: float | None) -> None:
    assert find_number(title) == number


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"method": {"k": 4}}, ("k", 4.0)),
        ({"method.strength": 0.5}, ("strength", 0.5)),
        ({"a": 1, "b": 2}, ("axis", 7.0)),
        ({"flag": True}, ("axis", 7.0)),
    ],
)
def test_the_one_number_that_a_choice_sets_comes_before_its_title(
    settings: dict[str, object], found: object
) -> None:
    assert find_setting("axis", Choice(title="is 7", set=settings)) == found


@pytest.mark.parametrize(
    ("values", "log"), [([1, 100], True), ([1, 5], False), ([0, 100], False), ([], False)]
)
def test_decades_want_a_logarithmic_axis(values: list[float], log: bool) -> None:
    assert spans_decades(values) is log
