"""The pages that are written from the ledger: what they say of print, of methods, and what they
refuse to say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from rayfl.commands.report import report_command
from rayfl.errors import DataError
from rayfl.ledger.ledger import Ledger
from rayfl.report.agreement import measure_gains, measure_orders
from rayfl.report.causes import UNEXPLAINED, read_causes
from rayfl.report.contests import find_contests
from rayfl.report.leaderboard_page import write_leaderboard
from rayfl.report.results_page import write_results
from rayfl.study.order import StudyOrder
from rayfl.study.plan import make_plan
from rayfl.study.recorded import RecordedStudy, list_recorded
from rayfl.study.recording import Recorder
from rayfl.study.result import CellResult
from rayfl.study.runner import run_plan
from rayfl.study.schema import Choice
from tests.report.results import Figures, cell, grid, result
from tests.study.tiny import study_file

CHANGES = {
    "axes": {
        "method": {
            "fedprox2": {"title": "FedProx 2", "set": {"method": {"name": "fedprox", "mu": 2}}},
            "oracle": {"title": "Oracle", "set": {"method": "oracle"}},
        }
    }
}


def invoke(*words: object) -> Result:
    return CliRunner().invoke(report_command, [str(word) for word in words])


def record(figures: Mapping[str, Mapping[str, Figures]], scale: float = 1.0) -> RecordedStudy:
    return RecordedStudy(StudyOrder(Path("x.yaml"), scale=scale), grid(figures), ())


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Four methods on two kinds of labels, two seeds, recorded."""
    home = tmp_path_factory.mktemp("pages")
    order = StudyOrder(study_file(home, CHANGES), output=home / "out")
    ledger = Ledger(home / "results")
    run_plan(make_plan(order), lambda _: None, tell=Recorder(order, ledger).record_run)
    return ledger


# -- beside print ----------------------------------------------------------------------------------


def test_the_order_of_methods_is_compared_over_seeds() -> None:
    found = record({
        "a": {"x": ((3.0, 3.0), 30.0)},
        "b": {"x": ((2.0, 1.0), 20.0)},
        "c": {"x": ((1.0, 2.0), 10.0)},
    })  # fmt: skip
    (order,) = measure_orders(found)
    assert (order.methods, order.seeds, order.refused) == (3, 2, "")
    assert order.tau == pytest.approx(0.8165, abs=1e-4)
    # One seed alone puts b before c, the other c before b.
    assert (order.interval.low, order.interval.high) == pytest.approx((1 / 3, 1.0), abs=0.06)
    assert not order.needs_cause


@pytest.mark.parametrize(
    ("seeds", "methods", "scale", "why"),
    [
        (2, 2, 1.0, "one pair"),
        (1, 3, 1.0, "fewer than two seeds that all methods have"),
        (2, 3, 0.1, "scaled: not comparable"),
    ],
)
def test_an_order_that_says_nothing_is_refused(
    seeds: int, methods: int, scale: float, why: str
) -> None:
    figures = {name: {"x": ((float(place),) * seeds, place)} for place, name in enumerate("abc")}
    (order,) = measure_orders(record(dict(list(figures.items())[:methods]), scale))
    assert order.refused == why
    assert not order.needs_cause


def make_gain(ours: tuple[float, ...], printed: float, scale: float = 1.0) -> RecordedStudy:
    cells: list[CellResult] = [
        cell({"method": "gain", "dataset": "x"}, ours, printed, kind="difference"),
    ]
    made = result(cells)
    made.study.axes["method"]["gain"] = Choice(title="GAIN")
    return RecordedStudy(StudyOrder(Path("x.yaml"), scale=scale), made, ())


