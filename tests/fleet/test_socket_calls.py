"""Standing lines: laid to actors with short calls, they change nothing but time, and a death shows
on them."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from rayfl.errors import PhaseError
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.fleet.on_ray.socket_calls import (
    KEY_BYTES,
    SHORT_CALLS,
    SocketLine,
    pickle_call,
    serve_method,
)
from rayfl.fleet.on_ray.transport import CallFailed, PlaceDied
from rayfl.fleet.on_ray.values import INLINE_BYTES
from rayfl.fleet.on_ray.wire import ROOM, Wire, open_wire
from rayfl.protocol import Ref
from tests.fleet import phases
from tests.fleet.toys import CLIENTS, SIZES, lent_fleet, ray_fleet

WEIGHTS = {client: float(SIZES[client]) for client in CLIENTS}
UNEVEN = {client: 1.0 + client for client in CLIENTS}
"""By no rule."""


@pytest.fixture
def lined(cluster: None) -> Iterator[RayFleet]:
    """A pool whose actors have had enough short calls."""
    fleet: RayFleet = lent_fleet(2)
    lay_lines(fleet)
    fleet.costs.take()
    yield fleet
    fleet.close()


def lay_lines(fleet: RayFleet) -> None:
    """Short calls, until there were enough in a row: on a busy machine some take long."""
    for _ in range(20 * SHORT_CALLS):
        if all(place.line is not None for place in fleet.pool):
            return
        fleet.map(phases.describe, CLIENTS)
    raise AssertionError("no lines after so many short calls")


@pytest.fixture
def by_call(lined: RayFleet, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was sent to actors by calls of Ray's in spite of the lines."""
    sent: list[Any] = []
    for place in lined.pool:
        monkeypatch.setattr(place, "actor", Overheard(place.actor, sent))
    return sent


class Overheard:
    """An actor whose `run` and `partial` are noted."""

    def __init__(self, actor: Any, sent: list[Any]) -> None:
        self.actor, self.sent = actor, sent

    def __getattr__(self, name: str) -> Any:
        if name in ("run", "partial"):
            self.sent.append(self.actor)
        return getattr(self.actor, name)


def means(fleet: BaseFleet, rounds: int = 4) -> list[bytes]:
    """Some rounds whose model travels with the calls."""
    model, found = fleet.put(np.zeros(10, np.float32)), []
    for fleet.round in range(rounds):
        got = fleet.map(phases.train_a_bit, CLIENTS, w=model)
        model = got.mean(WEIGHTS)
        found.append(fleet.get(model).tobytes())
    return found


def test_rounds_on_lines_have_the_same_bits_and_costs(lined: RayFleet, here: BaseFleet) -> None:
    assert means(lined) == means(here)
    assert lined.costs.take() == here.costs.take()


def test_a_small_model_goes_by_line_and_a_large_one_by_reference(
    lined: RayFleet, by_call: list[Any]
) -> None:
    got = lined.map(phases.update, CLIENTS)
    small = got.mean(WEIGHTS)
    by_call.clear()
    lined.map(phases.train_a_bit, CLIENTS, w=small)
    assert by_call == []
    lined.map(phases.train_a_bit, CLIENTS, w=np.zeros(INLINE_BYTES, np.float32))
    assert len(by_call) == len(lined.pool)


def test_sums_that_nobody_expected_are_asked_for_by_line(
    lined: RayFleet, here: BaseFleet, by_call: list[Any]
) -> None:
    lined.round = 0
    there, near = (fleet.map(phases.update, CLIENTS) for fleet in (lined, here))
    by_call.clear()
    assert lined.get(there.mean(UNEVEN)).tobytes() == here.get(near.mean(UNEVEN)).tobytes()
    assert by_call == []


def test_an_actor_that_is_dead_when_it_is_asked_for_its_sum(
    lined: RayFleet, here: BaseFleet
) -> None:
    lined.round = 0
    there, near = (fleet.map(phases.update, CLIENTS) for fleet in (lined, here))
    os.kill(lined.pool[1].greeting["pid"], signal.SIGKILL)
    assert lined.get(there.mean(UNEVEN)).tobytes() == here.get(near.mean(UNEVEN)).tobytes()
    assert [place.generation for place in lined.pool] == [0, 1]


