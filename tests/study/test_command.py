"""`rayfl study` as a user gives it: plan, question, table, exit code; and a real signal in the
middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rayfl.commands.study import study_command
from rayfl.errors import ConfigError, RayflError
from rayfl.run.store import Shelf
from tests.study.tiny import study_file


def invoke(*words: object) -> Result:
    return CliRunner().invoke(study_command, [str(word) for word in words])


def test_a_study_ends_in_its_table(home: Path) -> None:
    path = study_file(home)
    done = invoke(path, "--only", "noise=clean", "--seeds", "1", "-o", "out", "--quiet")
    assert done.exit_code == 0, done.output
    assert "4 cells (2 to run, 1 not built, 1 computed from others), seeds 0" in done.output
    assert "[1/2] FedAvg, clean, seed 0" in done.output
    assert "90.00 ± 1.0" in done.output
    assert "[1] RHFL is not built" in done.output
    assert (home / "out" / "studies" / "tiny" / "table.txt").read_text() in done.output
    again = invoke(path, "--only", "noise=clean", "--seeds", "1", "-o", "out")
    assert "2 runs are done, 0 are to do" in again.output
    assert "[1/" not in again.output
    assert (
        again.output[again.output.index("Tiny\n====") :]
        == done.output[done.output.index("Tiny\n====") :]
    )


def test_a_plan_runs_nothing(home: Path) -> None:
    done = invoke(study_file(home), "--plan", "-o", "out")
    assert done.exit_code == 0
    assert "8 are to do" in done.output
    assert not (home / "out").exists()


def test_hours_are_not_begun_where_nobody_can_answer(home: Path) -> None:
    path = study_file(home, {"set": {"training": {"rounds": 100_000_000}}})
    done = invoke(path, "--only", "method=fedavg", "--seeds", "1", "-o", "out")
    assert isinstance(done.exception, ConfigError)
    assert "of work are not begun without a word from you. Give --yes" in str(done.exception)


def test_hours_are_asked_about_where_somebody_can(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfl.commands.study.can_ask", lambda: True)
    path = study_file(home, {"set": {"training": {"rounds": 100_000_000}}})
    done = invoke(path, "--only", "method=fedavg", "--seeds", "1", "-o", "out")
    assert "of work? [y/N]" in done.output
    assert done.exit_code == 1
    assert not (home / "out" / "runs").exists()


def test_nothing_that_can_run_is_a_failure(home: Path) -> None:
    done = invoke(study_file(home), "--only", "method=rhfl", "-o", "out")
    assert isinstance(done.exception, RayflError)
    assert "none of these cells can run" in str(done.exception)
    assert "RHFL is not built" in done.output


def test_problems_are_told_first_and_the_rest_is_run(home: Path) -> None:
    gone = {
        "axes": {
            "method": {
                "fedprox": {"set": {"method": "fedprox", "data": "svhn", "data_root": "nowhere"}}
            }
        }
    }
    done = invoke(study_file(home, gone), "--seeds", "1", "-o", "out", "--quiet")
    assert done.exit_code == 0, done.output
    assert done.output.index("left out (2): svhn needs the file") < done.output.index(
        "[1/2] FedAvg"
    )
    assert "[2] svhn needs the file" in done.output or "[1] svhn needs the file" in done.output


def test_a_failure_is_the_exit_code(home: Path) -> None:
    (home / "file").write_text("")
    broken = {"method": "fedprox", "checkpoint": {"uri": str(home / "file" / "x")}}
    path = study_file(home, {"axes": {"method": {"fedprox": {"set": broken}}}})
    done = invoke(path, "--seeds", "1", "--only", "noise=clean", "-o", "out", "--quiet")
    assert done.exit_code == 1
    assert "1 cells failed; the same command tries them again" in done.output
    assert "FedAvg" in done.output[done.output.index("Tiny\n====") :]


def test_overrides_hold_for_every_cell(home: Path) -> None:
    done = invoke(
        study_file(home),
        "training.rounds=1",
        "--only",
        "noise=clean",
        "--seeds",
        "1",
        "-o",
        "out",
        "--quiet",
    )
    assert done.exit_code == 0, done.output
    assert {record.rounds for record in Shelf(home / "out")} == {1}


def test_a_scaled_study_says_so(home: Path) -> None:
    path = study_file(home, {"set": {"clients": 20}})
    done = invoke(
        path, "--only", "method=fedavg", "--seeds", "1", "--scale", "0.5", "-o", "out", "--quiet"
    )
    assert done.exit_code == 0, done.output
    assert "Tiny (scaled by 0.5)" in done.output
    assert "scaled: clients 20 -> 10, clients a round 20 -> 10" in done.output


# -- a real signal ---------------------------------------------------------------------------------

ROUNDS = 25
COMMAND = "import sys; from rayfl.cli import main; main(['study', *sys.argv[1:]])"


def started(path: Path, log: Path) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-c",
        COMMAND,
        str(path),
        "--only",
        "noise=clean",
        "--seeds",
        "1",
        "-o",
        "out",
    ]
    with log.open("wb") as file:
        return subprocess.Popen(words, cwd=path.parent, stdout=file, stderr=subprocess.STDOUT)


def rounds_of(output: Path) -> int:
    """How many rounds the journals of all runs hold."""
    return sum(
        path.read_text().count('"kind": "metrics"') for path in output.glob("runs/*/journal.jsonl")
    )


def slow(folder: Path) -> Path:
    changes: dict[str, Any] = {
        "set": {"training": {"rounds": ROUNDS, "epochs": 20}, "checkpoint": {"min_seconds": 0.0}},
    }
    return study_file(folder, changes)


@pytest.mark.long
def test_a_stopped_study_goes_on_with_the_same_command(home: Path) -> None:
    path, log = slow(home), home / "log.txt"
    process = started(path, log)
    waited = time.monotonic() + 120
    # Into the second run, so that the first must not be repeated.
    while rounds_of(home / "out") < ROUNDS + 5:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < waited, log.read_text()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, log.read_text()
    assert (
        "Go on with the same command:\n  rayfl study tiny.yaml --only noise=clean --seeds 0, -o out"
        in log.read_text()
    )
    runs = {entry.name for entry in (home / "out" / "runs").iterdir()}
    assert len(list(Shelf(home / "out"))) == 1

    process = started(path, log)
    assert process.wait(120) == 0, log.read_text()
    assert "1 runs are done, 1 are to do" in log.read_text()
    assert {entry.name for entry in (home / "out" / "runs").iterdir()} == runs
    for record in Shelf(home / "out"):
        steps = [
            json.loads(line)
            for line in (record.directory / "journal.jsonl").read_text().splitlines()
        ]
        assert [step["step"] for step in steps if step["kind"] == "metrics"] == list(
            range(1, ROUNDS + 1)
        )
