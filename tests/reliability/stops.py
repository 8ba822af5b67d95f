"""Commands that are told to stop at a random moment of their lives, and how each of them ends.

    python -m tests.reliability.stops FOLDER TIMES SEED [COMMAND ...]

Each in a shell that knows nothing of Ray or of rayfl."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.commands import free_ports
from tests.reliability.clean_shell import Command
from tests.reliability.tally import write_tally

PATIENCE = 240.0
RUN: dict[str, Any] = {
    "data": {"name": "blobs", "samples": 300, "test_samples": 60, "classes": 3},
    "clients": 4,
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "tests.reliability.methods:Stateful", "pause": 0.05},
    "training": {"rounds": 20, "lr": 0.05},
    "resources": {"actors": 2, "cpus_per_client": 0.5},
    "device": "cpu",
    "output": "out",
}
SWEEP = {
    "name": "tiny",
    "set": RUN,
    "search": {"training.lr": {"grid": [0.1, 0.2]}},
    "over": "final",
    "at_once": 2,
}
METHODS = {"stateful": {"title": "S"}, "fedavg": {"title": "A", "set": {"method": "fedavg"}}}
STUDY = {
    "title": "T",
    "set": RUN,
    "axes": {"method": METHODS},
    "scores": {"s": {"title": "S", "metric": "test/accuracy"}},
}
SETTINGS = {"run": RUN, "sweep": SWEEP, "study": STUDY}
COMMANDS = {
    "run": ("run", "run.yaml"),
    "inline": ("run", "run.yaml", "fleet=inline"),
    "sweep": ("sweep", "sweep.yaml"),
    "study": ("study", "study.yaml", "--ledger", "none"),
    "report": ("report", "rayfl", "--runs", "before"),
    "sync": ("sync", "-o", "before"),
    "scenario": ("scenario", "build", "run.yaml", "-o", "scenario"),
    "ui": ("ui", "-o", "before", "--port", "{port}"),
}
ENDLESS = {"ui": 12.0}
"""Seconds within which those are stopped that would go on for ever."""
MANNERS = ("alone", "group", "impatient")
"""To the command alone, as `kill` does; to its group, as a terminal and `timeout` do; to its group
again and again until it has ended."""
STOPPED, OVER, UNBORN = "stopped", "had ended", "before Python"
PROMISE = "SIGTERM or SIGINT at any moment of any command ends it with 143 or 130 and one sentence"
GOOD = {STOPPED, OVER, UNBORN}
NOISE = re.compile(r"Traceback|\*\*\*|Exception ignored|^Aborted!", re.MULTILINE)


@dataclass(frozen=True)
class Order:
    """Which signal a command gets, when, and how."""

    number: signal.Signals
    after: float
    manner: str


@dataclass(frozen=True)
class Ended:
    """How one command ended; the seconds are those from the first signal on."""

    code: int
    said: str
    seconds: float


class Stopper:
    """Starts commands in folders of their own, and stops them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before = folder / "before"
        self.desks = 0
        done = self.stop("inline", None)
        assert done.code == 0, done.said
        (folder / "desk-1" / "out").rename(self.before)

    def stop(self, name: str, order: Order | None) -> Ended:
        """Start a command and stop it; without an order it ends by itself."""
        desk = self._new_desk()
        words = [word.format(port=free_ports(1)[0]) for word in COMMANDS[name]]
        command = Command(desk, *words, home=self.folder / "home")
        try:
            seconds = 0.0
            if order is not None:
                _wait(command, order.after)
                seconds = _insist(command, order)
            return Ended(command.process.wait(PATIENCE), command.text, seconds)
        finally:
            command.end()

    def _new_desk(self) -> Path:
        """A folder that no command has been in, beside a run that is over."""
        self.desks += 1
        desk = self.folder / f"desk-{self.desks}"
        desk.mkdir(parents=True)
        (desk / "before").symlink_to(self.before)
        for stem, settings in SETTINGS.items():
            (desk / f"{stem}.yaml").write_text(yaml.safe_dump(settings))
        return desk


def _wait(command: Command, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not command.is_over and time.monotonic() < until:
        time.sleep(0.01)


def _insist(command: Command, order: Order) -> float:
    """Send the signal; the seconds until the command has ended."""
    begun = time.monotonic()
    if not command.is_over:
        command.send(order.number, order.manner != "alone")
    while not command.is_over:
        assert time.monotonic() - begun < PATIENCE, f"it goes on:\n{command.text}"
        time.sleep(0.2)
        if order.manner == "impatient":
            command.send(order.number, group=True)
    return time.monotonic() - begun


def judge(ended: Ended, number: signal.Signals) -> str:
    """One of the good ends, or what is wrong."""
    noise = NOISE.search(ended.said)
    if noise is not None:
        return f"says {noise[0]}"
    if ended.code == -number and not ended.said:
        # There is no handler yet while the interpreter itself is being started.
        return UNBORN
    if ended.code == 0:
        return OVER
    if ended.code != 128 + number:
        return f"exit code {ended.code}"
    lines = [line for line in ended.said.splitlines() if line.startswith("stopped")]
    return STOPPED if len(lines) == 1 else f"{len(lines)} sentences"


def measure_life(stopper: Stopper, name: str) -> float:
    """Seconds that a command takes if nobody stops it."""
    if name in ENDLESS:
        return ENDLESS[name]
    begun = time.monotonic()
    done = stopper.stop(name, None)
    assert done.code == 0, done.said
    return time.monotonic() - begun


def stop_at_random(stopper: Stopper, name: str, times: int, rng: random.Random) -> Counter[str]:
    """Stop a command so many times; what is wrong is printed."""
    whole = measure_life(stopper, name)
    tally: Counter[str] = Counter()
    slowest = 0.0
    for turn in range(times):
        number = rng.choice([signal.SIGTERM, signal.SIGINT])
        order = Order(number, rng.uniform(0, whole), MANNERS[turn % len(MANNERS)])
        ended = stopper.stop(name, order)
        verdict = judge(ended, number)
        tally[verdict] += 1
        slowest = max(slowest, ended.seconds)
        if verdict not in GOOD:
            print(f"{name} {order}: {verdict}\n{ended.said}\n", flush=True)
    print(f"{name}: {whole:.1f} s undisturbed, ended within {slowest:.1f} s: {dict(tally)}")
    return tally


def main() -> None:
    """Stop each command so many times; all of them leave a tally."""
    folder, times, seed, *names = sys.argv[1:]
    rng, stopper = random.Random(int(seed)), Stopper(Path(folder))
    verdicts = {name: stop_at_random(stopper, name, int(times), rng) for name in names or COMMANDS}
    total = sum(verdicts.values(), Counter[str]())
    print(dict(total))
    if not names:
        drill = f"python -m tests.reliability.stops FOLDER {times} {seed}"
        good = sum(total[verdict] for verdict in GOOD)
        write_tally("stops", PROMISE, drill, total.total(), good, verdicts)
    sys.exit(not set(total) <= GOOD)


if __name__ == "__main__":
    main()