def test_an_actor_whose_calls_have_become_long_is_called(
    lined: RayFleet, here: BaseFleet, by_call: list[Any]
) -> None:
    for place in lined.pool:
        place.short_calls = 0
    lined.map(phases.describe, CLIENTS)
    assert len(by_call) == len(lined.pool)
    assert means(lined) == means(here)


def test_states_outlive_a_visit_on_a_line(lined: RayFleet) -> None:
    lined.map(phases.leave, CLIENTS, models={client: [1.0] for client in CLIENTS})
    ref = lined.state(3, "seen")
    assert isinstance(ref, Ref)
    assert lined.get(ref).tolist() == [1.0]


def test_an_errand_goes_on_beside_a_line(lined: RayFleet, here: BaseFleet) -> None:
    told: list[Any] = []
    errand = lined.start_errand(
        phases.draw, {-1: {}, -2: {}}, lambda reports, _: told.append(dict(reports))
    )
    assert means(lined, 1) == means(here, 1)
    errand.wait()
    expected: list[Any] = []
    here.round = lined.round
    here.start_errand(
        phases.draw, {-1: {}, -2: {}}, lambda reports, _: expected.append(dict(reports))
    )
    assert told == expected


@pytest.mark.parametrize("victims", [[0], [0, 1]])
def test_actors_that_died_with_a_line_are_replaced(
    lined: RayFleet, here: BaseFleet, victims: list[int]
) -> None:
    before = [place.greeting["pid"] for place in lined.pool]
    for victim in victims:
        os.kill(before[victim], signal.SIGKILL)
    assert means(lined) == means(here)
    assert [place.generation for place in lined.pool] == [int(place in victims) for place in (0, 1)]


