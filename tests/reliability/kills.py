"""A thousand kills: any process of a run, a sweep or a study, and what comes of each.

    python -m tests.reliability.kills --landed 150 --hours 1

Every kill has a number, from which its command, method, target and moment are drawn. The tally,
docs/reliability/kills.json, has them all: the drill goes on where it stopped. A kill has landed if
its process was alive and the command not over. What its death ends is started again, as a user
would, until it is over; then models and metrics are those of an undisturbed command, or not."""

from __future__ import annotations

import argparse
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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from rayfl.config.files import merge_settings
from rayfl.durable import write_file
from rayfl.run.environment import describe_environment
from rayfl.testing import TOY
from tests.algorithms.conformance import iterate_rows
from tests.nodes import Node, born, head_node, worker_node
from tests.reliability.clean_shell import Command
from tests.reliability.drills import Comparable, comparable, descendants, noted, title_of
from tests.reliability.tally import FOLDER

TALLY = FOLDER / "kills.json"
SEED = 1
METHODS = (
    "fedavg",
    "fedprox",
    "scaffold",
    "moon",
    "fedds",
    "fedrn",
    "co_teaching",
    "fb_nll",
    "fedcorr",
    "semifl",
)
TITLES = {
    "actor": "ray::ClientActor",
    "coordinator": "ray::Coordinator",
    "trial": "ray::TrialActor",
    "raylet": "/raylet/raylet ",
    "gcs": "/gcs_server ",
}
"""How the titles of processes begin, or what is in them."""
RUN = ("actor", "coordinator", "driver", "raylet", "gcs")
TARGETS: Mapping[str, Sequence[str]] = {
    "run": (*RUN, *RUN),
    "two nodes": ("actor", "coordinator", "driver", "worker raylet"),
    "sweep": ("trial", "driver", "raylet", "gcs"),
    "study": ("actor", "coordinator", "driver", "raylet"),
}
"""Of each kind of command, the processes that are killed; those named twice twice as often."""
LIVES = 6
"""How often a command is started before it counts as one that does not come to its end."""
PATIENCE = 240.0
ROUNDS = 40


@dataclass(frozen=True)
class Kill:
    """What is killed, and when."""

    number: int
    command: str
    method: str
    target: str
    share: float
    """Of the command's rounds, after which the process is looked for."""
    delay: float
    """Seconds after that."""

    @classmethod
    def draw(cls, number: int) -> Kill:
        """The kill of this number."""
        rng = random.Random(SEED * 1_000_003 + number)
        command = rng.choice(list(TARGETS))
        method = rng.choice(METHODS)
        target = rng.choice(TARGETS[command])
        return cls(number, command, method, target, rng.uniform(0, 0.9), rng.uniform(0, 0.3))


