"""What a study records, what it then need not run, and what a clone without runs shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rayfl.commands.study import study_command
from rayfl.errors import ConfigError
from rayfl.ledger.ledger import Ledger
from rayfl.run.environment import cpu_capability, describe_environment
from rayfl.run.store import Shelf
from rayfl.study.gather import gather_recorded, gather_results
from rayfl.study.order import StudyOrder
from rayfl.study.plan import make_plan
from rayfl.study.recorded import list_recorded
from rayfl.study.recording import Recorder, is_decisive
from rayfl.study.runner import run_plan
from rayfl.study.text_table import format_table
from tests.study.tiny import study_file

ONLY = ("noise=clean",)


def invoke(*words: object) -> Result:
    return CliRunner().invoke(study_command, [str(word) for word in words])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> StudyOrder:
    """The clean cells of the tiny study, run into `out` and recorded into `results` beside."""
    home = tmp_path_factory.mktemp("recorded")
    order = StudyOrder(study_file(home), only=ONLY, output=home / "out")
    recorder = Recorder(order, Ledger(home / "results"))
    run_plan(make_plan(order), lambda _: None, tell=recorder.record_run)
    return order


@pytest.fixture
def ledger(recorded: StudyOrder) -> Ledger:
    return Ledger(recorded.path.parent / "results")


def test_every_run_is_recorded_as_it_ends(recorded: StudyOrder, ledger: Ledger) -> None:
    assert len(list(ledger)) == 4
    record = next(iter(Shelf(recorded.folder)))
    row = ledger.find(record.digest, record.rounds)
    assert row is not None
    assert (row.model, row.scenario) == (record.sha256, record.scenario)
    assert row.scores == {
        "test/accuracy:best": pytest.approx(record.score("test/accuracy", "best")),
        "test/accuracy:final": pytest.approx(record.score("test/accuracy", "final")),
        "test/accuracy:last10": pytest.approx(record.score("test/accuracy")),
    }
    assert row.forward > 0
    assert row.down_mb == pytest.approx(record.total("cost/down_mb"))
    here = {**describe_environment(), "capability": cpu_capability()}
    assert dict(row.environment) == {**here, "commit": row.environment["commit"]}
    assert (row.file, row.precision, row.grade) == ("tiny.yaml", "fp32", ("fp32", 1.0))


def test_a_row_has_the_command_that_repeats_it(ledger: Ledger, home: Path) -> None:
    row = next(row for row in ledger if row.axes["method"] == "fedprox" and row.seed == 1)
    assert row.command == (
        "rayfl study tiny.yaml --only method=fedprox --only noise=clean --seeds 1, --ledger none"
    )
    study_file(home)
    done = invoke(*shlex.split(row.command)[2:], "-o", "out", "--quiet")
    assert done.exit_code == 0, done.output
    (again,) = Shelf(home / "out")
    assert (again.digest, again.sha256) == (row.digest, row.model)


def test_recording_from_the_store_runs_nothing_and_changes_nothing(
    recorded: StudyOrder, ledger: Ledger
) -> None:
    before = (ledger.folder / "tiny.csv").read_bytes()
    words = (recorded.path, "--only", *ONLY, "-o", recorded.folder)
    done = invoke(*words, "--plan", "--record", "--ledger", ledger.folder)
    assert done.exit_code == 0, done.output
    assert "results: 0 new, 0 replaced, 4 there already" in done.output
    assert (ledger.folder / "tiny.csv").read_bytes() == before


def test_what_is_recorded_is_not_run_again(recorded: StudyOrder, ledger: Ledger) -> None:
    elsewhere = recorded.path.parent / "elsewhere"
    words = (recorded.path, "--only", *ONLY, "-o", elsewhere, "--quiet")
    done = invoke(*words, "--ledger", ledger.folder)
    assert done.exit_code == 0, done.output
    assert "4 runs are done (4 of them recorded in the ledger), 0 are to do" in done.output
    assert not (elsewhere / "runs").exists()
    here = gather_results(recorded)
    assert format_table(here) in done.output
    fresh = invoke(*words, "--ledger", "none", "--plan")
    assert "0 runs are done, 4 are to do" in fresh.output


def test_another_scenario_is_another_run(
    recorded: StudyOrder, ledger: Ledger, tmp_path: Path
) -> None:
    text = (ledger.folder / "tiny.csv").read_text()
    scenario = next(iter(ledger)).scenario
    (tmp_path / "tiny.csv").write_text(text.replace(scenario, "0" * 64))
    order = StudyOrder(recorded.path, only=ONLY, output=tmp_path / "out")
    plan = make_plan(order, ledger=Ledger(tmp_path))
    assert 0 < len(plan.todo) < 4


def test_rows_stand_for_runs_in_a_result(recorded: StudyOrder, ledger: Ledger) -> None:
    ours, theirs = gather_results(recorded), gather_recorded(recorded, ledger)
    for mine, other in zip(ours.cells, theirs.cells, strict=True):
        assert mine.value.text() == other.value.text()
        assert mine.value.seeds == other.value.seeds
        assert mine.missing == other.missing
    fedavg = theirs.at(method="fedavg", noise="clean")
    assert fedavg is not None
    assert (list(fedavg.rows), list(fedavg.records), list(fedavg.made)) == ([0, 1], [], [0, 1])


def test_a_row_without_a_score_is_recorded_anew(
    recorded: StudyOrder, ledger: Ledger, tmp_path: Path
) -> None:
    more = {"scores": {"loss": {"title": "loss", "metric": "test/loss", "lower_is_better": True}}}
    path = study_file(tmp_path, more)
    wider = StudyOrder(path, only=ONLY, output=recorded.folder)
    fresh = StudyOrder(path, only=ONLY, output=path.parent / "none")
    assert len(make_plan(fresh, ledger=ledger).todo) == 4
    plan = make_plan(wider, ledger=ledger)
    assert plan.todo == []
    copy = Ledger(path.parent / "results")
    assert copy.record(list(ledger)).new == 4
    assert Recorder(wider, copy).record_plan(plan).new == 0
    assert {name for row in copy for name in row.scores} >= {"test/loss:least", "test/loss:final"}
    assert make_plan(fresh, ledger=copy).todo == []


def test_another_study_takes_over_the_rows_that_it_shares(
    recorded: StudyOrder, ledger: Ledger, tmp_path: Path
) -> None:
    same = (recorded.path).read_text().replace("title: Tiny", "title: Other")
    (tmp_path / "other.yaml").write_text(same)
    (tmp_path / "printed.csv").write_text((recorded.path.parent / "printed.csv").read_text())
    copy = Ledger(tmp_path / "results")
    copy.record(list(ledger))
    order = StudyOrder(tmp_path / "other.yaml", only=ONLY, output=tmp_path / "out")
    plan = make_plan(order, ledger=copy)
    assert plan.todo == []
    assert Recorder(order, copy).record_plan(plan).new == 4
    rows = copy.of_study("other")
    assert {row.file for row in rows} == {"other.yaml"}
    assert all(row.command.startswith("rayfl study other.yaml ") for row in rows)
    assert {row.model for row in rows} == {row.model for row in ledger}


def test_a_run_of_an_earlier_version_is_recorded_with_what_its_tracking_said(
    recorded: StudyOrder, ledger: Ledger, tmp_path: Path
) -> None:
    (path, *_) = sorted(recorded.folder.glob("runs/*/run.json"))
    facts = json.loads(path.read_text())
    here = describe_environment()
    tags = {"git": "0123abc", **{name: here[name] for name in ("python", "numpy", "torch", "host")}}
    path.write_text(json.dumps({key: facts[key] for key in ("digest", "scenario")}))
    journal = path.parent / "journal.jsonl"
    before = journal.read_text() if journal.exists() else None
    try:
        journal.write_text(json.dumps({"kind": "start", "tags": tags}) + "\n")
        copy = Ledger(tmp_path)
        Recorder(recorded, copy).record_plan(make_plan(recorded))
        row = copy.find(facts["digest"], 2)
        assert row is not None
        assert row.environment["commit"] == "0123abc"
        assert row.environment["capability"] == cpu_capability()
    finally:
        path.write_text(json.dumps(facts))
        journal.unlink() if before is None else journal.write_text(before)


def test_tables_of_different_scale_and_settings_are_apart(
    recorded: StudyOrder, ledger: Ledger, tmp_path: Path
) -> None:
    study_file(tmp_path)
    copy = Ledger(tmp_path / "results")
    copy.record(list(ledger))
    bf16 = StudyOrder(
        tmp_path / "tiny.yaml",
        only=(*ONLY, "method=fedavg"),
        seeds=(0,),
        output=tmp_path / "out",
        overrides=("training.precision=bf16", "fleet=inline"),
    )
    run_plan(make_plan(bf16), lambda _: None, tell=Recorder(bf16, copy).record_run)
    tables = list_recorded(copy)
    assert [table.grade for table in tables] == ["fp32", "bf16, training.precision=bf16"]
    assert [len(table.rows) for table in tables] == [4, 1]
    assert [table.is_comparable for table in tables] == [True, False]
    assert all({row.grade for row in table.rows} == {table.rows[0].grade} for table in tables)


def test_rows_of_settings_that_have_changed_stand_aside(ledger: Ledger, tmp_path: Path) -> None:
    study_file(tmp_path, {"set": {"training": {"lr": 0.2}}})
    copy = Ledger(tmp_path / "results")
    copy.record(list(ledger))
    assert list_recorded(copy) == []


@pytest.mark.parametrize(
    ("override", "decides"),
    [("fleet=inline", False), ("tracking.enabled=false", False), ("training.lr=1", True)],
)
def test_only_what_decides_a_result_is_kept_of_overrides(override: str, decides: bool) -> None:
    assert is_decisive(override) is decides


def test_a_ledger_is_needed_to_record(home: Path) -> None:
    done = invoke(study_file(home), "--record", "--plan", "-o", "out")
    if (home / ".git").exists() or any((top / ".git").exists() for top in home.parents):
        pytest.skip("temporary folders lie in a checkout here")
    assert isinstance(done.exception, ConfigError)
    assert "Name one: --ledger results." in str(done.exception)


def test_without_a_ledger_nothing_is_missing(home: Path) -> None:
    done = invoke(study_file(home), "--plan", "-o", "out")
    assert done.exit_code == 0, done.output
    assert "0 runs are done, 8 are to do" in done.output
