"""Unpacking archives from anywhere: plain files only, and never outside the given folder."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from rayfl.errors import DataError, broken

_Member = tuple[str, Callable[[], IO[bytes] | None]]
_TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_COPY_BYTES = 1 << 20
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError)


def is_archive(file: Path) -> bool:
    """By its name: an .npz is a zip file too, but not an archive to unpack."""
    return file.name.lower().endswith((*_TAR, ".zip"))


def unpack_archive(archive: Path, into: Path) -> None:
    """Write the files of a tar or zip archive below `into`, with plain permissions."""
    is_zip = archive.name.lower().endswith(".zip")
    open_members = _open_zip_members if is_zip else _open_tar_members
    try:
        for name, open_member in open_members(archive):
            target = _resolve_inside(archive, into, name)
            stream = open_member()
            if stream is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with stream, target.open("wb") as out:
                    shutil.copyfileobj(stream, out, _COPY_BYTES)
    except _DAMAGED as error:
        rule = f"{archive} must be a whole archive"
        raise DataError(broken(rule, error, "Fetch it again")) from error


def _resolve_inside(
    archive: Path,
    into: Path,
    name: str,
) -> Path:
    """The place of a member, which may not lie elsewhere."""
    # Resolved, so that `..`, absolute names and links are all caught by one comparison.
    target = (into / name).resolve()
    if not target.is_relative_to(into.resolve()):
        rule = f"the files of {archive} stay inside it"
        raise DataError(broken(rule, name, "Do not trust this archive"))
    return target


def _open_tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile():
                yield member.name, lambda member=member: tar.extractfile(member)  # type: ignore[misc]
            # A link could point outside and be written through by the next member.
            elif not member.isdir():
                rule = f"{archive} holds files and folders only"
                found = f"{member.name}, a link or a device"
                raise DataError(broken(rule, found, "Do not trust this archive"))


def _open_zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            if not member.is_dir():
                yield member.filename, lambda member=member: packed.open(member)  # type: ignore[misc]