def test_a_death_during_a_call_on_a_line(lined: RayFleet, here: BaseFleet, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    # The first visit of a round, as in the other fleet.
    lined.round = 0
    got = lined.map(phases.die_once, CLIENTS, victim=4, marker=str(marker))
    assert marker.exists()
    want = here.map(phases.update, CLIENTS)
    assert lined.get(got.mean(WEIGHTS)).tobytes() == here.get(want.mean(WEIGHTS)).tobytes()


def test_what_a_method_raises_is_told_and_the_line_stands(lined: RayFleet) -> None:
    line = lined.pool[0].line
    assert line is not None
    with pytest.raises(CallFailed, match="AttributeError"):
        line.call(["not", "enough"]).take()
    assert len(lined.map(phases.describe, CLIENTS)) == len(CLIENTS)


@pytest.mark.parametrize("on", [CLIENTS[0], CLIENTS[-1]])
def test_an_answer_that_nobody_waited_for_is_not_the_next_ones(
    lined: RayFleet, here: BaseFleet, on: int
) -> None:
    with pytest.raises(PhaseError, match="what went wrong here"):
        lined.map(phases.fail_early, CLIENTS, on=on, seconds=0.02)
    assert means(lined) == means(here)


def test_a_line_that_breaks_with_an_answer_on_it_is_not_the_next_calls_trouble(
    lined: RayFleet, here: BaseFleet
) -> None:
    for place in lined.pool:
        assert place.line is not None
        place.line.call(["not", "enough"])
    os.kill(lined.pool[0].greeting["pid"], signal.SIGKILL)
    assert means(lined) == means(here)


def test_a_closed_fleet_hangs_up(cluster: None) -> None:
    fleet = lent_fleet(1)
    lay_lines(fleet)
    line = fleet.pool[0].line
    fleet.close()
    assert line.socket.fileno() == -1


def test_a_line_that_is_dropped_hangs_up(lined: RayFleet) -> None:
    lost = SocketLine(lined.pool[0].actor)
    near = lost.socket
    del lost
    assert near.fileno() == -1


# -- the far end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100_000, ROOM // 8, ROOM // 8 + 1, 5_000_000])
def test_a_call_of_any_size_comes_back(size: int) -> None:
    with called(np.negative) as wire:
        array = np.arange(size)
        assert_answer(wire, array, -array)


def test_what_is_large_does_not_go_through_the_socket() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        wire = open_wire(near, b"k")
        # More than a socket holds, and nobody reads yet.
        wire.send([np.zeros(ROOM // 8), bytes(100)], pickle_call)
        assert len(far.recv(ROOM)) < 1000


def test_values_that_find_no_room_come_along() -> None:
    with called(lambda *arrays: [array + 1 for array in arrays]) as wire:
        arrays = [np.full(ROOM // 24, i, float) for i in range(5)]
        wire.send(arrays, pickle_call)
        well, found = hear_answer(wire)
        assert well
        assert all(map(np.array_equal, found, [array + 1 for array in arrays]))


def test_an_answer_stays_what_it_was_when_the_next_one_has_come() -> None:
    held: list[Any] = []

    def hold(array: Any) -> Any:
        held.append(array)
        return np.array(array)

    with called(hold) as wire:
        assert_answer(wire, np.zeros(1000), np.zeros(1000))
        wire.send([np.zeros(1000)], pickle_call)
        _, first = hear_answer(wire)
        assert_answer(wire, np.ones(1000), np.ones(1000))
        assert not first.any()
        assert not held[0].any()


def test_a_class_of_a_notebook_comes_back() -> None:
    made: Any = type("Made", (), {"__module__": "__main__"})

    def make_with_array() -> Any:
        one = made()
        one.array = np.ones(1000)
        return one

    with called(lambda: [np.zeros(1000), make_with_array()]) as wire:
        wire.send((), pickle_call)
        well, (zeros, found) = hear_answer(wire)
        assert well
        assert type(found).__name__ == "Made"
        assert not zeros.any()
        assert found.array.all()


def test_a_stranger_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as line:
        meet(line, np.negative, b"k" * KEY_BYTES)
        wire = open_wire(line, b"x" * KEY_BYTES)
        with pytest.raises((EOFError, ConnectionError)):
            wire.receive()


class _Actor:
    """Answers a call for a line as an actor does, or is killed meanwhile."""

    def __init__(self, dies: bool) -> None:
        self.dies = dies
        self.listen = self
        self.folder = ""

    def remote(self, key: bytes, folder: str) -> Any:
        self.folder = folder
        if self.dies:
            return ray.put(f"{folder}/nobody")
        return ray.put(serve_method(np.negative, key, folder))


@pytest.mark.parametrize("dies", [False, True])
def test_nothing_of_a_line_stays_on_the_disk(cluster: None, dies: bool) -> None:
    actor: Any = _Actor(dies)
    if dies:
        with pytest.raises(PlaceDied):
            SocketLine(actor)
    else:
        line = SocketLine(actor)
        assert line.call((1,)).take() == -1
    assert actor.folder
    assert not Path(actor.folder).exists()


def hear_answer(wire: Wire) -> Any:
    return wire.receive()


def assert_answer(wire: Wire, argument: Any, answer: Any) -> None:
    """A call comes back with this array."""
    wire.send((argument,), pickle_call)
    well, found = hear_answer(wire)
    assert well
    assert np.array_equal(found, answer)


@contextmanager
def called(method: Any) -> Iterator[Wire]:
    """The near end of a line to a method of this process."""
    key = b"k" * KEY_BYTES
    with socket.socket(socket.AF_UNIX) as line:
        meet(line, method, key)
        yield open_wire(line, key)


def meet(line: socket.socket, method: Any, key: bytes) -> None:
    """Connect to a far end in this process."""
    with tempfile.TemporaryDirectory() as folder:
        line.connect(serve_method(method, key, folder))


def test_a_line_needs_its_actor(cluster: None) -> None:
    fleet = ray_fleet(1)
    fleet.close()
    with pytest.raises(PlaceDied, match="Error"):
        lay_until_refused(fleet.pool[0].actor)


def lay_until_refused(actor: Any) -> None:
    """An actor that is killed may still answer for a moment."""
    while True:
        SocketLine(actor)
