"""A run that somebody computes is nobody else's: three that go on at once are three runs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.reliability.drills import Drill, comparable, noted

pytestmark = pytest.mark.slow

Start = Callable[..., Drill]
LONG = ("fleet=inline", "method.pause=0.1")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    drills: list[Drill] = []

    def started(*arguments: str) -> Drill:
        desk = tmp_path / str(len(drills))
        desk.mkdir()
        drills.append(Drill(desk, *LONG, *arguments, output=tmp_path / "out"))
        return drills[-1]

    yield started
    for drill in drills:
        drill.end()


def steps(run: Path) -> list[int]:
    entries = noted(run / "journal.jsonl")
    return [entry["step"] for entry in entries if entry["kind"] == "metrics"]


def own_run(drill: Drill) -> Path:
    """The run that a drill says it has worked on."""
    found = re.search(r"^run +(\S+)$", drill.text, re.MULTILINE)
    assert found is not None, drill.text
    return Path(found[1])


@pytest.mark.alone
def test_two_that_go_on_beside_a_live_run_begin_runs_of_their_own(start: Start) -> None:
    live = start()
    live.await_round(2)
    others = [start("--resume", "auto") for _ in range(2)]
    drills = [live, *others]
    assert [drill.ended() for drill in drills] == [0, 0, 0], [drill.text for drill in drills]
    runs = {own_run(drill) for drill in drills}
    assert len(runs) == 3
    assert all(steps(run) == list(range(1, 25)) for run in runs)
    assert len({comparable(run)[0] for run in runs}) == 1
    assert all(" is passed over: process " in drill.text for drill in others)


@pytest.mark.long
def test_two_that_go_on_with_a_dead_run_share_it_out(start: Start) -> None:
    dead = start()
    dead.await_round(2)
    name = dead.directory.name
    os.kill(dead.process.pid, signal.SIGKILL)
    dead.ended()
    others = [start("--resume", "auto") for _ in range(2)]
    assert [other.ended() for other in others] == [0, 0], [other.text for other in others]
    runs = {own_run(other) for other in others}
    assert len(runs) == 2
    assert name in {run.name for run in runs}
    assert all(steps(run) == list(range(1, 25)) for run in runs)


def test_a_live_run_that_is_named_is_refused_and_unharmed(start: Start) -> None:
    live = start()
    live.await_round(2)
    other = start("--resume", live.directory.name)
    assert other.ended() == 5, other.text
    rule = rf"works on the run {live.directory.name}; got one that is held by process "
    assert re.search(rule + str(live.process.pid), other.text), other.text
    assert live.ended() == 0, live.text
    assert steps(live.directory) == list(range(1, 25))
