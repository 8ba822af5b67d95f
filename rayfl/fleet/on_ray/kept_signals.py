"""SIGTERM and SIGINT stay with the handlers that Python has for them, whatever Ray does.

When a driver connects, Ray's C++ library takes SIGTERM (and SIGSEGV and its like) for a handler of
its own: below Python, with `sigaction`, in whichever thread connects. On SIGTERM that handler
prints a C++ stack, sets an alarm that aborts the process after three seconds, and only then calls
Python's; a driver that needs longer to write its checkpoint dies of SIGABRT. When the driver
disconnects, Ray gives SIGTERM back to nobody: the kernel's default, which ends the process at once.
In the main thread, Ray also puts a Python handler over ours.

So the handlers are put back right after each. `signal.signal`, which would do it, works in the main
thread alone, and Ray may be connecting in another one; the C library's `sigaction` works in any."""

from __future__ import annotations

import ctypes
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

KEPT = (signal.SIGTERM, signal.SIGINT)
_ROOM = 1024
"""Bytes for a `struct sigaction`, which is never looked into; the largest has 152."""

Handler = Callable[..., Any] | int | None


@dataclass(frozen=True)
class KeptSignal:
    """Who gets a signal: by Python's books, and the kernel's action as the C library keeps it."""

    handler: Handler
    action: bytes


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Whoever got SIGTERM and SIGINT before the block gets them after it, in any thread."""
    before = {number: KeptSignal(signal.getsignal(number), _read_action(number)) for number in KEPT}
    try:
        with _without_complaint():
            yield
    finally:
        for number, kept in before.items():
            _put_back(number, kept, before)


def _put_back(number: int, kept: KeptSignal, before: dict[signal.Signals, KeptSignal]) -> None:
    if threading.current_thread() is threading.main_thread():
        if kept.handler is None:  # not Python's: a program that has rayfl in it took the signal
            _write_action(number, kept.action)
        else:
            # Also where the handler is the same: it is the kernel that has to be told.
            signal.signal(number, kept.handler)
        return
    action = kept.action
    if callable(signal.getsignal(number)) and not callable(kept.handler):
        # Meanwhile the main thread has set a handler. All handlers of Python are one function to
        # the kernel, which is known wherever there was a handler before.
        known = [other.action for other in before.values() if callable(other.handler)]
        known += [] if PYTHONS_ACTION is None else [PYTHONS_ACTION]
        if not known:
            return
        action = known[0]
    _write_action(number, action)


def _read_action(number: int) -> bytes:
    action = ctypes.create_string_buffer(_ROOM)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw


def _write_action(number: int, action: bytes) -> None:
    ctypes.CDLL(None).sigaction(number, action, None)


def _learn_pythons_action() -> bytes | None:
    """What the kernel is told wherever Python has a handler of its own."""
    # A command that a shell put in the background has none for SIGINT, and none for SIGTERM yet.
    held = signal.getsignal(signal.SIGUSR1)
    if threading.current_thread() is not threading.main_thread() or held is None:
        return None
    signal.signal(signal.SIGUSR1, lambda *_: None)
    action = _read_action(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, held)
    return action


PYTHONS_ACTION = _learn_pythons_action()


@contextmanager
def _without_complaint() -> Iterator[None]:
    """Outside the main thread Ray sets no Python handler, and warns of it."""
    logger = logging.getLogger("ray._private.worker")
    logger.addFilter(_is_no_complaint)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_complaint)


def _is_no_complaint(record: logging.LogRecord) -> bool:
    return "SIGTERM handler is not set" not in record.getMessage()
