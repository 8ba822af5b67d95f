"""Whether there is still a machine for the trials: Tune itself waits for one without end."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rayfl.errors import ResourceError, broken
from rayfl.tuning.book import Book
from rayfl.tuning.stopping import SweepStop

LOOK_SECONDS = 2.0
PATIENCE_LOOKS = 5
"""How often in a row nobody is there before the sweep ends: a cluster may get a new node."""
ANSWER_SECONDS = 5.0
FAREWELL_SECONDS = 15.0
"""How long a main thread that waits for a dead gcs may take to leave: Ray ends the process after a
minute of that, with words of its own."""


@contextmanager
def watch_nodes(book: Book, stop: SweepStop, gcs: str) -> Iterator[None]:
    """Within, the sweep ends with a sentence when no node of its Ray is alive any more.

    Only the main thread can be woken where it waits: a sweep in another one is not watched.

    Parameters
    ----------
    book, stop
        The sweep's.
    gcs : str
        The address of the process that keeps the list of nodes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_look_again, args=(book, stop, gcs, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LOOK_SECONDS)


def _look_again(book: Book, stop: SweepStop, gcs: str, over: threading.Event) -> None:
    missed = 0
    while not over.wait(LOOK_SECONDS):
        missed = 0 if _is_listening(gcs) and _is_any_alive() else missed + 1
        if missed >= PATIENCE_LOOKS and not over.is_set():
            end = _explain_end(book)
            stop.fail(end)
            if not _is_listening(gcs) and not over.wait(FAREWELL_SECONDS):
                _leave_at_once(end)
            return


def _leave_at_once(end: ResourceError) -> None:
    """End the process from here: the main thread waits in Ray's compiled code and hears nothing.
    What a sweep needs to go on is on the disk."""
    print(f"error: {end}", file=sys.stderr, flush=True)
    os._exit(end.exit_code)


def _is_listening(gcs: str) -> bool:
    """Whether there is somebody to ask for the nodes: of one that is gone Ray asks for a minute,
    and then ends the process."""
    host, _, port = gcs.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _is_any_alive() -> bool:
    try:
        return any(node["Alive"] for node in ray.nodes())
    except Exception:  # of several kinds: whoever keeps the list of nodes is gone, too
        return False


def _explain_end(book: Book) -> ResourceError:
    rule = "a sweep's trials have a machine to run on"
    command = shlex.join(["rayfl", "sweep", str(book.directory / "sweep.yaml"), "--resume"])
    return ResourceError(broken(rule, "no node that is alive", f"Go on with it: {command}"))


__all__ = ["watch_nodes"]
