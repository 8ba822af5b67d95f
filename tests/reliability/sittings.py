"""Drills that are tests: each sitting runs its tests and writes what they came to.

    python -m tests.reliability.sittings [NAME ...]

A test that tries something often records how often (`record_property("tried", N)`); any other
counts once."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from tests.reliability.tally import write_tally


class Sitting(NamedTuple):
    """A promise, and the tests that try it."""

    promise: str
    tests: tuple[str, ...]


HERE = "tests/reliability"
SITTINGS = {
    "secrets": Sitting(
        "A secret reaches no disk, screen, parameter, artifact or job, wherever it was planted",
        (f"{HERE}/test_planted_secrets.py",),
    ),
    "hostile_files": Sitting(
        "A file that claims or unpacks to more than it is, or waits, is refused in bounded memory",
        (f"{HERE}/test_hostile_files.py",),
    ),
    "power_loss": Sitting(
        "Power lost at any write costs no finished checkpoint and no bit",
        (f"{HERE}/test_power_loss.py", "tests/run/test_power_loss.py"),
    ),
    "one_writer": Sitting(
        "Of two commands on one run, study or sweep only one writes, and nothing is done twice",
        (f"{HERE}/test_one_writer.py", f"{HERE}/test_two_commands.py"),
    ),
    "sweeps_and_jobs": Sitting(
        "A sweep or job that is stopped or killed goes on, with no trial lost and none run twice",
        (f"{HERE}/test_sweep.py", f"{HERE}/test_job_drill.py"),
    ),
    "bad_clients": Sitting(
        "A client that hangs, crashes, takes all memory or sends what cannot be is named, "
        "and its neighbours are not",
        ("tests/fleet/test_misbehaving.py", "tests/run/test_misbehaving_runs.py"),
    ),
    "robust_aggregation": Sitting(
        "A robust aggregation holds up to its breakdown point, and not beyond",
        ("tests/algorithms/test_robust_aggregation.py", "tests/run/test_hostile_runs.py"),
    ),
    "listening": Sitting(
        "No process of a command listens beyond this machine",
        ("tests/test_listening.py",),
    ),
    "full_disks": Sitting(
        "Killed processes, full disks and damaged checkpoints of a run cost no bit, or are said",
        (f"{HERE}/test_drills.py",),
    ),
}


@dataclass
class Score:
    """What the tests of a sitting came to, as pytest tells it."""

    tried: int = 0
    survived: int = 0
    tests: int = 0
    failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or (report.passed and report.when != "call"):
            return
        often = dict(report.user_properties).get("tried", 1)
        assert isinstance(often, int)
        self.tests += 1
        self.tried += often
        if report.passed:
            self.survived += often
        else:
            self.failed.append(report.nodeid)


def hold(name: str) -> Score:
    """Run the tests of a sitting, long ones included, and write its tally."""
    sitting, score = SITTINGS[name], Score()
    words = [*sitting.tests, "-m", "alone or not alone", "-p", "no:randomly"]
    pytest.main(words, plugins=[score])
    drill = f"python -m tests.reliability.sittings {name}"
    details = {"tests": score.tests, "failed": score.failed, "files": sitting.tests}
    write_tally(name, sitting.promise, drill, score.tried, score.survived, details)
    return score


def main() -> None:
    """Hold the sittings that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SITTINGS))
    names = parser.parse_args().names or list(SITTINGS)
    failed = [test for name in names for test in hold(name).failed]
    sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
