"""Memory that training frees and needs again a millisecond later should stay with the process.

glibc hands large blocks back to the system at once; every step then pays for thousands of page
faults, which on small networks is a third of its time."""

from __future__ import annotations

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
TRIM_BYTES = 1 << 30


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
