"""An MLflow server of one's own, which can be killed and comes back with what it had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.commands import answers, free_ports
from tests.nodes import wait_for


class MlflowServer:
    """One server on loopback, in a session of its own so that all its workers end with it.

    Parameters
    ----------
    folder : Path
        Its store, its files and its log.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """What a tracker is told."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        store = f"sqlite:///{self.folder / 'server.db'}"
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        files = [
            "--backend-store-uri",
            store,
            "--artifacts-destination",
            str(self.folder / "files"),
        ]
        log = self.folder / "server.log"
        with log.open("ab") as stream:
            command = [sys.executable, "-m", "mlflow", "server", *place, *files]
            self.process = subprocess.Popen(
                command, stdout=stream, stderr=stream, start_new_session=True, cwd=self.folder
            )
        health = f"http://127.0.0.1:{self.port}/health"
        wait_for(lambda: answers(health), "answer of the server", log.read_text, self.process)

    def kill(self) -> None:
        """With `kill -9`; nothing happens to one that is dead."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