class Desk:
    """A folder in which one command is run, killed, and run again.

    Parameters
    ----------
    folder : Path
        Where everything of it lies.
    kill : Kill
        Says which command of which method.
    fleet : str
        `inline` for the undisturbed one.
    """

    def __init__(self, folder: Path, kill: Kill, fleet: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.kill = kill
        for name, content in _list_files(kill, fleet).items():
            (folder / name).write_text(yaml.safe_dump(content))
        self.starts = 0
        self.address: str | None = None

    def start(self) -> Command:
        """The command, for the first time or once more."""
        words = {
            "sweep": ["sweep", "sweep.yaml", *(["--resume"] if self._has_begun() else [])],
            "study": ["study", "study.yaml", "-o", "out", "--ledger", "none", "--yes"],
        }.get(self.kill.command, ["run", "run.yaml", "--resume", "auto"])
        self.starts += 1
        there = [] if self.address is None else ["--address", self.address]
        return Command(self.folder, *words, *there)

    def _has_begun(self) -> bool:
        return any(self.folder.glob("out/sweeps/*/sweep.yaml"))

    def count_rounds(self) -> int:
        """How many rounds all runs of the command have noted."""
        journals = self.folder.glob("out/**/journal.jsonl")
        kinds = [entry["kind"] for journal in journals for entry in noted(journal)]
        return kinds.count("metrics")

    def gather(self) -> list[Comparable]:
        """Models and metrics of all runs, in an order that does not depend on when they ran."""
        found = [comparable(path.parent) for path in self.folder.glob("out/**/result.json")]
        return sorted(found, key=lambda one: one[0])


def _list_files(kill: Kill, fleet: str) -> dict[str, Any]:
    """The configurations of a desk."""
    row = next(row for row in iterate_rows() if row.name == kill.method)
    run = merge_settings(merge_settings(TOY, row.config), {"method": dict(row.method)})
    places = {"resources": {"actors": 2, "cpus_per_client": 0.5}, "device": "cpu"}
    own = {"training": {"rounds": ROUNDS}, "fleet": fleet, "output": "out", "data_root": "."}
    run = merge_settings(run, {**places, **own})
    sweep = {
        "name": "kills",
        "set": run,
        "search": {"training.lr": {"grid": [0.1, 0.2]}},
        "over": "final",
        "at_once": 2,
    }
    study = {
        "title": "Kills",
        "set": run,
        "axes": {
            "lr": {f"lr{lr}": {"title": f"{lr}", "set": {"training.lr": lr}} for lr in (0.1, 0.2)}
        },
        "scores": {"s": {"title": "S", "metric": "test/accuracy"}},
        "table": {"rows": ["lr"], "columns": ["score"]},
        "seeds": [0],
    }
    return {"run.yaml": run, "sweep.yaml": sweep, "study.yaml": study}


class Executioner:
    """Carries out kills.

    Parameters
    ----------
    folder : Path
        Where desks are; references stay there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._references: dict[tuple[str, str], list[Comparable]] = {}

    def carry_out(self, kill: Kill) -> dict[str, Any]:
        """One kill; its line in the tally."""
        began = time.monotonic()
        wanted = self._refer_to(kill)
        desk = Desk(self.folder / f"kill-{kill.number}", kill, "ray")
        with ExitStack() as cluster:
            worker = self._open_cluster(desk, cluster)
            command = desk.start()
            total = len(wanted) * ROUNDS
            struck = _strike(desk, command, kill, total, worker)
            ended = _see_through(desk, command)
        same = ended and desk.gather() == wanted
        line = {
            **asdict(kill),
            "landed": struck is not None,
            "at round": struck,
            "starts": desk.starts,
            "outcome": "same" if same else "other" if ended else "no end",
            "seconds": round(time.monotonic() - began, 1),
            "day": time.strftime("%Y-%m-%d"),
            "commit": describe_environment()["commit"],
        }
        if same:
            shutil.rmtree(desk.folder, ignore_errors=True)
        return line

    def _refer_to(self, kill: Kill) -> list[Comparable]:
        """What the undisturbed command comes to, in one process."""
        kind = "run" if kill.command == "two nodes" else kill.command
        if (kind, kill.method) not in self._references:
            # What a sweep comes to is two runs, which a study of them makes in one process.
            command = "study" if kind == "sweep" else kind
            quiet = Kill(-1, command, kill.method, "", 0, 0)
            desk = Desk(self.folder / f"undisturbed-{kind}-{kill.method}", quiet, "inline")
            command_line = desk.start()
            assert command_line.process.wait(PATIENCE) == 0, command_line.text
            self._references[kind, kill.method] = desk.gather()
        return self._references[kind, kill.method]

    def _open_cluster(self, desk: Desk, cluster: ExitStack) -> Node | None:
        """Two nodes by hand, where the command wants them: the head has no room for actors."""
        if desk.kill.command != "two nodes":
            return None
        _, desk.address, folder = cluster.enter_context(head_node("--num-cpus", "1"))
        return cluster.enter_context(worker_node(desk.address, folder, "--num-cpus", "1"))


def _strike(
    desk: Desk, command: Command, kill: Kill, total: int, worker: Node | None
) -> int | None:
    """Kill the process that is meant; at which round it was, or None where it was not met."""
    until = time.monotonic() + PATIENCE
    while desk.count_rounds() < kill.share * total:
        if command.is_over or time.monotonic() > until:
            return None
        time.sleep(0.01)
    time.sleep(kill.delay)
    reached = desk.count_rounds()
    pid = _find_target(command, kill, worker)
    # The last round is noted before the last model is written: that counts as under way.
    if pid is None or command.is_over:
        return None
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return reached
    return None


def _find_target(command: Command, kill: Kill, worker: Node | None) -> int | None:
    """The process that is meant, of this command or of its cluster."""
    if kill.target == "driver":
        return command.pid
    if kill.target == "worker raylet":
        return None if worker is None else worker.raylet
    below = descendants(command.pid)
    if worker is not None:
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


def read_lines() -> list[dict[str, Any]]:
    """What was killed so far."""
    if not TALLY.exists():
        return []
    lines: list[dict[str, Any]] = json.loads(TALLY.read_text())["details"]["kills"]
    return lines


def write_lines(lines: Sequence[Mapping[str, Any]]) -> None:
    """The tally, with counts by target, command and method."""
    landed = [line for line in lines if line["landed"]]
    counts = {
        key: dict(sorted(Counter(line[key] for line in landed).items()))
        for key in ("command", "method", "target")
    }
    facts = {
        "promise": "kill -9 of any process of a run, sweep or study changes no bit",
        "drill": "python -m tests.reliability.kills",
        "tried": len(landed),
        "survived": sum(line["outcome"] == "same" for line in landed),
        "day": time.strftime("%Y-%m-%d"),
        "machine": describe_environment(),
        "details": {"landed by": counts, "kills": list(lines)},
    }
    write_file(TALLY, json.dumps(facts, indent=1) + "\n")


def main() -> None:
    """Go on with the drill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--landed", type=int, default=1000, help="stop at so many in all")
    parser.add_argument("--hours", type=float, default=1e9, help="begin none after so many")
    told = parser.parse_args()
    lines = read_lines()
    until = time.monotonic() + 3600 * told.hours
    folder = Path(tempfile.mkdtemp(prefix="kills"))
    executioner = Executioner(folder)
    while sum(line["landed"] for line in lines) < told.landed and time.monotonic() < until:
        line = executioner.carry_out(Kill.draw(len(lines)))
        lines.append(line)
        write_lines(lines)
        print(json.dumps(line), flush=True)
    lost = [line["number"] for line in lines if line["landed"] and line["outcome"] != "same"]
    sys.exit(f"not the same after kills {lost}; see {folder}" if lost else 0)


if __name__ == "__main__":
    main()
