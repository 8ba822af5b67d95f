"""A thousand kills: any process of a run, a sweep or a study, and what comes of each.

    python -m tests.reliability.kills --landed 150 --hours 1 --lane 1/2

Every kill has a number, from which its command, method, target and moment are drawn. The tally,
docs/reliability/kills.json, has them all: the drill goes on where it stopped. A kill has landed if
its process was alive and the command not over. What its death ends is started again, as a user
would, until it is over; then models and metrics are those of an undisturbed command, or not. Two
drills may be at work at once, each on its lane of the numbers."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from rayfl.durable import write_file
from rayfl.run.environment import describe_environment
from tests.nodes import born
from tests.reliability.clean_shell import Command
from tests.reliability.desks import ROUNDS, Desk, Kill
from tests.reliability.drills import Comparable, descendants, title_of
from tests.reliability.tally import FOLDER

TALLY = FOLDER / "kills.json"
TITLES = {
    "actor": "ray::ClientActor",
    "coordinator": "ray::Coordinator",
    "keeper": "ray::Keeper",
    "trial": "ray::TrialActor",
    "raylet": "/raylet/raylet ",
    "gcs": "/gcs_server ",
}
"""How the titles of processes begin, or what is in them."""
LIVES = 6
"""How often a command is started before it counts as one that does not come to its end."""
PATIENCE = 240.0


class Executioner:
    """Carries out kills.

    Parameters
    ----------
    folder : Path
        Where desks are; references stay there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.references: dict[tuple[str, str], list[Comparable]] = {}

    def carry_out(self, kill: Kill) -> dict[str, Any]:
        """One kill; its line in the tally."""
        began = time.monotonic()
        wanted = self._refer_to(kill)
        desk = Desk(self.folder / f"kill-{kill.number}", kill)
        with desk.opened("ray"):
            command = desk.start()
            struck = _strike(desk, command, len(wanted) * ROUNDS)
            ended = _see_through(desk, command)
            same = ended and desk.gather() == wanted and desk.is_tracked_whole()
        if same:
            shutil.rmtree(desk.folder, ignore_errors=True)
        return {
            **asdict(kill),
            "landed": struck is not None,
            "at round": struck,
            "starts": desk.starts,
            "outcome": "same" if same else "other" if ended else "no end",
            "seconds": round(time.monotonic() - began, 1),
            "day": time.strftime("%Y-%m-%d"),
            "commit": describe_environment()["commit"],
        }

    def _refer_to(self, kill: Kill) -> list[Comparable]:
        """What the undisturbed command comes to, in one process."""
        if (kill.kind, kill.method) not in self.references:
            # What a sweep comes to is two runs, which a study of them makes in one process.
            command = "study" if kill.kind == "sweep" else kill.kind
            quiet = Kill(-1, command, kill.method, "", 0, 0)
            desk = Desk(self.folder / f"undisturbed-{kill.kind}-{kill.method}", quiet)
            with desk.opened("inline"):
                command_line = desk.start()
                assert command_line.process.wait(PATIENCE) == 0, command_line.text
            self.references[kill.kind, kill.method] = desk.gather()
        return self.references[kill.kind, kill.method]


def _strike(desk: Desk, command: Command, total: int) -> int | None:
    """Kill the process that is meant; at which round it was, or None where it was not met."""
    until = time.monotonic() + PATIENCE
    while desk.count_rounds() < desk.kill.share * total:
        if command.is_over or time.monotonic() > until:
            return None
        time.sleep(0.01)
    time.sleep(desk.kill.delay)
    reached = desk.count_rounds()
    # The last round is noted before the last model is written: that counts as under way.
    if command.is_over:
        return None
    if desk.kill.target == "mlflow server":
        assert desk.server is not None
        desk.server.kill()
        return reached
    pid = _find_target(desk, command)
    if pid is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return reached
    return None


def _find_target(desk: Desk, command: Command) -> int | None:
    """The process that is meant, of this command or of its cluster."""
    kill = desk.kill
    if kill.target == "driver":
        return command.pid
    if kill.target == "worker raylet":
        return None if desk.worker is None else desk.worker.raylet
    below = descendants(command.pid)
    if desk.worker is not None:
        below += [pid for node in _list_nodes() for pid in descendants(node)]
    titled = [pid for pid in below if TITLES[kill.target] in title_of(pid)]
    return random.Random(kill.number).choice(sorted(titled)) if titled else None


