"""A machine that loses its power: what a program asked of the disk, and what the disk may have of
it afterwards.

Recorded is every file that is written below a folder, every rename, removal, new folder and sync,
however the program does it. After each of these steps a disk has what was synced; of what was not,
any part may be there, and files may be torn."""

from __future__ import annotations

import builtins
import io
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Step = tuple[str, Any]
Chance = Callable[[], float]
WRITING = set("wax+")


class Recorder:
    """What a program asked of the disk below a folder, in order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[Step] = []
        self._contents: dict[str, bytes] = {}

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record from now on."""
        opened = self._wrap_open(io.open)
        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(builtins, "open", opened)
        monkeypatch.setattr(os, "open", self._wrap_low_open(os.open))
        monkeypatch.setattr(os, "fsync", self._wrap_fsync(os.fsync))
        monkeypatch.setattr(os, "truncate", self._wrap_truncate(os.truncate))
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, self._wrap_rename(getattr(os, name)))
        for name in ("unlink", "remove"):
            monkeypatch.setattr(os, name, self._wrap_naming(getattr(os, name), "unlink"))
        monkeypatch.setattr(os, "mkdir", self._wrap_naming(os.mkdir, "mkdir"))

    def _name_of(self, path: Any) -> str | None:
        """The name below the folder; None of what lies elsewhere."""
        if isinstance(path, int):
            return None
        name = os.path.relpath(os.fspath(path), self.root)
        return None if name.startswith("..") else name

    def _note_content(self, name: str | None) -> None:
        """What is in a file now, if that has changed."""
        if name is None:
            return
        try:
            descriptor = os.open(self.root / name, os.O_RDONLY)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb") as file:
            content = file.read()
        if self._contents.get(name) != content:
            self._contents[name] = content
            self.steps.append(("write", (name, content)))

    def _wrap_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *more: Any, **others: Any) -> Any:
            stream = real(file, mode, *more, **others)
            name = self._name_of(file) if WRITING & set(mode) else None
            if name is not None:
                self._note_content(name)
                stream.close = self._wrap_close(stream, name)
            return stream

        return opened

    def _wrap_close(self, stream: Any, name: str) -> Callable[[], None]:
        def close() -> None:
            if not stream.closed:
                type(stream).close(stream)
                self._note_content(name)

        return close

    def _wrap_low_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *more: Any, **others: Any) -> int:
            descriptor = real(path, flags, *more, **others)
            if flags & os.O_CREAT and "dir_fd" not in others:
                self._note_content(self._name_of(path))
            return descriptor

        return opened

    def _wrap_fsync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            name = self._name_of(path)
            if name is not None:
                if os.path.isfile(path):
                    self._note_content(name)
                self.steps.append(("sync", name))
            real(descriptor)

        return fsync

    def _wrap_truncate(self, real: Callable[..., None]) -> Callable[..., None]:
        def truncate(path: Any, length: int) -> None:
            real(path, length)
            self._note_content(self._name_of(path))

        return truncate

    def _wrap_rename(self, real: Callable[..., None]) -> Callable[..., None]:
        def rename(old: Any, new: Any, **more: Any) -> None:
            real(old, new, **more)
            names = self._name_of(old), self._name_of(new)
            if None not in names:
                self._contents[str(names[1])] = self._contents.pop(str(names[0]), b"")
                self.steps.append(("rename", names))

        return rename

    def _wrap_naming(self, real: Callable[..., None], kind: str) -> Callable[..., None]:
        def change(path: Any, *more: Any, **others: Any) -> None:
            real(path, *more, **others)
            name = None if others.get("dir_fd") is not None else self._name_of(path)
            if name is not None:
                self._contents.pop(name, None)
                self.steps.append((kind, name))

        return change


# -- what a disk has afterwards --------------------------------------------------------------------


@dataclass
class Inode:
    """A file under whatever name: what was written to it, and what of that was synced."""

    content: bytes = b""
    synced: bytes | None = None


@dataclass
class Change:
    """Names in a folder that come (a file, or None for a folder), or go; synced with the folder."""

    folder: str
    come: dict[str, Inode | None] = field(default_factory=dict)
    go: list[str] = field(default_factory=list)
    synced: bool = False


def found_after(steps: Sequence[Step], chance: Chance) -> dict[str, bytes]:
    """The files that a disk may have after these steps. `chance` below .5 loses what was not
    synced, or tears it."""
    inodes: dict[str, Inode] = {}
    changes: list[Change] = []
    for kind, what in steps:
        if kind == "sync":
            _sync(what, inodes, changes)
        else:
            changes += _changes_of(kind, what, inodes)
    names: dict[str, Inode | None] = {}
    for change in changes:
        if change.synced or chance() >= 0.5:
            names |= change.come
            for name in change.go:
                names.pop(name, None)
    made = {name for change in changes for name, inode in change.come.items() if inode is None}
    lost = made - set(names)
    return {
        name: torn(inode, chance)
        for name, inode in names.items()
        if inode is not None and not any(name.startswith(f"{folder}/") for folder in lost)
    }


def _changes_of(kind: str, what: Any, inodes: dict[str, Inode]) -> Iterator[Change]:
    """What a step does to names; files get their content."""
    if kind == "write":
        name, content = what
        if name in inodes:
            inodes[name].content = content
            return
        inodes[name] = Inode(content)
        yield Change(os.path.dirname(name), {name: inodes[name]})
    elif kind == "rename":
        old, new = what
        if old in inodes:
            inodes[new] = inodes.pop(old)
            yield Change(os.path.dirname(new), {new: inodes[new]}, [old])
    elif kind == "unlink":
        inodes.pop(what, None)
        yield Change(os.path.dirname(what), go=[what])
    elif kind == "mkdir":
        yield Change(os.path.dirname(what), {what: None})


def _sync(name: str, inodes: dict[str, Inode], changes: list[Change]) -> None:
    if name in inodes:
        inodes[name].synced = inodes[name].content
    folder = "" if name == "." else name
    for change in changes:
        change.synced = change.synced or change.folder == folder


def torn(inode: Inode, chance: Chance) -> bytes:
    """The content; of what was not synced, perhaps the beginning, or zeros, or what was there
    before."""
    content, synced = inode.content, inode.synced
    if synced == content or chance() >= 0.5:
        return content
    if synced is not None and not content.startswith(synced):
        # Cut short, or written over in place.
        return synced if chance() >= 0.5 or synced.startswith(content) else b""
    sure = len(synced or b"")
    half = content[: sure + (len(content) - sure) // 2]
    return half if chance() >= 0.5 else half + bytes(len(content) - len(half))


def chances(seed: int, between: int = 12) -> list[Chance]:
    """All that was not synced is lost; all is there; and some of the ways between."""
    rng = random.Random(seed)
    return [lambda: 0.0, lambda: 1.0, *[rng.random] * between]


def lay_out(folder: Path, files: dict[str, bytes]) -> Path:
    """A disk that has these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
