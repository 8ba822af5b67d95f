"""SIGTERM and SIGINT stay with the handlers that Python has for them, whatever Ray does.

When a driver connects, Ray's C++ library takes SIGTERM (and SIGSEGV and its like) for a handler of
its own: below Python, with `sigaction`, in whichever thread connects. On SIGTERM that handler
prints a C++ stack, sets an alarm that aborts the process after three seconds, and only then calls
Python's; a driver that needs longer to write its checkpoint dies of SIGABRT. When the driver
disconnects, Ray gives SIGTERM back to nobody: the kernel's default, which ends the process at once.
In the main thread, Ray also puts a Python handler over ours.

So Ray is told that it has its handlers already, by the flag of its library that says so, and takes
none. Where a version of Ray has no such flag, and where it takes handlers all the same, they are
put back at once, by a thread that looks every few milliseconds: to connect takes seconds on a busy
machine. `signal.signal`, which would do it, works in the main thread alone; the C library's
`sigaction` works in any."""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

KEPT = (signal.SIGTERM, signal.SIGINT)
HAS_HANDLERS = "_ZN3ray6RayLog36is_failure_signal_handler_installed_E"
"""Ray's `RayLog::is_failure_signal_handler_installed_`."""
GUARD_SECONDS = 0.002
"""How often the guard looks."""
_ROOM = 1024
"""Bytes for a `struct sigaction`, of which only the beginning is looked into; the largest has
152."""
_POINTER = ctypes.sizeof(ctypes.c_void_p)
"""It begins with the address of the handler."""

_LIBRARY = ctypes.CDLL(None)

Handler = Callable[..., Any] | int | None


@dataclass(frozen=True)
class KeptSignal:
    """Who gets a signal: by Python's books, and the kernel's action as the C library keeps it."""

    handler: Handler
    action: bytes


@contextmanager
def keep_signal_handlers(connecting: bool = False) -> Iterator[None]:
    """Whoever has SIGTERM and SIGINT keeps them, in any thread.

    Parameters
    ----------
    connecting : bool
        Ray is about to take them; else it is about to give back what it has taken.
    """
    kept = {number: KeptSignal(signal.getsignal(number), _read_action(number)) for number in KEPT}
    over = threading.Event()
    guard = threading.Thread(target=_guard_actions, args=(kept, over), name="signals", daemon=True)
    guard.start()
    try:
        refused = _refuse_handlers() if connecting else nullcontext()
        with _without_complaint(), _without_handlers_of_ray(), refused:
            yield
    finally:
        over.set()
        guard.join()
        for number in kept:
            _put_back(number, kept)


def _guard_actions(kept: Mapping[signal.Signals, KeptSignal], over: threading.Event) -> None:
    while not over.wait(GUARD_SECONDS):
        for number in kept:
            action = _rightful_action(number, kept)
            if action is not None and _read_action(number)[:_POINTER] != action[:_POINTER]:
                _write_action(number, action)


def _put_back(number: signal.Signals, kept: Mapping[signal.Signals, KeptSignal]) -> None:
    handler = kept[number].handler
    if threading.current_thread() is threading.main_thread() and handler is not None:
        # Also where the handler is the same: it is the kernel that has to be told.
        signal.signal(number, handler)
        return
    action = _rightful_action(number, kept)
    if action is not None:
        _write_action(number, action)


def _rightful_action(
    number: signal.Signals, kept: Mapping[signal.Signals, KeptSignal]
) -> bytes | None:
    """What the kernel should do: what Python's books say, in which the main thread may have set
    another handler meanwhile."""
    handler = signal.getsignal(number)
    if handler is None or handler == kept[number].handler:
        return kept[number].action
    if not callable(handler):
        return int(handler).to_bytes(_POINTER, sys.byteorder) + bytes(_ROOM - _POINTER)
    # All handlers of Python are one function to the kernel, which is known wherever there was a
    # handler before.
    known = [other.action for other in kept.values() if callable(other.handler)]
    return known[0] if known else PYTHONS_ACTION


def _read_action(number: int) -> bytes:
    action = ctypes.create_string_buffer(_ROOM)
    _LIBRARY.sigaction(number, None, action)
    return action.raw


def _write_action(number: int, action: bytes) -> None:
    _LIBRARY.sigaction(number, action, None)


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
def _refuse_handlers() -> Iterator[None]:
    """Let Ray believe that it has its handlers; and afterwards that it has none to give back."""
    flag = _find_flag()
    if flag is None or flag.value:
        yield
        return
    flag.value = True
    try:
        yield
    finally:
        flag.value = False


def _find_flag() -> ctypes.c_bool | None:
    raylet: Any = import_module("ray._raylet")
    with suppress(OSError, ValueError):
        return ctypes.c_bool.in_dll(ctypes.CDLL(raylet.__file__), HAS_HANDLERS)
    return None


@contextmanager
def _without_handlers_of_ray() -> Iterator[None]:
    """In the main thread Ray sets handlers of Python's, for as long as it is connecting: one that
    ends the process as soon as it gets SIGTERM."""
    utils: Any = import_module("ray._private.utils")
    before = getattr(utils, "set_sigterm_handler", None)
    utils.set_sigterm_handler = lambda _: None
    try:
        yield
    finally:
        if before is not None:
            utils.set_sigterm_handler = before


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
