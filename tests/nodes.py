"""Nodes of a Ray cluster as processes of this machine: started by hand, seen, hit, and ended with
the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from tests.commands import BIN, answers, environment, free_ports
from tests.reliability.drills import RAYFL, ROOT, SETTINGS, Drill, descendants, title_of

PATIENCE = 180.0
SMALL = ("--disable-usage-stats", "--object-store-memory", str(100 << 20))


def surroundings(**more: str) -> dict[str, str]:
    """What the processes of a cluster inherit: nothing of the tests' own Ray, which stays on
    loopback."""
    own = environment()
    own.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
    # A dead node is noticed after five seconds, not fifteen.
    return {**own, "RAY_health_check_period_ms": "1000", **more}


class Node:
    """One `ray start --block`, in a session of its own."""

    def __init__(self, folder: Path, *words: str, env: Mapping[str, str] | None = None) -> None:
        self.log = folder / f"node-{time.monotonic_ns()}.log"
        command = [
            str(BIN / "ray"),
            "start",
            "--block",
            *SMALL,
            "--node-ip-address",
            "127.0.0.1",
            *words,
        ]
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=stream,
                env=env or surroundings(),
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def await_start(self) -> None:
        wait_for(
            lambda: "Ray runtime started" in self.text,
            "start of a node",
            lambda: self.text,
            self.process,
        )

    def await_answer(self, url: str) -> None:
        wait_for(lambda: answers(url), f"answer of {url}", lambda: self.text, self.process)

    def processes(self, title: str) -> list[int]:
        """The processes of this node whose title begins so."""
        return [pid for pid in descendants(self.process.pid) if title_of(pid).startswith(title)]

    @property
    def raylet(self) -> int:
        """The process that is the node, as far as the cluster is concerned."""
        found = self.find_raylet()
        assert found is not None, self.text
        return found

    def find_raylet(self) -> int | None:
        """The same; None where it is dead."""
        below = descendants(self.process.pid)
        return next((pid for pid in below if "/raylet/raylet " in title_of(pid)), None)

    def end(self) -> None:
        """Ask it to go, and kill whatever of it is left; an id that is somebody else's by now is
        left alone."""
        ours = {pid: born(pid) for pid in [*descendants(self.process.pid), self.process.pid]}
        with suppress(ProcessLookupError):
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for pid, start in ours.items():
            if start and born(pid) == start:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(20)


def born(pid: int) -> str:
    """When a process began, which tells it from a later one of the same id; nothing for one that is
    gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def wait_for(
    seen: Callable[[], bool],
    what: str,
    text: Callable[[], str] = lambda: "",
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    started = time.monotonic()
    while not seen():
        assert process is None or process.poll() is None, f"ended before {what}:\n{text()}"
        assert time.monotonic() - started < PATIENCE, f"no {what} within {PATIENCE} s:\n{text()}"
        time.sleep(0.1)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of Ray's sockets, which pytest's own do not."""
    folder = Path(tempfile.mkdtemp(prefix="rn"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def head_node(*words: str) -> Iterator[tuple[Node, str, Path]]:
    """A head without a dashboard: the node, its address, and a folder."""
    port, client = free_ports(2)
    with short_folder() as folder:
        places = ["--head", "--port", str(port), "--temp-dir", str(folder / "h")]
        node = Node(
            folder,
            *places,
            "--ray-client-server-port",
            str(client),
            "--include-dashboard",
            "false",
            *words,
        )
        try:
            node.await_start()
            yield node, f"127.0.0.1:{port}", folder
        finally:
            node.end()


@contextmanager
def worker_node(address: str, folder: Path, *words: str) -> Iterator[Node]:
    """One more node of a cluster."""
    node = Node(folder, "--address", address, *words)
    try:
        node.await_start()
        yield node
    finally:
        node.end()


class Driven(Drill):
    """A drill on a cluster that is there already."""

    def __init__(self, desk: Path, address: str, *arguments: str) -> None:
        self.output = desk / "out"
        config, self.printed = desk / "drill.yaml", desk / f"printed-{time.monotonic_ns()}.txt"
        config.write_text(yaml.safe_dump({**SETTINGS, "output": str(self.output)}))
        with self.printed.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(RAYFL), "run", str(config), "--address", address, *arguments],
                cwd=ROOT,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=surroundings(),
            )