def _list_nodes() -> list[int]:
    """The first processes of the nodes by hand, which this process has started."""
    return [pid for pid in descendants(os.getpid()) if "start --block" in title_of(pid)]


def _see_through(desk: Desk, command: Command) -> bool:
    """Start the command again until it is over; whether it came to that."""
    while desk.starts <= LIVES:
        below = {pid: born(pid) for pid in descendants(command.pid)}
        with suppress(subprocess.TimeoutExpired):
            command.process.wait(PATIENCE)
        _clear_away(command, below)
        if command.process.returncode == 0:
            return True
        command = desk.start()
    command.end()
    return False


def _clear_away(command: Command, below: Mapping[int, str]) -> None:
    """Nothing of a command that was killed stays, if Ray has left anything."""
    command.end()
    for pid, start in below.items():
        if start and born(pid) == start:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# -- the tally -------------------------------------------------------------------------------------


@contextmanager
def _hold_tally(tally: Path) -> Iterator[list[dict[str, Any]]]:
    """What was killed so far, for one drill at a time."""
    tally.parent.mkdir(parents=True, exist_ok=True)
    with tally.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(tally.read_text())["details"]["kills"] if tally.exists() else []
        yield known


def read_lines(tally: Path = TALLY) -> list[dict[str, Any]]:
    """What was killed so far."""
    with _hold_tally(tally) as known:
        return known


def add_line(line: Mapping[str, Any], tally: Path = TALLY) -> None:
    """One kill more, and counts by command, method and target."""
    with _hold_tally(tally) as known:
        lines = sorted([*known, line], key=lambda one: one["number"])
        _write_lines(lines, tally)


def _write_lines(lines: Sequence[Mapping[str, Any]], tally: Path) -> None:
    landed = [line for line in lines if line["landed"]]
    counts = {
        key: dict(sorted(Counter(line[key] for line in landed).items()))
        for key in ("command", "method", "target")
    }
    facts = {
        "promise": "kill -9 of any process of a run, sweep or study changes no bit",
        "drill": "make drill",
        "tried": len(landed),
        "survived": sum(line["outcome"] == "same" for line in landed),
        "day": time.strftime("%Y-%m-%d"),
        "machine": describe_environment(),
        "details": {"landed by": counts, "kills": list(lines)},
    }
    write_file(tally, json.dumps(facts, indent=1) + "\n")


def list_lost(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of the kills that landed and changed something."""
    return [line["number"] for line in lines if line["landed"] and line["outcome"] != "same"]


def carry_on(folder: Path, wanted: int, hours: float, lane: str, tally: Path = TALLY) -> None:
    """Kill until so many have landed in all.

    Parameters
    ----------
    folder : Path
        Where desks are.
    wanted : int
        Landed kills, those of earlier days and of other lanes counted.
    hours : float
        None is begun after so many.
    lane : str
        `1/2`: the numbers that are 1 modulo 2.
    tally : Path
        Where the kills are noted.
    """
    own, lanes = map(int, lane.split("/"))
    until = time.monotonic() + 3600 * hours
    executioner = Executioner(folder)
    for number in count(own % lanes, lanes):
        lines = read_lines(tally)
        if sum(line["landed"] for line in lines) >= wanted or time.monotonic() > until:
            return
        if number not in {line["number"] for line in lines}:
            line = executioner.carry_out(Kill.draw(number))
            add_line(line, tally)
            print(json.dumps(line), flush=True)


def main() -> None:
    """Go on with the drill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--landed", type=int, default=1000, help="stop at so many in all")
    parser.add_argument("--hours", type=float, default=1e9, help="begin none after so many")
    parser.add_argument("--lane", default="0/1", help="K/N: every Nth number, from K on")
    told = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kills"))
    carry_on(folder, told.landed, told.hours, told.lane)
    lost = list_lost(read_lines())
    sys.exit(f"not the same after kills {lost}; see {folder}" if lost else 0)


if __name__ == "__main__":
    main()
