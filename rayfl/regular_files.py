"""Files of anybody's, read only if they are files, and only up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_PIECE_BYTES = 1 << 20


def open_regular(path: Path) -> BinaryIO:
    """A file, opened for reading.

    Raises
    ------
    OSError
        There is none, or it is a folder, a pipe, a socket or a device.
    """
    # Whoever opens a pipe to which nobody writes would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "Is a pipe, a socket or a device", str(path))


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a file of at most so many bytes; raises as `open_regular` does."""
    pieces = []
    left = most_bytes
    with open_regular(path) as file:
        # No more at once than it says that it holds: a buffer of the limit's size may be too large.
        size = max(os.fstat(file.fileno()).st_size, _PIECE_BYTES)
        while left >= 0 and (piece := file.read(min(size, left + 1))):
            pieces.append(piece)
            left -= len(piece)
    if left < 0:
        raise OSError(errno.EFBIG, f"Has more than {most_bytes:,} bytes", str(path))
    return b"".join(pieces)
