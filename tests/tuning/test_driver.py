"""Real searches on Ray Tune."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import rayfl
from rayfl.commands.sweep import sweep_command as command
from rayfl.config.schema import load_config
from rayfl.locks import LockHeldError, take_lock
from rayfl.run.experiment import Interrupted
from rayfl.tracking.store import open_client
from rayfl.tuning import stopping
from rayfl.tuning.book import Book, locate_sweep, read_history, read_lines, read_note
from rayfl.tuning.driver import sweep as run_sweep
from rayfl.tuning.points import config_of, settings_of
from rayfl.tuning.result import (
    SweepResult,
    describe_best,
    format_csv,
    format_table,
    list_rows,
    read_result,
)
from rayfl.tuning.schema import Sweep
from rayfl.tuning.stopping import stop_by_signals
from rayfl.tuning.tune_setup import draw_from_seed
from tests.reliability.drills import descendants, title_of
from tests.tuning.tiny import FEDPROX, sweep_for

PATIENCE = 180.0


def search(sweep: Sweep, resume: bool = False) -> tuple[SweepResult, list[str]]:
    """A search with all that it says."""
    said: list[str] = []
    return run_sweep(sweep, resume=resume, say=said.append), said


def journal(directory: Path, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in read_lines(directory / "journal.jsonl") if entry["kind"] == kind]


def actors() -> dict[int, str]:
    """The processes of trials and their runs that are there; other tests of this process may keep
    some of their own."""
    kinds = (
        "ray::Coordinator",
        "ray::ClientActor",
        "ray::Keeper",
        "ray::TrialActor",
        "ray::ResourceTrainable",
    )
    return {
        pid: title for pid in descendants(os.getpid()) if (title := title_of(pid)).startswith(kinds)
    }


def nested(result: SweepResult) -> tuple[Any, list[Any]]:
    """The sweep's run in MLflow and those below it."""
    output = result.directory.parent.parent
    client = open_client(f"sqlite:///{output / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("rayfl").experiment_id])
    (parent,) = [run for run in found if run.data.tags.get("kind") == "sweep"]
    below = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(below) == len(found) - 1
    return parent, sorted(below, key=lambda run: str(run.data.tags["trial"]))


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, cluster: None) -> SweepResult:
    """Four points with two seeds, two trials at a time."""
    search_space = {"training.lr": {"grid": [0.3, 0.0]}, "method": {"grid": ["fedavg", FEDPROX]}}
    result, said = search(
        sweep_for(tmp_path_factory.mktemp("grid"), search_space, seeds=[0, 1], at_once=2)
    )
    assert said[0] == "tiny: 8 trials, 8 to run, 2 at a time"
    assert sum(" finished " in line for line in said) == 8
    return result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestGrid:
    """A search that nobody disturbs."""

    def test_every_trial_is_a_run_like_any_other(self, grid: SweepResult) -> None:
        assert [(trial.status, trial.rounds) for trial in grid.trials] == [("finished", 4)] * 8
        trial = grid.trials[-1]
        assert trial.directory is not None
        alone = rayfl.run(
            {**settings_of(grid.sweep, trial.values, trial.seed), "tracking": {"enabled": False}}
        )
        assert json.loads((trial.directory / "result.json").read_text())["sha256"] == alone.sha256

    def test_the_best_point_has_the_highest_mean_over_its_seeds(self, grid: SweepResult) -> None:
        assert grid.best is not None
        means = [point.score for point in grid.points]
        assert means == sorted((score for score in means if score is not None), reverse=True)
        finals = [trial.history[-1]["metrics"]["test/accuracy"] for trial in grid.best.trials]
        assert grid.best.score == pytest.approx(np.mean(finals))
        assert grid.best.values["training.lr"] == 0.3

    def test_mlflow_has_nested_runs_and_the_sweep_s_own(self, grid: SweepResult) -> None:
        parent, below = nested(grid)
        assert [run.info.status for run in (parent, *below)] == ["FINISHED"] * 9
        names = [str(run.info.run_name) for run in below]
        assert names[0] == "lr=0.3 method=fedavg s0 tiny-000-s0"
        assert names[2].startswith("lr=0.3 fedprox mu=")
        assert [name.split()[-1] for name in names] == [f"tiny-{each.id}" for each in grid.trials]
        assert (
            "search of training.lr, method for the highest"
            in parent.data.tags["mlflow.note.content"]
        )
        assert {run.data.tags["search/training.lr"] for run in below} == {"0.3", "0.0"}
        assert parent.data.params["search/training.lr"] == "grid [0.3, 0.0]"
        assert grid.best is not None
        assert parent.data.tags["best_point"] == str(grid.best.number)
        assert parent.data.metrics["sweep/best_score"] == pytest.approx(grid.best.score)
        client = open_client(f"sqlite:///{grid.directory.parent.parent / 'mlflow.db'}")
        kept = {item.path for item in client.list_artifacts(parent.info.run_id)}
        assert kept == {"sweep.yaml", "table.csv", "table.json", "best.yaml", "coordinates.png"}

    def test_it_is_read_like_a_result_grid_of_tune(self, grid: SweepResult) -> None:
        assert (len(grid), grid.num_errors, grid.errors, grid.num_terminated) == (8, 0, [], 8)
        assert Path(grid.experiment_path, "sweep.yaml").is_file()
        frame = grid.get_dataframe()
        assert list(frame["trial_id"]) == [trial.id for trial in grid.trials]
        assert set(frame["config/training.lr"]) == {0.3, 0.0}
        best = grid.get_best_result()
        assert grid.best is not None
        assert best.directory == grid.best.trials[0].directory
        assert best.config.training.lr == 0.3
        worst = grid.get_best_result(mode="min")
        assert worst.metrics["test/accuracy"] == frame["test/accuracy"].min()
        tops = grid.get_dataframe(filter_metric="test/accuracy", filter_mode="max")
        assert (tops["test/accuracy"] >= frame["test/accuracy"]).all()
        assert "<pre>" in grid._repr_html_()

    def test_the_best_is_found_again_from_disk_with_a_command_that_runs_it(
        self, grid: SweepResult
    ) -> None:
        file = grid.directory / "sweep.yaml"
        said = CliRunner().invoke(command, [str(file), "--best"], catch_exceptions=False).output
        assert said == f"{format_table(grid)}\n\n{describe_best(grid)}\n"
        words = said.partition("run it again     ")[2].split()
        assert words[:2] == ["rayfl", "run"]
        best = grid.points[0]
        assert load_config(Path(words[2])).digest == config_of(grid.sweep, best.values, 0).digest

    def test_the_table_is_kept_as_csv_and_json(self, grid: SweepResult) -> None:
        assert (grid.directory / "table.csv").read_text() == format_csv(list_rows(grid))
        written = json.loads((grid.directory / "table.json").read_text())
        assert written["points"] == list_rows(grid)
        assert [trial["mlflow_run_id"] for trial in written["trials"]] == [
            run.info.run_id for run in nested(grid)[1]
        ]
        assert (
            (grid.directory / "table.csv")
            .read_text()
            .splitlines()[0]
            .endswith("status,training.lr,method")
        )

    def test_a_sweep_that_has_ended_runs_nothing_again(self, grid: SweepResult) -> None:
        before = {trial.id: (trial.directory, len(trial.history)) for trial in grid.trials}
        again, said = search(grid.sweep, resume=True)
        assert said == ["every trial has ended already"]
        assert {trial.id: (trial.directory, len(trial.history)) for trial in again.trials} == before
        for trial in again.trials:
            assert trial.directory is not None
            assert len(journal(trial.directory, "start")) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_asha_stops_trials_early_and_frees_their_actors(tmp_path: Path, cluster: None) -> None:
    import ray

    before, free = actors().keys(), ray.available_resources()["CPU"]
    settings = {
        "fleet": "ray",
        "resources": {"actors": 2, "keepers": 1},
        "training": {"rounds": 9, "lr": 0.05},
    }
    sweep = sweep_for(
        tmp_path,
        {"training.lr": {"grid": [0.3, 0.0]}},
        set=settings,
        scheduler={"name": "asha", "grace": 2, "reduction": 2},
        at_once=1,
    )
    result, said = search(sweep)
    first, second = result.trials
    assert (first.status, first.rounds) == ("finished", 9)
    assert (second.status, second.noted["by"]) == ("stopped", "asha")
    assert second.rounds < 9
    ran = yaml.safe_load((first.directory / "config.yaml").read_text())["resources"]  # type: ignore[operator]
    assert (ran["actors"], ran["keepers"]) == (2, 1)
    assert any("001-s0  stopped after round 2" in line for line in said)
    _, (_, run) = nested(result)
    assert (run.info.status, run.data.tags["stopped_by"], run.data.tags["stopped_at"]) == (
        "KILLED",
        "asha",
        "2",
    )
    # A process that has ended its actor takes a moment to leave.
    started = time.monotonic()
    while actors().keys() - before and time.monotonic() - started < PATIENCE:
        time.sleep(0.1)
    assert not actors().keys() - before
    assert ray.available_resources()["CPU"] >= free
    assert search(sweep, resume=True)[1] == ["every trial has ended already"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_optuna_is_told_the_mean_over_seeds_and_goes_on_after_a_resume(
    tmp_path: Path, cluster: None
) -> None:
    space = {"training.lr": {"loguniform": [1e-3, 0.5]}, "method": {"choice": ["fedavg", FEDPROX]}}
    common = {
        "searcher": "optuna",
        "seeds": [0, 1],
        "at_once": 2,
        "set": {"training": {"rounds": 2, "lr": 0.1}},
    }
    sweep = sweep_for(tmp_path, space, samples=2, **common)
    result, _ = search(sweep)
    assert [(point.complete, len(point.scores)) for point in result.points] == [(True, 2)] * 2
    book = Book.open(result.directory)
    more = sweep.model_copy(update={"samples": 3})
    # As if it had been stopped before the last point, with one seed of the second one still to run.
    (book.directory / "sweep.yaml").write_text(yaml.safe_dump(more.model_dump(mode="json")))
    lost = book.trials()[-1].directory
    assert lost is not None
    (lost / "result.json").unlink()
    known = [trial.directory for trial in book.trials()]
    result, said = search(more, resume=True)
    assert said[0] == "tiny: 6 trials, 3 to run, 2 at a time"
    assert [trial.directory for trial in result.trials[:4]] == known
    assert result.trials[4].point.values not in [trial.point.values for trial in result.trials[:4]]
    assert len(result.points) == 3
    assert all(point.complete for point in result.points)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_population_takes_over_the_state_of_its_best(tmp_path: Path, cluster: None) -> None:
    sweep = sweep_for(
        tmp_path,
        {"training.lr": {"grid": [0.3, 1e-9]}},
        scheduler={"name": "pbt", "interval": 2, "quantile": 0.5, "resample": 0.0},
        set={"training": {"rounds": 6, "lr": 0.1}},
    )
    result, _ = search(sweep)
    assert [(trial.status, trial.rounds) for trial in result.trials] == [("finished", 6)] * 2
    lives = {life.name: life for trial in result.trials for life in trial.lives}
    origins = {
        name: read_note(life)["from"] for name, life in lives.items() if read_note(life)["from"]
    }
    assert origins, "the worse one was replaced"
    for name, (origin, reached) in origins.items():
        assert reached in (2, 4)
        assert origin.rpartition("-s0")[0] != name.rpartition("-s0")[0]
        own, theirs = read_history(lives[name]), read_history(lives[origin])
        assert [record["metrics"] for record in own[:reached]] == [
            record["metrics"] for record in theirs[:reached]
        ]
    parent, below = nested(result)
    assert [run.info.status for run in (parent, *below)] == ["FINISHED"] * (1 + len(lives))
    assert any("begun_from" in run.data.tags for run in below)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_a_trial_that_fails_is_named_and_the_others_are_run(tmp_path: Path, cluster: None) -> None:
    space = {"method": {"grid": ["fedavg", "tests.reliability.methods:Raising"]}}
    sweep = sweep_for(tmp_path, space, set={"clients": 4}, retries=1, at_once=2)
    result, said = search(sweep)
    assert [trial.status for trial in result.trials] == ["finished", "failed"]
    again = next(line for line in said if "failed and is taken up again (1 of 1)" in line)
    assert "PhaseError: a phase raised on client 3" in again
    assert result.best is not None
    assert result.best.values == {"method": "fedavg"}
    parent, below = nested(result)
    assert [run.info.status for run in (parent, *below)] == ["FAILED", "FINISHED", "FAILED"]
    assert "a phase raised on client 3" in result.trials[1].error


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_trials_that_are_not_told_the_store_s_password_do_not_track_elsewhere(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of a cluster have the environment of their node, not the driver's."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    result, said = search(sweep_for(tmp_path, {"training.lr": {"grid": [0.3]}}))
    assert [trial.status for trial in result.trials] == ["failed"]
    assert "a trial's node has MLFLOW_TRACKING_URI in its environment" in "\n".join(said)
    assert "hunter2" not in "\n".join(said)
    assert not list(tmp_path.glob("runs/*/result.json"))


@pytest.mark.long
def test_a_metric_that_no_run_has_is_named_with_those_there_are(
    tmp_path: Path, cluster: None
) -> None:
    sweep = sweep_for(tmp_path, {"training.lr": {"grid": [0.1]}}, metric="test/acuracy", retries=0)
    result, _ = search(sweep)
    assert [trial.status for trial in result.trials] == ["failed"]
    assert (
        "metric is one that the run measures; got test/acuracy. Measured: "
        in result.trials[0].error
    )
    assert describe_best(result) == "no trial has come to a score yet"
    assert (
        locate_sweep(sweep)
        == result.directory
        == read_result(Book.open(result.directory)).directory
    )


# -- stopping ------------------------------------------------------------------------------------


def interrupted(book: Book, number: int, seconds: float) -> int | None:
    """A search that would take so long, and gets a signal at once; what it heard."""
    with stop_by_signals(book) as stop:
        os.kill(os.getpid(), number)
        time.sleep(seconds)
    return stop.asked


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    """A sweep that was begun, and does not wait for long."""
    monkeypatch.setattr(stopping, "FAREWELL_SECONDS", 0.1)
    return Book.begun(sweep_for(tmp_path, {"training.lr": {"grid": [0.1]}}), resume=False)


def test_sigterm_does_not_wait_for_tune(book: Book) -> None:
    """`ray job stop` gives three seconds, of which Tune alone would take more."""
    known = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in known}
    with pytest.raises(Interrupted, match="SIGTERM") as stopped:
        interrupted(book, signal.SIGTERM, 60)
    assert (stopped.value.number, stopped.value.directory) == (signal.SIGTERM, book.directory)
    assert book.stop_file.exists()
    assert {number: signal.getsignal(number) for number in before} == before


def test_ctrl_c_waits_until_every_trial_has_stopped(book: Book) -> None:
    assert interrupted(book, signal.SIGINT, 0.5) == signal.SIGINT
    assert book.stop_file.exists()


def test_a_second_signal_does_not_wait_for_trials(book: Book) -> None:
    def ask_twice() -> None:
        with stop_by_signals(book):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

    with pytest.raises(Interrupted, match="SIGINT"):
        ask_twice()


def test_while_ray_connects_nothing_is_thrown_into_it(book: Book) -> None:
    done: list[str] = []

    def connect() -> None:
        with stop_by_signals(book) as stop, stop.later():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            done.append("connected")

    with pytest.raises(Interrupted, match="SIGINT"):
        connect()
    assert done == ["connected"]


def test_what_ray_says_of_processes_that_got_the_signal_too_is_no_news(book: Book) -> None:
    def connect() -> None:
        with stop_by_signals(book) as stop, stop.later():
            os.kill(os.getpid(), signal.SIGINT)
            raise OSError("the node timed out")

    with pytest.raises(Interrupted, match="SIGINT"):
        connect()


def test_what_ray_makes_of_a_stop_is_a_stop(book: Book) -> None:
    """Its compiled code raises a SystemError from whatever is raised while it waits."""

    def search() -> None:
        with stop_by_signals(book):
            os.kill(os.getpid(), signal.SIGINT)
            raise SystemError("returned a result with an exception set")

    with pytest.raises(Interrupted, match="SIGINT"):
        search()


def test_nothing_disturbs_the_way_out(book: Book) -> None:
    """While Ray disconnects, SIGTERM is nobody's: the timer must not fire then."""
    heard: list[int] = []

    def leave() -> None:
        with stop_by_signals(book) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                stop.heed()
            finally:
                signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
                time.sleep(0.5)

    with pytest.raises(Interrupted, match="SIGTERM"):
        leave()
    assert heard == []


def test_other_people_s_alarm_is_theirs(book: Book) -> None:
    """pytest-timeout's, say, or one of the program that a sweep is a part of."""
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with stop_by_signals(book) as stop:
            os.kill(os.getpid(), signal.SIGALRM)
            signal.setitimer(signal.ITIMER_REAL, 1000)
            os.kill(os.getpid(), signal.SIGINT)
        assert (heard, stop.asked) == ([signal.SIGALRM], signal.SIGINT)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)


def test_a_sweep_is_run_by_one_process(tmp_path: Path) -> None:
    sweep = sweep_for(tmp_path)
    directory = locate_sweep(sweep)
    for resume in (False, True):
        told = pytest.raises(LockHeldError, match=f"on the sweep tiny .* process {os.getpid()} on")
        with take_lock(directory / "lock", "it"), told:
            run_sweep(sweep, resume=resume)
        assert not (tmp_path / "runs").exists()
        Book.begun(sweep, resume)


def test_a_population_draws_from_a_seed() -> None:
    before = random.getstate()
    drawn = []
    for seed in (4, 4, 5):
        with draw_from_seed(seed):
            drawn.append(random.random())
    assert drawn[0] == drawn[1] != drawn[2]
    assert random.getstate() == before
