"""Processors are claimed once, by processes that live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl.fleet.host import current_core

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processors are bound on Linux alone"
)

CLAIM = """
import os, sys, time
from rayfl.fleet.host import claim_cores
claimed = claim_cores(int(sys.argv[1]))
print(*claimed, "|", *sorted(os.sched_getaffinity(0)), flush=True)
time.sleep(60)
"""


class Claimant:
    """A process that claims processors and keeps them as long as it lives."""

    def __init__(self, folder: Path, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(count)],
            stdout=subprocess.PIPE,
            text=True,
            # Claims lie in the temporary folder: those of other processes must not count.
            env={**os.environ, "TMPDIR": str(folder)},
        )
        assert self.process.stdout is not None
        claimed, allowed = self.process.stdout.readline().split("|")
        self.claimed, self.allowed = (
            [int(core) for core in part.split()] for part in (claimed, allowed)
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def claimants() -> Iterator[list[Claimant]]:
    alive: list[Claimant] = []
    yield alive
    for claimant in alive:
        claimant.kill()


def test_each_has_its_own_until_there_is_none(tmp_path: Path, claimants: list[Claimant]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    claimants += [Claimant(tmp_path, 1) for _ in cores]
    assert sorted(claimant.claimed[0] for claimant in claimants) == cores
    assert all(claimant.allowed == claimant.claimed for claimant in claimants)
    late = Claimant(tmp_path, 1)
    claimants.append(late)
    assert late.claimed == []
    assert late.allowed == cores


def test_what_a_killed_process_had_is_free_again(tmp_path: Path, claimants: list[Claimant]) -> None:
    first = Claimant(tmp_path, 1)
    first.kill()
    claimants.append(Claimant(tmp_path, 1))
    assert claimants[0].claimed == first.claimed


def test_more_than_there_are_leaves_all_to_others(
    tmp_path: Path, claimants: list[Claimant]
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    claimants += [Claimant(tmp_path, len(cores) + 1), Claimant(tmp_path, len(cores))]
    assert [claimant.claimed for claimant in claimants] == [[], cores]
    assert claimants[0].allowed == cores


def test_the_current_processor_is_the_one_that_a_thread_is_bound_to() -> None:
    before = os.sched_getaffinity(0)
    try:
        for core in before:
            os.sched_setaffinity(0, {core})
            assert current_core() == core
    finally:
        os.sched_setaffinity(0, before)