@pytest.mark.parametrize(
    ("ours", "printed", "sign", "share", "cause"),
    [
        ((2.0, 2.1), 2.0, "as printed", 1.025, False),
        ((0.5, 0.6), 2.0, "as printed (0 within)", 0.275, True),
        ((-1.0, -1.1), 2.0, "opposite", -0.525, True),
        ((-2.0,), 2.0, "opposite (one seed)", math.nan, False),
        ((-3.0, -3.1), -3.0, "as printed", 3.05 / 3, False),
    ],
)
def test_a_gain_has_a_sign_and_a_share(
    ours: tuple[float, ...], printed: float, sign: str, share: float, cause: bool
) -> None:
    (gain,) = measure_gains(make_gain(ours, printed))
    assert gain.sign == sign
    assert gain.share == pytest.approx(share, nan_ok=True)
    assert gain.needs_cause is cause
    assert gain.share_interval.is_known is (len(ours) > 1)


def test_a_scaled_gain_has_a_sign_alone() -> None:
    (gain,) = measure_gains(make_gain((1.0, 1.1), 2.0, scale=0.1))
    assert gain.sign == "as printed"
    assert math.isnan(gain.share)
    assert not gain.share_interval.is_known


# -- causes ----------------------------------------------------------------------------------------


def test_a_cause_stands_where_it_was_written(ledger: Ledger) -> None:
    study = list_recorded(ledger)[0].result.study
    path = ledger.folder / "causes.yaml"
    path.write_text(yaml.safe_dump({"tiny": {"method=gain;noise=clean": "Too\n short."}}))
    causes = read_causes(ledger.folder, "tiny", study)
    assert causes.find({"noise": "clean", "method": "gain"}) == "Too short."
    assert causes.find({"noise": "noisy", "method": "gain"}) == UNEXPLAINED
    assert read_causes(ledger.folder, "other", study).find({}) == UNEXPLAINED
    path.write_text(yaml.safe_dump({"tiny": {"method=gain;noise=clear": "x"}}))
    with pytest.raises(DataError, match=r"noise=clear.*'clean'"):
        read_causes(ledger.folder, "tiny", study)
    path.unlink()
    assert read_causes(ledger.folder, "tiny", study).find({}) == UNEXPLAINED


# -- pages -----------------------------------------------------------------------------------------


def test_the_results_have_rows_and_commands(ledger: Ledger) -> None:
    page = write_results(ledger, list_recorded(ledger))
    assert "| [Tiny](#tiny) | 16 | 0, 1 | fp32 |" in page
    assert "16 rows of [tiny.csv](../results/tiny.csv)" in page
    value = list_recorded(ledger)[0].result.at(method="fedprox", noise="clean")
    assert value is not None
    assert f"| FedProx | {value.value.text()} |" in page
    assert "rayfl study tiny.yaml --only method=fedprox --only noise=clean" in page
    assert "--ledger none" in page
    # A difference is not run: it has no command of its own.
    assert "method=gain" not in page
    assert UNEXPLAINED in page.split("### Gains")[1]


def write_with_causes(ledger: Ledger, causes: str) -> str:
    """The page, with this beside the rows while it is written."""
    path = ledger.folder / "causes.yaml"
    path.write_text(causes)
    try:
        return write_results(ledger, list_recorded(ledger))
    finally:
        path.unlink()


def test_a_cause_comes_into_the_page(ledger: Ledger) -> None:
    page = write_with_causes(ledger, "tiny: {method=gain;noise=clean: Because of *two* rounds.}\n")
    assert r"Because of \*two\* rounds." in page.split("### Gains")[1]


def test_what_was_found_of_a_figure_without_a_printed_one_comes_below(ledger: Ledger) -> None:
    page = write_with_causes(ledger, "tiny: {noise=clean;method=fedprox: It *starts* late.}\n")
    (found,) = page.split("### What was found of single figures")[1:]
    assert r"- **FedProx, clean.** It \*starts\* late." in found
    assert "### What was found" not in write_results(ledger, list_recorded(ledger))


def test_a_page_is_the_same_every_time(ledger: Ledger) -> None:
    pages = [write_results(ledger, list_recorded(ledger)) for _ in range(2)]
    boards = [write_leaderboard(list_recorded(ledger)) for _ in range(2)]
    assert pages[0] == pages[1]
    assert boards[0] == boards[1]


