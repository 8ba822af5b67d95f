"""Garbage collection around imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settling_in() -> Iterator[None]:
    """What is imported here stays: it is not looked through for garbage, now or ever again.

    Looking takes a sixth of the time that importing torch does, and later it would halt short
    rounds."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle() -> None:
    """What is here by now stays: it is looked through once more, and never again."""
    gc.collect()
    gc.freeze()
