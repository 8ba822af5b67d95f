"""Where checkpoints lie: a folder of this machine, or any pyarrow filesystem URI."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rayfl.durable import make_folder, place_file, sync_files, write_file
from rayfl.locks import FileLock, take_lock


class CheckpointFiles(Protocol):
    """Files below one place, by names that may have a folder in them."""

    def write(self, name: str, blob: bytes) -> None:
        """Whole or not at all, as far as a reader sees; a loss of power may spoil it."""

    def write_settled(self, name: str, blob: bytes) -> None:
        """Whole or not at all, and there to stay."""

    def settle(self, names: Collection[str]) -> None:
        """Return when files that were written cannot be lost any more."""

    def read(self, name: str) -> bytes: ...

    def delete(self, name: str) -> None:
        """A file that is not there is as good as deleted."""

    def names(self, folder: str = "") -> list[str]:
        """The files in a folder."""

    def lock(self, patience: float) -> FileLock | None:
        """Keep other writers out, where that can be done."""


class LocalFiles:
    """A folder of a file system that this machine has mounted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        make_folder(root / "clients")

    def write(self, name: str, blob: bytes) -> None:
        place_file(self.root / name, blob)

    def write_settled(self, name: str, blob: bytes) -> None:
        write_file(self.root / name, blob)

    def settle(self, names: Collection[str]) -> None:
        sync_files(self.root / name for name in names)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def names(self, folder: str = "") -> list[str]:
        return [path.name for path in (self.root / folder).iterdir() if path.is_file()]

    def lock(self, patience: float) -> FileLock | None:
        return take_lock(self.root / "lock", f"the checkpoints in {self.root}", patience)


class RemoteFiles:
    """A store that pyarrow knows; what it has accepted is as safe as it makes it."""

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        self.files: Any
        self.root: str
        self.files, self.root = fs.FileSystem.from_uri(uri)
        self.files.create_dir(f"{self.root}/clients", recursive=True)

    def write(self, name: str, blob: bytes) -> None:
        target = f"{self.root}/{name}"
        try:
            with self.files.open_output_stream(f"{target}.part") as stream:
                stream.write(blob)
            self.files.move(f"{target}.part", target)
        except OSError:
            self.delete(f"{name}.part")
            raise

    def write_settled(self, name: str, blob: bytes) -> None:
        self.write(name, blob)

    def settle(self, names: Collection[str]) -> None:
        """Nothing to wait for."""

    def read(self, name: str) -> bytes:
        with self.files.open_input_stream(f"{self.root}/{name}") as stream:
            return bytes(stream.read())

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.files.delete_file(f"{self.root}/{name}")

    def names(self, folder: str = "") -> list[str]:
        from pyarrow import fs

        place = f"{self.root}/{folder}".rstrip("/")
        return [i.base_name for i in self.files.get_file_info(fs.FileSelector(place)) if i.is_file]

    def lock(self, patience: float) -> FileLock | None:
        """Stores of objects have no locks; the run's own directory has one."""
        return None


def check_uri(uri: str) -> None:
    """Refuse a URI that no file system can be made of; whether one answers is not asked.

    Raises
    ------
    ValueError
        As pyarrow says it, which may name credentials.
    """
    if "://" not in uri:
        return
    from pyarrow import fs

    if uri.startswith("s3://") and "region=" not in uri:
        # Without one the store would be asked for it.
        uri += f"{'&' if '?' in uri else '?'}region=us-east-1"
    with suppress(OSError):
        fs.FileSystem.from_uri(uri)


def open_files(uri: str) -> CheckpointFiles:
    """The files at a path or URI, whose folder is made.

    Raises
    ------
    OSError, ValueError
        There is no such place, or nothing can be written there.
    """
    if "://" not in uri:
        return LocalFiles(Path(uri))
    remote = RemoteFiles(uri)
    is_local = remote.files.type_name == "local"
    return LocalFiles(Path(remote.root)) if is_local else remote
