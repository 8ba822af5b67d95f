"""What watches over visits at one place: a clock that tells who is over their time, and a limit on
memory."""

from __future__ import annotations

import faulthandler
import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rayfl.protocol import ClientId

log = logging.getLogger("rayfl")

LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
LOOKS = 20
"""In the time that a visit may take, it is looked at so often."""
LONGEST_LOOK = 1.0
GRACE_SECONDS = 5.0
"""What holds Python's lock all the time is ended without a word, so much later."""


class Overdue(NamedTuple):
    """Who is over their time, with what, and where in its code the visit was. Several clients are
    those that are trained together."""

    clients: Sequence[ClientId]
    limit: float
    where: str


class _Visit(NamedTuple):
    """One that is under way, in a thread."""

    clients: Sequence[ClientId]
    limit: float
    due: float
    thread: int


class VisitWatch:
    """Looks, in a thread of its own, at how long the present visit takes.

    Parameters
    ----------
    tell
        Called, once a visit, in that thread.
    fatal
        Whether a visit that holds Python's lock, so that nothing can be called, ends the process.
    """

    def __init__(self, tell: Callable[[Overdue], object], fatal: bool = False) -> None:
        self._tell = tell
        self._fatal = fatal
        self._visit: _Visit | None = None
        self._told: _Visit | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, clients: Sequence[ClientId], limit: float) -> Iterator[None]:
        """Look at what is done inside: a visit, or those of clients that are trained together."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
            self._thread.start()
        seconds = limit * len(clients)
        due = time.monotonic() + seconds
        self._visit = visit = _Visit(clients, limit, due, threading.get_ident())
        self._wake.set()
        if self._fatal:
            faulthandler.dump_traceback_later(2 * seconds + GRACE_SECONDS, exit=True)
        try:
            yield
        finally:
            with self._lock:
                self._visit = None
                overdue = self._told is visit
            if self._fatal and overdue:
                # It is told of, and so this process ends: nothing of it may be answered.
                threading.Event().wait()
            if self._fatal:
                faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        while True:
            self._wake.wait()
            # Cleared first: who begins a visit now is seen at the next look.
            self._wake.clear()
            visit = self._visit
            while visit is not None and visit is not self._told:
                left = visit.due - time.monotonic()
                if left <= 0:
                    self._tell_of(visit)
                else:
                    time.sleep(min(left, LONGEST_LOOK, max(visit.limit / LOOKS, 0.01)))
                visit = self._visit

    def _tell_of(self, visit: _Visit) -> None:
        """Unless it has ended in this moment."""
        with self._lock:
            if self._visit is not visit:
                return
            self._told = visit
        self._tell(Overdue(visit.clients, visit.limit, find_place(visit.thread)))


def say_overdue(overdue: Overdue) -> None:
    """All that can be done within the process that visits: Python cannot end its own code."""
    who = ", ".join(f"client {client}" for client in overdue.clients)
    log.warning(
        "%s is over the limit of %.3g s a visit, at %s; a visit in this process (fleet: inline) "
        "cannot be ended",
        who,
        overdue.limit,
        overdue.where,
    )


def find_place(thread: int) -> str:
    """The file, line and function that a thread is at: the innermost outside of libraries."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "an unknown line"
    called = list(reversed(traceback.extract_stack(frame)))
    own = [entry for entry in called if not entry.filename.startswith(LIBRARIES)]
    last = (own or called)[0]
    return f"{last.filename}:{last.lineno}, in {last.name}"
