"""One run of one system in a process of its own, watched from outside: its answer, and its tree's
memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speed_suite.environments import python_of
from speed_suite.federation import MARK

HERE = Path(__file__).resolve().parent.parent
PATIENCE = 1800.0
GRACE = 10.0
SAMPLING_SHARE = 0.01
"""How much of one core the memory readings may take: reading a large process stops it for
milliseconds."""


@dataclass(frozen=True)
class System:
    """How a system is started."""

    module: str
    variant: str = ""
    peer: str | None = None
    torchrun: int = 0

    def command(self) -> list[str]:
        python = sys.executable if self.peer is None else str(python_of(self.peer))
        module = f"speed_suite.{self.module}"
        if not self.torchrun:
            return [python, "-m", module, "--variant", self.variant]
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.torchrun),
        ]
        return [python, *launcher, "-m", module]


RAYFL = "rayfl_system"
SYSTEMS: dict[str, System] = {
    "bare1": System("bare", "1"),
    "bare2": System("bare", "2"),
    "naive": System("ray_naive"),
    "flower": System("peers.flower", peer="flower"),
    "pfl": System("peers.pfl", peer="pfl", torchrun=2),
    "rayfl": System(RAYFL),
    **{
        f"rayfl-{variant}": System(RAYFL, variant)
        for variant in (
            "bf16",
            "stacked",
            "channels-first",
            "reached",
            "inline",
            "tracked",
            "watched",
        )
    },
    **{method: System(RAYFL, method) for method in ("fedavg", "fedds", "fedrn")},
}


class Failed(Exception):
    """A system that did not answer."""


def run(
    name: str,
    folder: Path,
    rounds: int,
    warmup: int,
    marks: str = "",
) -> dict[str, Any]:
    """What a system answers, with the peak of its tree's memory in MB."""
    command = SYSTEMS[name].command()
    told = [
        "--folder",
        str(folder),
        "--rounds",
        str(rounds),
        "--warmup",
        str(warmup),
        "--marks",
        marks,
    ]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.time()
        process = subprocess.Popen(
            [*command, *told, "--started", str(started)],
            stdout=out,
            stderr=err,
            env=environment(),
            start_new_session=True,
        )
        with watched(process.pid) as tree, ended(process, tree):
            process.wait(PATIENCE)
        out.seek(0), err.seek(0)
        return {
            **read_answer(name, process.returncode, out.read(), err.read()),
            "peak_mb": tree.peak / 1e3,
        }


def environment() -> dict[str, str]:
    """No Ray but one's own; the suite's modules on the path of every descendant."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in {"RAY_ADDRESS", "MLFLOW_TRACKING_URI"}
    }
    silent = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONWARNINGS": "ignore",
    }
    return {**kept, **silent, "PYTHONPATH": str(HERE)}


def read_answer(
    name: str,
    code: int,
    out: str,
    err: str,
) -> dict[str, Any]:
    lines = [line for line in out.splitlines() if line.startswith(MARK)]
    # Ray and torchrun may end badly after everything is said.
    if not lines:
        raise Failed(f"{name} ended with {code} and without an answer:\n{(out + err)[-3000:]}")
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    return answer


@contextmanager
def ended(process: subprocess.Popen[Any], tree: Tree) -> Iterator[None]:
    """Nothing of a run outlives it: what is left of its processes, and only they, is ended."""
    try:
        yield
    finally:
        until = time.monotonic() + GRACE
        while (left := tree.left()) and time.monotonic() < until:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
            time.sleep(0.02)


# -- memory ----------------------------------------------------------------------------------------


class Tree:
    """A process and all its descendants, as they come and go."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.known = {root: birth(root)}
        self.peak = 0

    def look(self) -> list[int]:
        """Those that live; one that has lost its parent is remembered."""
        parents = dict(processes())
        alive = [pid for pid, born in self.known.items() if pid in parents and birth(pid) == born]
        self.known = {pid: self.known[pid] for pid in alive}
        grown = True
        while grown:
            news = [
                pid
                for pid, parent in parents.items()
                if parent in self.known and pid not in self.known
            ]
            self.known |= {pid: birth(pid) for pid in news}
            grown = bool(news)
        return list(self.known)

    def measure(self) -> None:
        self.peak = max(self.peak, sum(map(proportional_set_kb, self.look())))

    def left(self) -> list[int]:
        """Those that still run."""
        return [pid for pid in self.look() if stat(pid)[:1] not in ([], ["Z"])]


def processes() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat(int(entry))):
            yield int(entry), int(fields[1])


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, or none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def birth(pid: int) -> str | None:
    """When a process started, in clock ticks: tells it from a later one with the same id."""
    fields = stat(pid)
    return fields[19] if fields else None


def proportional_set_kb(pid: int) -> int:
    """A process's share of the memory that it uses; 0 for one that is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


@contextmanager
def watched(pid: int) -> Iterator[Tree]:
    """The tree of a process, measured now and then by a thread."""
    tree = Tree(pid)
    over = threading.Event()

    def watch() -> None:
        pause = 0.5
        while not over.wait(pause):
            began = time.thread_time()
            tree.measure()
            pause = max(0.5, (time.thread_time() - began) / SAMPLING_SHARE)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield tree
    finally:
        over.set()
        thread.join()
