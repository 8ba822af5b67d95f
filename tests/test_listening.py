"""What a user's commands listen to: this machine alone, in a shell that knows nothing of Ray."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl.tracking.sqlite_store import prepare_store
from tests.commands import free_ports
from tests.nodes import born, wait_for
from tests.reliability.clean_shell import Command
from tests.reliability.drills import descendants
from tests.sockets import Listener, listeners_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 240.0
RUN: dict[str, Any] = {
    "data": {"name": "blobs", "samples": 120, "test_samples": 60, "classes": 3},
    "clients": 4,
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "tests.reliability.methods:Stateful", "pause": 0.05},
    "training": {"rounds": 100_000, "lr": 0.05},
    "resources": {"actors": 1, "cpus_per_client": 0.5},
    "device": "cpu",
}
SWEEP = {"name": "tiny", "set": RUN, "search": {"training.lr": {"grid": [0.1, 0.2]}}, "at_once": 1}
SCORES = {"s": {"title": "S", "metric": "test/accuracy"}}
METHODS = {"method": {"stateful": {"title": "S"}}}
STUDY = {"title": "T", "set": RUN, "axes": METHODS, "scores": SCORES}
SETTINGS = {"run": RUN, "sweep": SWEEP, "study": STUDY}
SEEN = ("/gcs_server ", "/raylet/raylet ", "DashboardAgent", "RuntimeEnvAgent", "ClientActor")
"""Parts of the names of processes that listen, of which each must have been looked at."""


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Command]:
    """A command of a user's; whatever is left of it ends with the test."""
    command = Command(folder, *words)
    try:
        yield command
    finally:
        command.end()


def watch(command: Command, names: tuple[str, ...]) -> set[Listener]:
    """All that listens until each of these processes was seen to, or the command has ended."""
    found: set[Listener] = set()
    begun = time.monotonic()
    while not command.is_over:
        found |= listeners_of(command.pid)
        if names and all(any(name in each.title for each in found) for name in names):
            return found
        assert time.monotonic() - begun < PATIENCE, command.text
        # To look costs more than what is looked at.
        time.sleep(0.3)
    assert not names, command.text
    return found


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("run", marks=pytest.mark.long),
        pytest.param("sweep", marks=pytest.mark.long),
        pytest.param("study", marks=pytest.mark.long),
    ],
)
def test_a_ray_of_our_own_listens_to_this_machine_alone(tmp_path: Path, kind: str) -> None:
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(SETTINGS[kind]))
    with started(tmp_path, kind, "settings.yaml") as command:
        found = watch(command, SEEN)
    assert [each for each in sorted(found) if not each.loopback] == []
    assert not (tmp_path / "home" / ".ray").exists(), "its token ends with it"
    assert "RAY_AUTH_MODE" not in command.text


@pytest.mark.long
def test_a_report_listens_to_nobody(tmp_path: Path) -> None:
    inline = {**RUN, "fleet": "inline", "training": {"rounds": 1}, "output": "outputs"}
    del inline["resources"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(inline))
    for words in (["run", "run.yaml"], ["report", "rayfl"]):
        with started(tmp_path, *words) as command:
            assert watch(command, ()) == set()
        assert command.process.returncode == 0, command.text


@pytest.mark.long
def test_the_ui_listens_to_this_machine_alone_and_is_stopped_whole(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    prepare_store(tmp_path / "outputs" / "mlflow.db")
    with started(tmp_path, "ui", "--port", str(port)) as command:
        found = watch(command, ("mlflow",))
        time.sleep(1)
        found |= listeners_of(command.pid)
        below = {pid: born(pid) for pid in descendants(command.pid)}
        command.send(signal.SIGINT, group=True)
        assert command.process.wait(PATIENCE) == 130, command.text
    assert {each.port for each in found} >= {port}
    assert [each for each in sorted(found) if not each.loopback] == []
    assert "stopped by SIGINT\n" in command.text
    assert "Traceback" not in command.text
    # What was killed is buried by somebody else, a moment later.
    wait_for(lambda: not any(start and born(pid) == start for pid, start in below.items()), "end")
