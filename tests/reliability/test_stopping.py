"""Told to stop, every command ends in good order: on a machine that is busy, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.reliability.drills import RAYFL, Drill

pytestmark = pytest.mark.slow

BUSY = "import time\nwhile True: pass"


@contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """Others compute meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def check_stopped(drill: Drill, number: signal.Signals, group: bool = False) -> None:
    """Its code, its checkpoint, one sentence and no stack."""
    drill.await_round(2)
    (os.killpg if group else os.kill)(drill.process.pid, number)
    assert drill.ended() == 128 + number, drill.text
    name = drill.directory.name
    said = f"stopped by {number.name}; go on with the same command and --resume {name}"
    assert said in drill.text
    assert "***" not in drill.text, "Ray's own handler prints a stack"
    assert "Traceback" not in drill.text
    saved = sorted((drill.directory / "checkpoints").glob("round-*.json"))
    assert int(saved[-1].stem[6:]) >= drill.reached()


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "group"),
    [
        (signal.SIGTERM, True),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.alone),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.alone),
    ],
)
def test_a_run_on_ray_is_stopped_beside_four_busy_processes(
    number: signal.Signals, group: bool, tmp_path: Path
) -> None:
    """Also by `timeout` and by Slurm, which send the signal to the group."""
    rare = "checkpoint.min_seconds=1000"
    drill = Drill(tmp_path, "method.pause=0.03", rare, "training.rounds=500")
    try:
        with busy_machine(4):
            check_stopped(drill, number, group)
    finally:
        drill.end()


@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_so_it_is_eight_times(tmp_path: Path) -> None:
    rare = "checkpoint.min_seconds=1000"
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        drill = Drill(folder, "method.pause=0.03", rare, "training.rounds=500")
        try:
            with busy_machine(4):
                check_stopped(drill, signal.SIGTERM)
        finally:
            drill.end()


SLOW_METHOD = """
import time
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["run", "config", "scenario build -o out"])
def test_a_command_that_has_not_begun_anything_is_stopped_too(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    """While the configuration is validated, which imports the method."""
    (tmp_path / "slow_to_import.py").write_text(SLOW_METHOD)
    config = {"method": "slow_to_import:Method", "fleet": "inline"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    words = [str(RAYFL), *command.split(), "mine.yaml"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)  # into the sleep
        process.send_signal(number)
        _, said = process.communicate()
    assert (process.returncode, said) == (128 + number, f"stopped by {number.name}\n")
