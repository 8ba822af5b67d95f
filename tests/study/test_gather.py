"""What a study came to: runs, scores, printed figures, and the table of it all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.study.gather import (
    NOT_RUN,
    average_cells,
    gather_results,
    subtract_seeds,
)
from rayfl.study.order import StudyOrder
from rayfl.study.plan import make_plan
from rayfl.study.result import CellResult, StudyResult, Value
from rayfl.study.runner import run_plan
from rayfl.study.schema import Score
from rayfl.study.scores import read_entry, scale_window
from rayfl.study.text_table import format_table
from tests.study.tiny import study_file


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> StudyOrder:
    """The tiny study without one of its cells, run."""
    home = tmp_path_factory.mktemp("ran")
    path = study_file(
        home, {"axes": {"method": {"mean": {"title": "Mean", "average": ["fedavg", "fedprox"]}}}}
    )
    run_plan(
        make_plan(StudyOrder(path, only=("noise=clean",), output=home / "out")), lambda _: None
    )
    run_plan(
        make_plan(StudyOrder(path, only=("method=fedavg",), seeds=(0,), output=home / "out")),
        lambda _: None,
    )
    return StudyOrder(path, output=home / "out")


def scores(result: StudyResult, method: str, noise: str = "clean") -> Value:
    cell = result.at(method=method, noise=noise)
    assert cell is not None
    return cell.value


def test_scores_are_those_of_the_runs(ran: StudyOrder) -> None:
    result = gather_results(ran)
    cell = result.at(method="fedavg", noise="clean")
    assert cell is not None
    assert list(cell.records) == [0, 1]
    assert cell.value.values == tuple(
        100 * record.score("test/accuracy") for record in cell.records.values()
    )
    assert cell.value.printed_text() == "90.00 ± 1.0"
    assert cell.value.difference == pytest.approx(np.mean(cell.value.values) - 90)
    assert cell.value.std == pytest.approx(np.std(cell.value.values, ddof=1))
    assert cell.missing == ""
    assert (
        cell.command
        == f"rayfl study {ran.path} --only method=fedavg --only noise=clean -o {ran.output}"
    )


def test_cells_without_all_seeds_have_those_they_have(ran: StudyOrder) -> None:
    assert scores(gather_results(ran), "fedavg", "noisy").seeds == (0,)


def test_what_was_not_run_or_built_says_so(ran: StudyOrder) -> None:
    result = gather_results(ran, problems={("fedprox", "noisy"): "no such file"})
    missing = {tuple(cell.choices.values()): cell.missing for cell in result.cells}
    assert missing["fedprox", "noisy"] == "no such file"
    assert missing["gain", "noisy"] == "no such file"
    assert missing["rhfl", "noisy"] == "RHFL is not built"
    assert missing["fedavg", "clean"] == missing["gain", "clean"] == ""
    assert gather_results(ran).at(method="fedprox", noise="noisy").missing == NOT_RUN  # type: ignore[union-attr]


def test_differences_go_seed_by_seed(ran: StudyOrder) -> None:
    result = gather_results(ran)
    ours = scores(result, "gain")
    first, second = scores(result, "fedprox"), scores(result, "fedavg")
    assert ours.values == tuple(a - b for a, b in zip(first.values, second.values, strict=True))
    assert ours.printed_value == 1.5
    assert scores(result, "gain", "noisy").n == 0
    assert result.at(method="gain", noise="clean").kind == "difference"  # type: ignore[union-attr]


def test_averages_go_cell_by_cell(ran: StudyOrder) -> None:
    result = gather_results(ran)
    means = scores(result, "mean")
    assert means.values == (scores(result, "fedavg").mean, scores(result, "fedprox").mean)
    assert scores(result, "mean", "noisy").n == 0


def test_a_result_is_in_the_order_of_its_axes(ran: StudyOrder) -> None:
    result = gather_results(ran)
    assert result.used("method") == ["fedavg", "fedprox", "gain", "rhfl", "mean"]
    assert result.used("score") == ["accuracy"]
    assert (result.title("method", "gain"), result.title("score", "accuracy")) == (
        "Delta",
        "accuracy (%)",
    )
    assert result.at(method="fedavg") is None


def test_a_path_is_gathered_as_it_was_last_run(ran: StudyOrder) -> None:
    result = gather_results(ran.path, ran.output)
    assert result.seeds == (0,)
    assert result.used("method") == ["fedavg"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Value("", (3.0, 5.0), (0, 1)), Value("", (1.0,), (1,)), {1: 4.0}),
        (Value("", (3.0,), (0,)), Value("", (1.0,), (1,)), {}),
        (Value(""), Value(""), {}),
    ],
)
def test_difference_of_values(first: Value, second: Value, expected: Mapping[int, float]) -> None:
    assert subtract_seeds([first, second]) == expected


def test_an_average_needs_all() -> None:
    assert average_cells([Value("", (1.0, 3.0)), Value("", (4.0,))]) == {0: 2.0, 1: 4.0}
    assert average_cells([Value("", (1.0,)), Value("")]) == {}


@pytest.mark.parametrize(("scale", "window"), [(1.0, 10), (0.2, 2), (0.01, 1)])
def test_the_last_rounds_shrink_with_the_rounds(scale: float, window: int) -> None:
    assert scale_window(Score(title="x", window=10), scale).window == window


@pytest.mark.parametrize(
    ("at", "expected"),
    [((0, 1), 2.0), ((1, -1), 4.0), ((2, 0), math.nan), ((0,), math.nan), ((), math.nan)],
)
def test_entries_of_what_a_method_left(at: tuple[int, ...], expected: float) -> None:
    found = read_entry(np.array([[1.0, 2.0], [3.0, 4.0]]), at)
    assert found == expected or (math.isnan(found) and math.isnan(expected))
    assert math.isnan(read_entry(None, at))


# -- values and tables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (
            Value("", (1.0, 2.0), (0, 1), "1.0", "0.1", 1.0),
            ("1.50 ± 0.71 (n=2)", "1.0 ± 0.1", "+0.50"),
        ),
        (Value("", (1.25,), (0,), digits=1), ("1.2 (n=1)", "-", "-")),
        (Value("", printed="(k + 1)M"), ("-", "(k + 1)M", "-")),
    ],
)
def test_values_as_text(value: Value, texts: tuple[str, str, str]) -> None:
    assert (value.text(), value.printed_text(), value.difference_text()) == texts


def test_the_table_puts_ours_beside_the_printed(ran: StudyOrder) -> None:
    said = format_table(gather_results(ran)).splitlines()
    assert said[0] == "Tiny"
    assert said[3] == "clean"
    assert said[4].split() == ["ours", "printed", "difference"]
    fedavg = scores(gather_results(ran), "fedavg")
    told = fedavg.difference_text()
    printed = ["90.00", "±", "1.0"]
    assert said[5].split() == ["FedAvg", *fedavg.text().split(), *printed, told]
    rhfl = next(line for line in said if line.startswith("  RHFL"))
    assert rhfl.split() == ["RHFL", "-", "-", "-", "[1]"]
    assert "[1] RHFL is not built" in said
    assert f"[2] {NOT_RUN}" in said
    assert len({len(line) for line in said[4:9] if not line.endswith("]")} - {len(said[4])}) <= 1


def test_scaled_cells_say_what_was_changed(ran: StudyOrder) -> None:
    cell = CellResult(
        {"method": "fedavg", "noise": "clean"},
        {"method": "A", "noise": "B"},
        scaled="rounds 9 -> 1",
        scores={"accuracy": Value("x")},
    )
    said = format_table(StudyResult("tiny", ran.study, [cell], scale=0.1))
    assert said.startswith("Tiny (scaled by 0.1)\n")
    assert "[1] scaled: rounds 9 -> 1" in said


def test_scores_may_go_across(home: Path) -> None:
    two: dict[str, Any] = {
        "scores": {
            "accuracy": {"title": "acc", "percent": True},
            "loss": {"title": "loss", "metric": "test/loss"},
        },
        "table": {"rows": ["method"], "columns": ["noise", "score"]},
    }
    said = format_table(
        gather_results(StudyOrder(study_file(home, two), output=home / "out"))
    ).splitlines()
    assert [line for line in said if line.startswith(("clean", "noisy"))] == [
        "clean, acc",
        "clean, loss",
        "noisy, acc",
        "noisy, loss",
    ]
