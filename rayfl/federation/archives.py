"""Unpacking archives from anywhere: plain files only, never outside the given folder, and never
more than was agreed on."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from rayfl.errors import DataError, broken
from rayfl.federation.decoding import refuse_undecodable
from rayfl.regular_files import open_regular

_Member = tuple[str, IO[bytes]]
_TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_COPY_BYTES = 1 << 20
_BLOCK_BYTES = 512
"""What a file counts at least: it takes its place on the disk, however small it is."""
_LEAST_LIMIT = 100_000_000
_USUAL_RATIO = 20
"""How much larger than an archive its content may be, where nothing is known of it: pictures, which
are most of it, hardly shrink."""
_LONGEST_HEADER = 1 << 20


def is_archive(file: Path) -> bool:
    """By its name: an .npz is a zip file too, but not an archive to unpack."""
    return file.name.lower().endswith((*_TAR, ".zip"))


def unpack_archive(archive: Path, into: Path, most_bytes: int | None = None) -> None:
    """Write the files of a tar or zip archive below `into`, with plain permissions.

    Parameters
    ----------
    archive
        The archive.
    into
        The folder.
    most_bytes
        How much may be written; None for twenty times the archive's size, and 100 MB at least.
    """
    limit = most_bytes or max(_LEAST_LIMIT, _USUAL_RATIO * archive.stat().st_size)
    left = limit
    for name, stream in _read_members(archive, limit):
        target = _resolve_inside(archive, into, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with stream, target.open("wb") as out:
            left -= _BLOCK_BYTES
            for piece in _read_pieces(archive, stream):
                left -= len(piece)
                _refuse_excess(archive, left, limit)
                out.write(piece)
        _refuse_excess(archive, left, limit)


def _refuse_excess(archive: Path, left: int, limit: int) -> None:
    if left < 0:
        rule = f"{archive} unpacks to {limit:,} bytes at most"
        remedy = "Unpack it by hand, or allow more (`rayfl data get --unpacked-gb`)"
        raise DataError(broken(rule, "more", remedy))


def _resolve_inside(
    archive: Path,
    into: Path,
    name: str,
) -> Path:
    """The place of a member, which may not lie elsewhere."""
    # Resolved, so that `..`, absolute names and links are all caught by one comparison.
    with _refuse_damaged(archive):
        target = (into / name).resolve()
    if target == into.resolve() or not target.is_relative_to(into.resolve()):
        rule = f"the files of {archive} stay inside it"
        raise DataError(broken(rule, name, "Do not trust this archive"))
    return target


def _refuse_damaged(archive: Path) -> Any:
    return refuse_undecodable(f"{archive} must be a whole archive", "Fetch it again")


def _read_members(archive: Path, limit: int) -> Iterator[_Member]:
    """Names and contents of the files; what is wrong with the archive is said in a sentence."""
    is_zip = archive.name.lower().endswith(".zip")
    with _refuse_damaged(archive):
        yield from _open_zip_members(archive) if is_zip else _open_tar_members(archive, limit)


def _read_pieces(archive: Path, stream: IO[bytes]) -> Iterator[bytes]:
    with _refuse_damaged(archive):
        while piece := stream.read(_COPY_BYTES):
            yield piece


# -- tar -------------------------------------------------------------------------------------------


def _open_tar_members(archive: Path, limit: int) -> Iterator[_Member]:
    with (
        _open_unpacked(archive) as unpacked,
        # Headers and padding count too: a bomb may consist of them.
        tarfile.open(
            fileobj=_Measured(unpacked, archive, 2 * limit + _LONGEST_HEADER),
            mode="r|",
            tarinfo=_BoundedInfo,
        ) as tar,
    ):
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content
            # A link could point outside and be written through by the next member.
            elif not member.isdir():
                rule = f"{archive} holds files and folders only"
                found = f"{member.name}, a link or a device"
                raise DataError(broken(rule, found, "Do not trust this archive"))


def _open_unpacked(archive: Path) -> IO[bytes]:
    """The tar file itself, however it is packed."""
    packed = open_regular(archive)
    begin = packed.read(6)
    packed.seek(0)
    openers: dict[bytes, Callable[[IO[bytes]], Any]] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ\x00": lzma.open,
    }
    for magic, opener in openers.items():
        if begin.startswith(magic):
            return _Owning(opener(packed), packed)
    return packed


class _Owning(io.BufferedReader):
    """A stream that closes the file below it as well."""

    def __init__(self, stream: Any, below: IO[bytes]) -> None:
        super().__init__(stream)
        self._below = below

    def close(self) -> None:
        super().close()
        self._below.close()


class _Measured(io.RawIOBase):
    """A stream that ends in a refusal when more comes out of it than was agreed on."""

    def __init__(self, stream: IO[bytes], archive: Path, limit: int) -> None:
        self._stream = stream
        self._archive = archive
        self._limit = limit
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self._left -= len(piece)
        _refuse_excess(self._archive, self._left, self._limit)
        return piece


class _BoundedInfo(tarfile.TarInfo):
    """A member; headers that are read whole, such as long names, are not as long as they like."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        whole = self.type in (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
        )
        if whole and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


# -- zip -------------------------------------------------------------------------------------------


def _open_zip_members(archive: Path) -> Iterator[_Member]:
    with open_regular(archive) as file, zipfile.ZipFile(file) as packed:
        for member in packed.infolist():
            if not member.is_dir():
                yield member.filename, packed.open(member)
