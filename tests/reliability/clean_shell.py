"""A user's commands in a shell that knows nothing of Ray, of MLflow or of rayfl."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.nodes import born
from tests.reliability.drills import ROOT, descendants
from tests.sockets import user_environment

LEAVE_SECONDS = 30.0


class Command:
    """One `rayfl ...` in a session of its own; what it says goes to a file.

    Parameters
    ----------
    desk : Path
        The working directory.
    *words : str
        What follows `rayfl`.
    home : Path, optional
        The home directory; by default a folder of the desk.
    """

    def __init__(self, desk: Path, *words: str, home: Path | None = None) -> None:
        home = home or desk / "home"
        home.mkdir(parents=True, exist_ok=True)
        number = len(list(desk.glob("said-*.txt")))
        self.printed = desk / f"said-{number}.txt"
        with self.printed.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rayfl.cli", *words],
                cwd=desk,
                env={**user_environment(home), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        return self.printed.read_text(errors="replace")

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: signal.Signals, group: bool = False) -> None:
        """A signal to the command alone, or to all of its group as a terminal sends it."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def end(self) -> None:
        """Leave nothing behind; an id that is somebody else's by now is left alone."""
        below = {pid: born(pid) for pid in descendants(self.pid)}
        self.process.terminate()
        try:
            self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid, start in below.items():
            if start and born(pid) == start:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
