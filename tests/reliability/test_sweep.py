"""Sweeps that nothing can kill: Ctrl-C, a killed driver, a killed trial; every trial ends once,
with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import rayfl
from rayfl.tracking.store import open_client
from tests.reliability.drills import (
    PATIENCE,
    RAYFL,
    ROOT,
    SETTINGS,
    Comparable,
    comparable,
    descendants,
    noted,
    title_of,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
]

ROUNDS = 16
RUN: dict[str, Any] = {
    **SETTINGS,
    "clients": 6,
    "method": {"name": "tests.reliability.methods:Stateful", "pause": 0.03},
    "training": {"rounds": ROUNDS, "clients_per_round": 4, "batch_size": 16},
    "resources": {"cpus_per_client": 0.5, "actors": 1},
}
SWEEP: dict[str, Any] = {
    "name": "drill",
    "search": {"training.lr": {"grid": [0.1, 0.03]}},
    "seeds": [0, 1],
    "at_once": 2,
    "over": "final",
}


class Search:
    """`rayfl sweep`, started in a session of its own, again and again on the same output folder."""

    def __init__(self, desk: Path) -> None:
        self.output, self.file, self.printed = (
            desk / "out",
            desk / "drill.yaml",
            desk / "printed.txt",
        )
        settings = {**RUN, "output": str(self.output), "tracking": {"enabled": True}}
        self.file.write_text(yaml.safe_dump({**SWEEP, "set": settings}))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        with self.printed.open("wb") as stream:
            command = [str(RAYFL), "sweep", str(self.file), *words]
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self.printed.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def runs(self) -> dict[str, Path]:
        """The runs by trial."""
        return {
            path.name.partition("-drill-")[2]: path for path in self.output.glob("runs/*-drill-*")
        }

    def rounds(self) -> dict[str, list[int]]:
        """The rounds that each run has noted."""
        journals = {trial: path / "journal.jsonl" for trial, path in self.runs().items()}
        return {
            trial: [entry["step"] for entry in noted(path) if entry["kind"] == "metrics"]
            for trial, path in journals.items()
            if path.exists()
        }

    def watch(self, seen: Callable[[], bool], what: str) -> None:
        started = time.monotonic()
        while not seen():
            assert self.process is not None
            assert self.process.poll() is None, f"the sweep ended before {what}:\n{self.text}"
            assert time.monotonic() - started < PATIENCE, (
                f"no {what} within {PATIENCE} s:\n{self.text}"
            )
            time.sleep(0.1)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            for pid in [*descendants(self.pid), self.pid]:
                os.kill(pid, signal.SIGKILL)
            self.process.wait(PATIENCE)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    made = Search(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Comparable]:
    """What every trial must come to."""
    output = tmp_path_factory.mktemp("undisturbed")
    found = {}
    for point, lr in enumerate(SWEEP["search"]["training.lr"]["grid"]):
        for seed in SWEEP["seeds"]:
            method = {**RUN["method"], "pause": 0}
            training = {**RUN["training"], "lr": lr}
            settings = {
                **RUN,
                "method": method,
                "training": training,
                "seed": seed,
                "output": str(output),
            }
            found[f"{point:03d}-s{seed}"] = comparable(
                rayfl.run({**settings, "fleet": "inline"}).directory
            )
    return found


def trial_process(search: Search) -> int:
    """An actor that follows a trial."""
    return next(pid for pid in descendants(search.pid) if "Trainable.train" in title_of(pid))


def closed_as(run: Path) -> list[str]:
    """How a run was ended, each time."""
    return [entry["status"] for entry in noted(run / "journal.jsonl") if entry["kind"] == "status"]


def results(search: Search) -> dict[str, int]:
    """When each trial that has ended wrote its result."""
    paths = {trial: path / "result.json" for trial, path in search.runs().items()}
    return {trial: path.stat().st_mtime_ns for trial, path in paths.items() if path.exists()}


@pytest.mark.long
def test_ctrl_c_a_killed_driver_and_a_killed_trial_cost_no_trial_and_run_none_twice(
    search: Search, undisturbed: dict[str, Comparable]
) -> None:
    search.start()
    search.watch(lambda: any(len(rounds) > 2 for rounds in search.rounds().values()), "some rounds")
    os.killpg(search.pid, signal.SIGINT)
    assert search.ended() == 130, search.text
    assert "stopped by SIGINT; go on with the same command and --resume" in search.text
    assert "Traceback" not in search.text
    for trial, rounds in search.rounds().items():
        path = search.runs()[trial]
        saved = sorted(path.glob("checkpoints/round-*.json"))
        assert not rounds or int(saved[-1].stem[6:]) >= rounds[-1], "no finished round is lost"
        assert closed_as(path) == ["FINISHED" if (path / "result.json").exists() else "KILLED"], (
            search.text
        )
    assert [len(rounds) < ROUNDS for rounds in search.rounds().values()].count(True), (
        "it was caught in the middle"
    )

    search.start("--resume")
    search.watch(
        lambda: len(results(search)) >= 2 and len(search.runs()) > 2,
        "two trials to end and a third to begin",
    )
    os.kill(search.pid, signal.SIGKILL)
    assert search.ended() == -signal.SIGKILL
    over = {
        trial: when
        for trial, when in results(search).items()
        if len(search.rounds()[trial]) == ROUNDS
    }

    before = {trial: len(rounds) for trial, rounds in search.rounds().items()}
    search.start("--resume")
    search.watch(
        lambda: any(len(r) > before.get(t, 0) for t, r in search.rounds().items() if t not in over),
        "a round",
    )
    os.kill(trial_process(search), signal.SIGKILL)
    assert search.ended() == 0, search.text
    assert "failed and is taken up again (1 of 2)" in search.text

    assert {trial: comparable(path) for trial, path in search.runs().items()} == undisturbed
    assert search.rounds() == {trial: list(range(1, ROUNDS + 1)) for trial in undisturbed}
    closed = [trial for trial in over if f"{trial}  begins" not in search.text]
    assert {trial: results(search)[trial] for trial in closed} == {
        trial: over[trial] for trial in closed
    }
    assert closed, "what had ended was not begun again"
    assert_nested_once(search)


def assert_nested_once(search: Search) -> None:
    """One run in MLflow for each trial, and the sweep's above them, all of them closed."""
    client = open_client(f"sqlite:///{search.output / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("rayfl").experiment_id])
    assert {run.info.status for run in found} == {"FINISHED"}
    (parent,) = [run for run in found if run.data.tags.get("kind") == "sweep"]
    below = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.data.tags["trial"] for run in below) == sorted(search.runs())
    for run in below:
        points = client.get_metric_history(run.info.run_id, "test/accuracy")
        assert [point.step for point in points] == list(range(1, ROUNDS + 1))
    table = json.loads((search.output / "sweeps" / "drill" / "table.json").read_text())
    assert [trial["status"] for trial in table["trials"]] == ["finished"] * 4


@pytest.mark.alone
@pytest.mark.parametrize("title", ["/raylet/raylet ", "/gcs_server "])
def test_a_sweep_whose_cluster_is_killed_says_so_and_goes_on_when_told(
    search: Search, undisturbed: dict[str, Comparable], title: str
) -> None:
    """Tune would wait for a machine without end; without the gcs Ray would end the process with
    code 1 and words of its own."""
    search.start()
    search.watch(lambda: any(len(rounds) > 2 for rounds in search.rounds().values()), "some rounds")
    (struck,) = [pid for pid in descendants(search.pid) if title in title_of(pid)]
    os.kill(struck, signal.SIGKILL)
    assert search.ended() == 6, search.text
    assert "a sweep's trials have a machine to run on; got no node that is alive" in search.text
    assert "Traceback" not in search.text
    search.start("--resume")
    assert search.ended() == 0, search.text
    assert {trial: comparable(path) for trial, path in search.runs().items()} == undisturbed
