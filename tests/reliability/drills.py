"""Real runs in processes of their own, which can be watched and hit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RAYFL = Path(sys.executable).with_name("rayfl")
PATIENCE = 120.0
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 12,
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 10},
    "noise": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [16]},
    "method": {"name": "tests.reliability.methods:Stateful"},
    "training": {"rounds": 24, "clients_per_round": 6, "batch_size": 16, "lr": 0.1},
    "resources": {"cpus_per_client": 0.5, "actors": 2},
    "checkpoint": {"min_seconds": 0},
    "tracking": {"enabled": False},
}

Comparable = tuple[str, list[dict[str, Any]]]


class Drill:
    """One `rayfl run` in a process and session of its own, with all that it prints."""

    def __init__(self, desk: Path, *arguments: str, output: Path | None = None) -> None:
        self.output = output or desk / "out"
        config = desk / "drill.yaml"
        config.write_text(yaml.safe_dump({**SETTINGS, "output": str(self.output)}))
        self.printed = desk / f"printed-{time.monotonic_ns()}.txt"
        with self.printed.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(RAYFL), "run", str(config), *arguments],
                cwd=ROOT,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.printed.read_text(errors="replace")

    @property
    def directory(self) -> Path:
        """The run's directory, of which there is one."""
        (found,) = (self.output / "runs").iterdir()
        return found

    def reached(self) -> int:
        """The last round that the driver has noted."""
        journals = list((self.output / "runs").glob("*/journal.jsonl"))
        entries = [entry for journal in journals for entry in noted(journal)]
        return max((entry["step"] for entry in entries if entry["kind"] == "metrics"), default=0)

    def await_round(self, number: int) -> None:
        self.watch(lambda: self.reached() >= number, f"round {number}")

    def await_process(self, title: str) -> int:
        """The id of a process of this run's own Ray whose title begins so."""
        known: list[int] = []
        found: list[int] = []
        looked = -1.0

        def seen() -> bool:
            nonlocal known, looked
            # To look through all processes of a machine takes longer than some of the moments that
            # are waited for.
            if time.monotonic() - looked > 0.1:
                known, looked = descendants(self.process.pid), time.monotonic()
            found[:] = [pid for pid in known if title_of(pid).startswith(title)]
            return bool(found)

        self.watch(seen, title)
        return found[0]

    def watch(self, seen: Callable[[], bool], what: str) -> None:
        started = time.monotonic()
        while not seen():
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.text}"
            assert time.monotonic() - started < PATIENCE, (
                f"no {what} within {PATIENCE} s:\n{self.text}"
            )
            time.sleep(0.01)

    def ended(self) -> int:
        """The exit code."""
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Leave nothing behind: the driver and whatever descends from it."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            if self.process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


def noted(journal: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a journal."""
    for line in journal.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def descendants(root: int) -> list[int]:
    """All processes below one, by their parents; processes of anybody else are never among them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, waiting = [], list(children.get(root, []))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def parent_of(pid: int) -> int:
    """The parent's id; 0 for a process that is gone meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def title_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


def comparable(directory: Path) -> Comparable:
    """The model's hash and all metrics of all rounds; only what a clock measured is left out."""
    result = json.loads((directory / "result.json").read_text())
    return result["sha256"], [{"round": r["round"], **r["metrics"]} for r in result["history"]]
