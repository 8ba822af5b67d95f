"""A standing line to an actor on this node, for rounds that are shorter than the calls they are
made of.

A call through Ray's scheduler costs the caller and the actor about a millisecond each; a round of a
hundred tiny clients trains in less. A line is a socket between the two, with a thread of the
actor's at its end: nobody schedules anything, and who waits sleeps. (Ray's own compiled graphs poll
while they wait, which takes a processor from those that train.) It carries values, no references.
"""

from __future__ import annotations

import hmac
import pickle
import secrets
import select
import shutil
import socket
import struct
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayActorError

LINE_ENDS = (EOFError, ConnectionError)
DEATHS = (RayActorError, ActorDiedError, ActorUnavailableError, OutOfMemoryError, *LINE_ENDS)
"""How it shows that an actor is gone."""

HEADER = struct.Struct("!Q")
KEY_BYTES = 16
SHORT_SECONDS = 0.05
SHORT_CALLS = 3  # in a row, of one actor; then it gets a line


class LineError(Exception):
    """What an actor's method raised at the other end, as text."""


class Line:
    """Calls of one method, one at a time."""

    def __init__(self, actor: Any) -> None:
        key = secrets.token_bytes(KEY_BYTES)
        address = ray.get(actor.listen.remote(key))
        self.socket = socket.socket(socket.AF_UNIX)
        # Whoever drops a line hangs up.
        weakref.finalize(self, self.socket.close)
        self.socket.connect(address)
        self.socket.sendall(key)
        self.owes = False

    def call(self, *arguments: Any) -> Spoken:
        """Whoever waited for the last answer may have given up; it is not to be taken for this
        one's."""
        with suppress(*LINE_ENDS):
            if self.owes:
                self.hear()
            send(self.socket, ray.cloudpickle.dumps(arguments))
        self.owes = True
        return Spoken(self)

    def hear(self) -> tuple[bool, Any]:
        """The next answer, and whether it is one."""
        answer: tuple[bool, Any] = receive(self.socket)
        self.owes = False
        return answer

    def close(self) -> None:
        """Hang up: the thread at the other end is done."""
        self.socket.close()


@dataclass(frozen=True, eq=False)
class Spoken:
    """A call on a line that waits to be answered. That the actor is dead shows in `get`, as it does
    in `ray.get`."""

    line: Line

    def get(self) -> Any:
        well, value = self.line.hear()
        if not well:
            raise LineError(value)
        return value


def unwind(error: BaseException) -> None:
    """Let go of the calls that an error came through, once it is dealt with.

    A call of Ray's still refers to the error that it raised, and so the two of them, the round
    around them, and all updates of that round, would stay until Python looks for garbage."""
    error.__traceback__ = None


def taken(reference: Any) -> Any:
    """What a call answered, by whichever way it went."""
    return reference.get() if isinstance(reference, Spoken) else ray.get(reference)


def first_of(references: Sequence[Any]) -> Any:
    """The next call to take an answer from; short ones first, which are the ones on lines."""
    spoken = {
        reference.line.socket.fileno(): reference
        for reference in references
        if isinstance(reference, Spoken)
    }
    if not spoken:
        return ray.wait(list(references), num_returns=1)[0][0]
    ears = select.poll()
    for line in spoken:
        ears.register(line, select.POLLIN)
    return spoken[ears.poll()[0][0]]


def answered(method: Callable[..., Any], key: bytes) -> str:
    """The address of a line's far end; a thread calls `method` there, until the near end hangs
    up."""
    folder = tempfile.mkdtemp(prefix="rayfl-")  # nobody else may enter it
    address = f"{folder}/line"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(1)

    def attend() -> None:
        with listener:
            line, _ = listener.accept()
        # Two ends that have met need no name, and so nothing stays behind, however they end.
        shutil.rmtree(folder, ignore_errors=True)
        with line, suppress(*LINE_ENDS):
            if not hmac.compare_digest(exactly(line, KEY_BYTES), key):
                return
            while True:
                send(line, packed(attempt(method, receive(line))))

    threading.Thread(target=attend, name="line", daemon=True).start()
    return address


def attempt(method: Callable[..., Any], arguments: Sequence[Any]) -> tuple[bool, Any]:
    """Whether it went well, and what came of it."""
    try:
        return True, method(*arguments)
    except Exception:
        return False, traceback.format_exc()


def packed(value: Any) -> bytes:
    """An answer as bytes; Ray's pickler, which knows what a notebook defines, takes twice as
    long."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(ray.cloudpickle.dumps(value))


def send(line: socket.socket, message: bytes) -> None:
    """In one go: whoever waits wakes up once."""
    line.sendall(HEADER.pack(len(message)) + message)


def receive(line: socket.socket) -> Any:
    (size,) = HEADER.unpack(exactly(line, HEADER.size))
    return pickle.loads(exactly(line, size))


def exactly(line: socket.socket, size: int) -> bytearray:
    """So many bytes, or an EOFError."""
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = line.recv_into(view, 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError("the other end of a line is gone")
        view = view[count:]
    return found
