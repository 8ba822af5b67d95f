"""Files that are whole or not there, also after a loss of power."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

NO_SYNC_HERE = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def write_file(path: Path, content: bytes | str) -> None:
    """Replace a file: a reader sees the old content or the new one, and never a part.

    It has reached the disk when this returns.

    Parameters
    ----------
    path : Path
        The file; beside it lies, for a moment, one with `.part` at its end.
    content : bytes or str
        Text is written as UTF-8.
    """
    _replace_file(path, content.encode() if isinstance(content, str) else content, settled=True)
    _sync_path(path.parent)


def place_file(path: Path, blob: bytes) -> None:
    """The same without waiting for the disk; `sync_files` does that, for many files at once.

    A loss of power before that may leave the name and not the content."""
    _replace_file(path, blob, settled=False)


def _replace_file(path: Path, blob: bytes, settled: bool) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as stream:
            _write_all(stream, blob)
        if settled:
            _sync_path(part)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def _write_all(stream: BinaryIO, blob: bytes) -> int:
    return stream.write(blob)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it; their names have reached the disk when this returns."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in dict.fromkeys(made.parent for made in missing):
        _sync_path(each)


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until files, and their names in their folders, have reached the disk."""
    files = list(paths)
    for path in [*files, *dict.fromkeys(path.parent for path in files)]:
        _sync_path(path)


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; they order its changes themselves.
        if not (path.is_dir() and error.errno in NO_SYNC_HERE):
            raise
    finally:
        os.close(descriptor)
