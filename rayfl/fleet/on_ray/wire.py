"""Messages between two processes of a node: a socket wakes the reader, and what is large in a
message lies in memory that both see.

Through the socket alone, the states of a hundred clients are copied half a dozen times on each way,
by both ends and by the kernel. The memory is one end's to write and the other's to read, and holds
one message: the next is sent when this one has been read, as calls and answers on a line are."""

from __future__ import annotations

import hmac
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile

from rayfl.fleet.sums.shared_memory import SUPPORTED

ROOM = 8 << 20
"""Bytes of large values in a message; only those that were ever written to take memory. What finds
no room goes through the socket."""
LEAST_BYTES = 1 << 10  # below, to lay a value aside takes longer than to copy it
HEADER = struct.Struct("!QQ")
PLACED = struct.Struct("!Q")

Lay = Callable[[pickle.PickleBuffer], bool]
"""What a pickler asks of every large value: whether it is to go inside the message after all."""
Dump = Callable[[object, Lay], bytes]
"""A pickler."""


class Wire:
    """One end. The socket is the caller's to close."""

    def __init__(self, line: socket.socket, written: mmap.mmap, read: mmap.mmap) -> None:
        self.line = line
        self.written = written
        self.read = memoryview(read)

    def send(self, value: object, dump: Dump) -> None:
        """In one go: whoever waits wakes up once."""
        laid = LaidAside(self.written)
        message = dump(value, laid.lay)
        sizes = b"".join(map(PLACED.pack, laid.sizes))
        self.line.sendall(HEADER.pack(len(message), len(laid.sizes)) + sizes + message)

    def receive(self) -> object:
        """The next message, as values of this process's own."""
        length, count = HEADER.unpack(receive_exactly(self.line, HEADER.size))
        found = memoryview(receive_exactly(self.line, count * PLACED.size + length))
        sizes = [size for (size,) in PLACED.iter_unpack(found[: count * PLACED.size])]
        return pickle.loads(found[count * PLACED.size :], buffers=self._pick_up(sizes))

    def _pick_up(self, sizes: Sequence[int]) -> list[bytearray]:
        """Copies, for a phase may hold on to what it was given, and the next message comes here."""
        start, found = 0, []
        for size in sizes:
            found.append(bytearray(self.read[start : start + size]))
            start += size
        return found


class LaidAside:
    """The large values of one message, one behind the other."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.sizes: list[int] = []
        self.end = 0

    def lay(self, value: pickle.PickleBuffer) -> bool:
        """A `Lay`."""
        raw = value.raw()
        start, end = self.end, self.end + raw.nbytes
        if raw.nbytes < LEAST_BYTES or end > ROOM:
            return True
        self.memory[start:end] = raw
        self.sizes.append(raw.nbytes)
        self.end = end
        return False


def open_wire(line: socket.socket, key: bytes) -> Wire:
    """The near end of a connected line: makes the memory, and says the key with it."""
    with make_room() as ours, make_room() as theirs:
        socket.send_fds(line, [key], [ours, theirs])
        return Wire(line, map_room(ours), map_room(theirs))


def answer_wire(line: socket.socket, key: bytes) -> Wire | None:
    """The far end; None where a stranger has connected, who does not know the key."""
    said, descriptors, _, _ = socket.recv_fds(line, len(key), 2)
    try:
        if not hmac.compare_digest(said, key):
            return None
        theirs, ours = map(map_room, descriptors)
        return Wire(line, ours, theirs)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def make_room() -> Iterator[int]:
    """The descriptor of a file without a name, which is gone with the last process that maps it."""
    with open(os.memfd_create("rayfl"), "r+b") if SUPPORTED else TemporaryFile() as made:
        made.truncate(ROOM)
        yield made.fileno()


def map_room(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, ROOM)


def receive_exactly(line: socket.socket, size: int) -> bytearray:
    """So many bytes, or an EOFError."""
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = line.recv_into(view, 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError("the other end of a line is gone")
        view = view[count:]
    return found
