"""A thousand kills: any process of a run, a sweep or a study, and what comes of each.

    python -m tests.reliability.kills --landed 150 --hours 1 --lane 1/2

A sortie is a command that meets three kills, one after another. It has a number, from which its
command, method, targets and moments are drawn. The tally, docs/reliability/kills.json, has them
all: the drill goes on where it stopped. A kill has landed if its process was alive and the command
not over. What a death ends is started again, as a user would, until it is over; then models and
metrics are those of an undisturbed command, or not. Several drills may be at work at once, each on
its lane of the numbers."""

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
from tests.reliability.desks import ROUNDS, Desk, Kill, Sortie
from tests.reliability.drills import Comparable, descendants, title_of
from tests.reliability.tally import FOLDER

TALLY = FOLDER / "kills.json"
TITLES = {
    "actor": "ray::ClientActor",
    "coordinator": "ray::Coordinator",
    "keeper": "ray::Keeper",
    "trial": "ray::ResourceTrainable",
    "raylet": "/raylet/raylet ",
    "gcs": "/gcs_server ",
}
"""How the titles of processes begin, or what is in them."""
LIVES = 6
"""How often a command is started before it counts as one that does not come to its end."""
PATIENCE = 240.0


class Executioner:
    """Carries out sorties.

    Parameters
    ----------
    folder : Path
        Where desks are; references stay there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.references: dict[tuple[str, str], list[Comparable]] = {}

    def carry_out(self, sortie: Sortie) -> list[dict[str, Any]]:
        """All kills of a sortie; their lines in the tally."""
        began = time.monotonic()
        wanted = self.refer_to(sortie)
        desk = Desk(self.folder / f"sortie-{sortie.number}", sortie)
        with desk.opened("ray"):
            life = Life(desk)
            struck = [life.strike(kill, len(wanted) * ROUNDS) for kill in sortie.kills]
            ended = life.see_through()
            same = ended and desk.gather() == wanted and desk.is_tracked_whole()
        if same:
            shutil.rmtree(desk.folder, ignore_errors=True)
        shared = {
            "starts": desk.starts,
            "outcome": "same" if same else "other" if ended else "no end",
            "seconds": round(time.monotonic() - began, 1),
            "day": time.strftime("%Y-%m-%d"),
            "commit": describe_environment()["commit"],
        }
        return [
            {
                "number": sortie.number,
                "command": sortie.command,
                "method": sortie.method,
                **asdict(kill),
                "landed": reached is not None,
                "at round": reached,
                **shared,
            }
            for kill, reached in zip(sortie.kills, struck, strict=True)
        ]

    def refer_to(self, sortie: Sortie) -> list[Comparable]:
        """What the undisturbed command comes to, in one process."""
        kind, method = sortie.kind, sortie.method
        if (kind, method) not in self.references:
            # What a sweep comes to is two runs, which a study of them makes in one process.
            quiet = Sortie(-1, "study" if kind == "sweep" else kind, method)
            desk = Desk(self.folder / f"undisturbed-{kind}-{method}", quiet)
            with desk.opened("inline"):
                command = desk.start()
                assert command.process.wait(PATIENCE) == 0, command.text
            self.references[kind, method] = desk.gather()
        return self.references[kind, method]


class Life:
    """A desk's command, which is started again whenever it has died.

    Parameters
    ----------
    desk : Desk
        An open one.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.command = desk.start()
        self._below: dict[int, str] = {}

    def strike(self, kill: Kill, total: int) -> int | None:
        """Kill the process that is meant; at which round it was, or None where it was not met.

        Parameters
        ----------
        kill : Kill
            Which, and when.
        total : int
            How many rounds the command has in all.
        """
        until = time.monotonic() + PATIENCE
        while self.desk.count_rounds() < kill.share * total:
            if not self._go_on() or time.monotonic() > until:
                return None
            time.sleep(0.02)
        time.sleep(kill.delay)
        reached = self.desk.count_rounds()
        self._note_below()
        # The last round is noted before the last model is written: that counts as under way.
        return reached if self._go_on() and self._hit(kill) else None

    def see_through(self) -> bool:
        """Start the command again until it is over; whether it came to that."""
        while self._go_on():
            self._note_below()
            with suppress(subprocess.TimeoutExpired):
                self.command.process.wait(PATIENCE)
        self._clear_away()
        return self.command.process.returncode == 0

    def _go_on(self) -> bool:
        """Whether the command is not over yet; one that has died is started again."""
        if not self.command.is_over:
            return True
        if self.command.process.returncode == 0 or self.desk.starts > LIVES:
            return False
        self._clear_away()
        self.command = self.desk.start()
        return True

    def _note_below(self) -> None:
        self._below.update({pid: born(pid) for pid in descendants(self.command.pid)})

    def _clear_away(self) -> None:
        """Nothing of a command that was killed stays, if Ray has left anything."""
        self.command.end()
        for pid, start in self._below.items():
            if start and born(pid) == start:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._below.clear()

    def _hit(self, kill: Kill) -> bool:
        """Whether the process that is meant was there to be killed."""
        if kill.target == "mlflow server":
            server = self.desk.server
            alive = server is not None and server.process is not None
            if alive and server is not None:
                server.kill()
            return alive
        pid = self._find(kill)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def _find(self, kill: Kill) -> int | None:
        """The process that is meant, of this command or of its cluster."""
        if kill.target == "driver":
            return self.command.pid
        worker = self.desk.worker
        if kill.target == "worker raylet":
            return None if worker is None else worker.find_raylet()
        below = descendants(self.command.pid)
        if worker is not None:
            below += [pid for node in _list_nodes() for pid in descendants(node)]
        titled = [pid for pid in below if TITLES[kill.target] in title_of(pid)]
        return random.Random(kill.share).choice(sorted(titled)) if titled else None


def _list_nodes() -> list[int]:
    """The first processes of the nodes by hand, which this process has started."""
    return [pid for pid in descendants(os.getpid()) if "start --block" in title_of(pid)]


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


def add_lines(lines: Sequence[Mapping[str, Any]], tally: Path = TALLY) -> None:
    """A sortie more, and counts by command, method and target."""
    with _hold_tally(tally) as known:
        # Those of one sortie stay in their order.
        _write_lines(sorted([*known, *lines], key=lambda one: one["number"]), tally)


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
            done = executioner.carry_out(Sortie.draw(number))
            add_lines(done, tally)
            print(*map(json.dumps, done), sep="\n", flush=True)


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
