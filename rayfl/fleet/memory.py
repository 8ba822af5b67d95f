"""A limit on the memory that a process takes of its own while it visits clients.

It is RLIMIT_DATA, which the kernel holds: a phase that allocates too much gets a MemoryError at
that line, however large the request, and the machine keeps the rest. RLIMIT_AS would count what is
only mapped, Ray's object store and CUDA's addresses too; a thread that measures comes too late for
one large request. What libraries had reserved before the limit was made, and have not touched, is
not counted."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayfl.errors import ResourceError, broken

STATUS = Path("/proc/self/status")
GB = 10**9


class MemoryLimit:
    """Holds this process to so many bytes of its own memory, inside `hold` alone."""

    def __init__(self, nbytes: int) -> None:
        if sys.platform != "linux":
            rule = "resources.memory_per_client needs Linux"
            raise ResourceError(broken(rule, sys.platform, "Leave it out."))
        taken = measure_own_memory()
        if taken >= nbytes:
            rule = f"an actor takes {taken / GB:.2f} GB before its first visit"
            remedy = "Raise resources.memory_per_client."
            raise ResourceError(broken(rule, f"a limit of {nbytes / GB:.2f} GB", remedy))
        self.nbytes = nbytes
        reserved = read_status("VmData") - taken
        self._most = reserved + nbytes
        self._refuse_if_ignored()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """What is allocated inside, by any thread, must fit."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        ours = self._most if hard == resource.RLIM_INFINITY else min(self._most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (ours, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def _refuse_if_ignored(self) -> None:
        """Some sandboxes take the limit and do not hold it."""
        try:
            with self.hold():
                # Addresses alone: nothing of it is touched.
                kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                mmap.mmap(-1, self._most + GB, flags=kind).close()
        except OSError:
            return
        rule = "resources.memory_per_client needs a kernel that holds processes to RLIMIT_DATA"
        raise ResourceError(broken(rule, "one that does not", "Leave it out."))


def measure_own_memory() -> int:
    """The bytes that this process has touched and shares with nobody."""
    return read_status("RssAnon")


def read_status(name: str) -> int:
    """A size of this process's, in bytes, as the kernel tells it."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no more memory: Python's, numpy's or torch's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
