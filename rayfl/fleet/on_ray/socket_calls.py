"""A standing line to an actor on this node, for rounds that are shorter than the calls they are
made of.

A call through Ray's scheduler costs the caller and the actor about a millisecond each; a round of a
hundred tiny clients trains in less. A line is a socket between the two, with a thread of the
actor's at its end: nobody schedules anything, and who waits sleeps. (Ray's own compiled graphs poll
while they wait, which takes a processor from those that train.) It carries values, no references.
"""

from __future__ import annotations

import logging
import pickle
import secrets
import select
import shutil
import socket
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, cast

import ray
from ray.actor import ActorHandle

from rayfl.fleet.on_ray.calls import Answer, Call, Inputs
from rayfl.fleet.on_ray.ray_calls import gather_answers
from rayfl.fleet.on_ray.transport import CallFailed, Found, Pending, PlaceDied
from rayfl.fleet.on_ray.values import Parcel
from rayfl.fleet.on_ray.wire import LEAST_BYTES, Lay, answer_wire, open_wire

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.pool import Place

log = logging.getLogger("rayfl")

LINE_ENDS = (EOFError, ConnectionError)
KEY_BYTES = 16
SHORT_SECONDS = 0.05
SHORT_CALLS = 3  # in a row, of one actor; then it gets a line


class SocketLine:
    """Calls of an actor's `serve`, one at a time."""

    def __init__(self, actor: ActorHandle) -> None:
        key = secrets.token_bytes(KEY_BYTES)
        with _make_meeting_place() as folder:
            (address,) = gather_answers([actor.listen.remote(key, folder)])
            self.socket = socket.socket(socket.AF_UNIX)
            # Whoever drops a line hangs up.
            weakref.finalize(self, self.socket.close)
            try:
                self.socket.connect(address)
                self.wire = open_wire(self.socket, key)
            except OSError as error:
                raise PlaceDied.shown_by(error) from None
        self.owes = False

    def call(self, arguments: Sequence[object]) -> SocketAnswer[Any]:
        """Whoever waited for the last answer may have given up; it is not to be taken for this
        one's."""
        # A line that has ended says so when the answer is taken.
        with suppress(*LINE_ENDS):
            if self.owes:
                self.hear()
            self.wire.send(arguments, pickle_call)
        self.owes = True
        return SocketAnswer(self)

    def hear(self) -> tuple[bool, object]:
        """The next answer, and whether it is one."""
        well, answer = cast("tuple[bool, object]", self.wire.receive())
        self.owes = False
        return well, answer

    def close(self) -> None:
        """Hang up: the thread at the other end is done."""
        self.socket.close()


class SocketAnswer(Pending[Found], Generic[Found]):
    """What will be heard on a line."""

    def __init__(self, line: SocketLine) -> None:
        self.line = line

    def take(self) -> Found:
        try:
            well, found = self.line.hear()
        except LINE_ENDS as error:
            raise PlaceDied.shown_by(error) from None
        if not well:
            raise CallFailed(found)
        return cast(Found, found)


class SocketCalls:
    """A transport for places that have a line."""

    def post(self, place: Place, call: Call) -> SocketAnswer[Answer]:
        assert place.line is not None
        packed, _ = call.packed
        return place.line.call(["run", packed])

    def lay_line(self, place: Place) -> None:
        """Give a place its line."""
        try:
            place.line = SocketLine(place.actor)
        except PlaceDied:
            log.debug("an actor died while a line was laid to it: its next call will tell")


def wait_for_socket(answers: Sequence[SocketAnswer[Any]]) -> SocketAnswer[Any]:
    """The next one that can be heard."""
    lines = {answer.line.socket.fileno(): answer for answer in answers}
    ears = select.poll()
    for line in lines:
        ears.register(line, select.POLLIN)
    (first, _), *_ = ears.poll()
    return lines[first]


# -- the far end -----------------------------------------------------------------------------------


@contextmanager
def _make_meeting_place() -> Iterator[str]:
    """A folder for a line's address, which nobody else may enter.

    It is the near end's, and goes when the ends have met or never will: an actor that is killed
    meanwhile cannot clear up."""
    folder = tempfile.mkdtemp(prefix="rayfl-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve_method(method: Callable[..., object], key: bytes, folder: str) -> str:
    """The address of a line's far end, in a folder that the near end has made; a thread calls
    `method` there, until the near end hangs up."""
    address = f"{folder}/line"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(1)

    def attend() -> None:
        with listener:
            line, _ = listener.accept()
        with line, suppress(*LINE_ENDS):
            wire = answer_wire(line, key)
            while wire is not None:
                arguments = cast("Sequence[object]", wire.receive())
                wire.send(attempt_call(method, arguments), pickle_answer)

    threading.Thread(target=attend, name="line", daemon=True).start()
    return address


def attempt_call(method: Callable[..., object], arguments: Sequence[object]) -> tuple[bool, object]:
    """Whether it went well, and what came of it."""
    try:
        return True, method(*arguments)
    except Exception:
        return False, traceback.format_exc()


def pickle_call(value: object, lay: Lay) -> bytes:
    """A call as bytes: its phase may be a notebook's, which Ray's pickler knows."""
    return bytes(ray.cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=lay))


def pickle_answer(value: object, lay: Lay | None = None) -> bytes:
    """An answer as bytes; Ray's pickler takes twice as long."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=lay)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Whole: some of it may have been laid aside before this one failed.
        return bytes(ray.cloudpickle.dumps(value))


def pack_state(state: Inputs) -> Parcel:
    """A client's state, whose arrays are copied when it is sent."""
    arrays: list[pickle.PickleBuffer] = []

    def keep(array: pickle.PickleBuffer) -> bool:
        if array.raw().nbytes < LEAST_BYTES:
            return True
        arrays.append(array)
        return False

    return pickle_answer(dict(state), keep), arrays
