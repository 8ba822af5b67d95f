"""What a process of a fleet does with the machine that it is on: processors of its own, memory that
it keeps, and garbage that it does not look for.

*Processors.* Short rounds put actors to sleep and wake them a thousand times a second, and a
scheduler that wakes two of them on one processor leaves them there for a while, next to an idle
one. So each actor keeps to processors that no other one has claimed: a lock on a file stands for
each, and the system lets go of it when the process ends, however it ends.

*Memory.* What training frees it needs again a millisecond later. glibc hands large blocks back to
the system at once; every step then pays for thousands of page faults, which on small networks is a
third of its time.

*Garbage.* Python looks through all that was ever imported; it takes a sixth of the time that
importing torch does, and later it would halt short rounds."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
TRIM_BYTES = 1 << 30

_claims: list[IO[bytes]] = []


# -- processors ------------------------------------------------------------------------------------


def claim_cores(count: int) -> list[int]:
    """Bind this thread, and those that it starts, to unclaimed processors; to none if there are not
    enough."""
    if sys.platform != "linux":
        return []
    claimed: dict[int, IO[bytes]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        if len(claimed) < count and (lock := _lock_core(core)) is not None:
            claimed[core] = lock
    # With fewer than it has threads, they would take turns while other processors idle.
    if not claimed or len(claimed) < count:
        return []
    os.sched_setaffinity(0, claimed)
    # An open file is a claim: it must outlive this call.
    _claims.extend(claimed.values())
    return list(claimed)


def _lock_core(core: int) -> IO[bytes] | None:
    """The lock of a processor, unless another process has it."""
    import fcntl

    # A folder for each user: nobody can hold another's processors by holding a file.
    folder = Path(tempfile.gettempdir(), f"rayfl-cores-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = (folder / str(core)).open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def current_core() -> int:
    """The processor on which this thread runs at the moment; -1 where the system does not tell."""
    return -1 if LIBC is None else int(LIBC.sched_getcpu())


# -- memory ----------------------------------------------------------------------------------------


def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed; whether it understood (only glibc does)."""
    # Read by torch when it first allocates: tensors of megabytes on pages of two megabytes, as
    # numpy has them anyway.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # No block is mapped by itself: whole models, of tens of megabytes, come and go with every
    # client.
    return bool(mallopt(M_TRIM_THRESHOLD, TRIM_BYTES) and mallopt(M_MMAP_MAX, 0))


# -- garbage ---------------------------------------------------------------------------------------


@contextmanager
def spare_imports() -> Iterator[None]:
    """What is imported here stays: it is not looked through for garbage, now or ever again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_objects() -> None:
    """What is here by now stays: it is looked through once more, and never again."""
    gc.collect()
    gc.freeze()
