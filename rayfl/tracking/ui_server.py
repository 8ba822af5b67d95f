"""MLflow's UI as a process below this one, which ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

LEAVE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
"""Linux: a signal for when the parent has died."""


def serve_until_stopped(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a server until it ends, or until this process is told to stop.

    Parameters
    ----------
    command : sequence of str
        The server.
    environment : mapping
        What it is told beside.

    Returns
    -------
    int
        Its exit code.
    """
    # In a group of its own: at a terminal's Ctrl-C it would print the stacks of all its processes.
    prepare = _end_with_parent if sys.platform == "linux" else None
    server = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=prepare)
    try:
        return server.wait()
    finally:
        _end_group(server)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_group(server: subprocess.Popen[bytes]) -> None:
    """The server and all that it has started."""
    with suppress(ProcessLookupError):
        server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(LEAVE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
