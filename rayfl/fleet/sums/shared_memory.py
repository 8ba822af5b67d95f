"""Memory that all actors of a node see: whoever adds up large updates reads them where they were
made.

A page is an anonymous file. It has no name that could be left behind: another process of the same
user opens it through /proc and the number of the process that made it, and it is gone with the last
process that maps it, however that ends. Pages that nobody refers to any more are used again,
because fresh memory costs as much as filling it."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from rayfl.protocol import Vector

log = logging.getLogger("rayfl")

LEAST_BYTES = 1 << 20  # below, to map a page takes longer than to copy it
MOST_PAGES = 128  # of a process: each is an open file, of which a thousand are commonly allowed
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Page:
    """Where a vector lies: an open file of a process, and the file's own number, which tells it
    from any other."""

    pid: int
    descriptor: int
    inode: int
    length: int

    def open(self, writable: bool = False) -> Vector:
        """The vector; an OSError where the process is gone, or another one has its number."""
        descriptor = os.open(
            f"/proc/{self.pid}/fd/{self.descriptor}", os.O_RDWR if writable else os.O_RDONLY
        )
        try:
            if os.fstat(descriptor).st_ino != self.inode:
                raise FileNotFoundError(
                    f"process {self.pid} is no longer the one whose page was named"
                )
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            seen = mmap.mmap(descriptor, self.length * FLOAT_BYTES, flags=SHARED, prot=access)
        finally:
            os.close(descriptor)
        return np.frombuffer(seen, np.float32)


@dataclass(frozen=True, eq=False)
class Held:
    """A page of this process, mapped."""

    page: Page
    memory: mmap.mmap

    @classmethod
    def made(cls, length: int) -> Held:
        descriptor = os.memfd_create("rayfl")
        os.ftruncate(descriptor, length * FLOAT_BYTES)
        page = Page(os.getpid(), descriptor, os.fstat(descriptor).st_ino, length)
        return cls(page, mmap.mmap(descriptor, length * FLOAT_BYTES, flags=SHARED))


class Opened:
    """Pages of other processes, as they are seen from here. Those of the last sum stay open: to map
    one takes as long as to read it, and the next sum is commonly over the same."""

    def __init__(self) -> None:
        self.vectors: dict[Page, Vector] = {}

    def only(self, pages: Iterable[Page], written: Page) -> dict[Page, Vector]:
        """These pages, and no others from now on; one of them may be written to."""
        known = self.vectors
        self.vectors = {
            page: known[page] if page in known else page.open(page == written) for page in pages
        }
        return self.vectors


class Pages:
    """The pages of this process, by how many numbers they hold."""

    def __init__(self) -> None:
        self.made = 0
        self.idle: dict[int, list[Held]] = defaultdict(list)
        self.lent: dict[int, Page] = {}

    def vector(self, length: int) -> Vector:
        """A vector to be filled: on a page if it is large, and then for as long as anybody refers
        to it. In ordinary memory where there are pages enough."""
        held = self._page(length) if SUPPORTED and length * FLOAT_BYTES >= LEAST_BYTES else None
        if held is None:
            return np.empty(length, np.float32)
        # Every view of the vector refers to this object, which the map itself would outlive.
        loan = (ctypes.c_char * (length * FLOAT_BYTES)).from_buffer(held.memory)
        vector: Vector = np.frombuffer(memoryview(loan), np.float32)
        self.lent[address_of(vector)] = held.page
        weakref.finalize(loan, self._give_back, held, address_of(vector)).atexit = False
        return vector

    def _page(self, length: int) -> Held | None:
        if idle := self.idle[length]:
            return idle.pop()
        if self.made >= MOST_PAGES:
            return None
        self.made += 1
        try:
            return Held.made(length)
        except OSError as error:
            # A page only saves time: no limit of the system's may end a run.
            log.warning(
                "no more shared memory for large updates (%s): further ones are sent instead", error
            )
            self.made = MOST_PAGES
            return None

    def _give_back(self, held: Held, at: int) -> None:
        del self.lent[at]
        self.idle[held.page.length].append(held)

    def page_of(self, vector: Vector) -> Page | None:
        """The page that a vector fills, if it does."""
        page = self.lent.get(address_of(vector))
        return page if page is not None and page.length == len(vector) else None


SUPPORTED = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
# Mapped at once: page by page, faults would take longer than the sum.
SHARED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


def address_of(vector: NDArray[np.float32]) -> int:
    return cast(int, vector.__array_interface__["data"][0])
