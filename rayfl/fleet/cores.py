"""Processors of their own for the actors of a machine.

Short rounds put actors to sleep and wake them a thousand times a second, and a scheduler that wakes
two of them on one processor leaves them there for a while, next to an idle one. So each actor keeps
to processors that no other one has claimed: a lock on a file stands for each, and the system lets
go of it when the process ends, however it ends."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path
from typing import IO

held: list[IO[bytes]] = []
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def keep_to_own(count: int) -> list[int]:
    """Bind this thread, and those that it starts, to unclaimed processors; to none if there are not
    enough."""
    if sys.platform != "linux":
        return []
    claimed: dict[int, IO[bytes]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        if len(claimed) < count and (lock := claim(core)) is not None:
            claimed[core] = lock
    # With fewer than it has threads, they would take turns while other processors idle.
    if not claimed or len(claimed) < count:
        return []
    os.sched_setaffinity(0, claimed)
    # An open file is a claim: it must outlive this call.
    held.extend(claimed.values())
    return list(claimed)


def claim(core: int) -> IO[bytes] | None:
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


def current() -> int:
    """The processor on which this thread runs at the moment; -1 where the system does not tell."""
    return -1 if LIBC is None else int(LIBC.sched_getcpu())