def test_the_leaderboard_ranks_rivals_and_shows_references(ledger: Ledger) -> None:
    page = write_leaderboard(list_recorded(ledger))
    assert page.count("| FedAvg |") >= 2
    oracle = next(line for line in page.splitlines() if line.startswith("| Oracle (reference) |"))
    assert oracle.split("|")[4].strip() == "-"
    fedavg = next(line for line in page.splitlines() if line.startswith("| FedAvg |"))
    assert fedavg.split("|")[4].strip() in {"1", "1.5", "2", "2.5", "3"}
    assert "%, " in fedavg.split("|")[5]
    guide = page.split("## What to take")[1].split("## Scenarios")[0]
    assert guide.count("- Tiny: ") == 2
    assert "has the highest mean" in guide
    assert "better than FedAvg" in guide or "nothing is shown to beat FedAvg" in guide
    assert "3 pairs of methods met too few times to be tested." in page
    assert "**" not in page


def test_variants_that_look_for_a_cause_are_no_rivals(ledger: Ledger) -> None:
    (found,) = list_recorded(ledger)
    study = found.result.study
    asking = {("cause" if axis == "noise" else axis): each for axis, each in study.axes.items()}
    why = replace(found.result, study=study.model_copy(update={"axes": asking}))
    assert find_contests([found])
    assert find_contests([replace(found, result=why)]) == []


def test_one_seed_has_no_ranks_and_no_advice(ledger: Ledger, tmp_path: Path) -> None:
    study_file(tmp_path, CHANGES)
    one = Ledger(tmp_path / "results")
    one.record([row for row in ledger if row.seed == 0])
    page = write_leaderboard(list_recorded(one))
    assert "one seed, which says nothing of methods" in page
    fedavg = next(line for line in page.splitlines() if line.startswith("| FedAvg |"))
    assert fedavg.split("|")[4].strip() == "-"


def test_pages_of_an_empty_ledger_say_so(tmp_path: Path) -> None:
    empty = Ledger(tmp_path)
    assert "There are no rows yet." in write_results(empty, [])
    assert "There are no rows yet." in write_leaderboard([])


# -- the command -----------------------------------------------------------------------------------


def test_a_clone_shows_each_table_at_once(ledger: Ledger) -> None:
    done = invoke("--recorded", "--ledger", ledger.folder)
    assert done.exit_code == 0, done.output
    assert "Tiny\n====" in done.output
    assert "[fp32; 16 rows]" in done.output
    assert "90.00 ± 1.0" in done.output


def test_pages_are_written_where_they_are_wanted(ledger: Ledger, tmp_path: Path) -> None:
    done = invoke("--recorded", "--ledger", ledger.folder, "-o", tmp_path / "docs")
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "docs").iterdir())
    assert names == ["leaderboard.md", "results.md"]


def test_a_report_reads_the_ledger_and_says_what_it_cannot_draw(
    ledger: Ledger, tmp_path: Path
) -> None:
    path = ledger.root / "tiny.yaml"
    words = (path, "--runs", tmp_path / "none", "--ledger", ledger.folder, "-o", tmp_path / "r")
    done = invoke(*words, "--no-track", "--figures", "curves")
    assert done.exit_code == 0, done.output
    assert "runs       16 in 8 of 12 cells" in done.output
    page = (tmp_path / "r" / "index.html").read_text()
    assert "16 are known by their rows in the ledger; it keeps scores, neither curves" in page
    assert "no run is finished" in page
    assert "(seeds run: none; recorded: 0, 1)" in (tmp_path / "r" / "table.md").read_text()
    assert "in the ledger" in page


def test_a_report_needs_something_to_report() -> None:
    done = invoke()
    assert done.exit_code == 2
    assert "STUDY or EXPERIMENT" in done.output
