"""What Ray's processes print, which Ray brings to the driver's terminal; and when nobody wants it.

A process that is on its way out, or was about to create an actor, prints a C++ stack as soon as its
raylet is gone before it. After a stop, or while we leave, that is no news."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def drop_worker_words(wanted: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Within, what Ray's processes print is shown only while it is wanted.

    Parameters
    ----------
    wanted : callable
        Asked for each piece, in a thread of Ray's; by default nothing is wanted.
    """
    logs: Any = import_module("ray._private.ray_logging")
    dispatcher: Any = getattr(logs, "global_worker_stdstream_dispatcher", None)
    if dispatcher is None:  # a version of Ray that brings them in another way
        yield
        return
    before = dispatcher.emit

    def show(words: Any) -> None:
        if wanted():
            before(words)

    dispatcher.emit = show
    try:
        yield
    finally:
        dispatcher.emit = before


__all__ = ["drop_worker_words"]
