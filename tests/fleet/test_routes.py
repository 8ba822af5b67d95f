"""Which way a call takes, and what a map in flight knows of its calls."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from rayfl.errors import PhaseError
from rayfl.fleet.executor import Done, Task
from rayfl.fleet.on_ray.calls import Answer, Call
from rayfl.fleet.on_ray.keepers.keeper_calls import KeeperCalls
from rayfl.fleet.on_ray.map_in_flight import LIVES_OF_A_TASK, MapInFlight, Stage
from rayfl.fleet.on_ray.placement import HandOutPlan
from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.on_ray.ray_calls import RayAnswer
from rayfl.fleet.on_ray.routes import Routes
from rayfl.fleet.on_ray.socket_calls import SHORT_CALLS, SocketLine
from rayfl.fleet.on_ray.transport import PlaceDied
from rayfl.fleet.on_ray.values import Inlined, Stored
from rayfl.protocol import Ref
from tests.fleet import phases

LINE, STORED = cast(SocketLine, object()), Ref(Stored("an object's reference"))


def call(w: object = 1.0, **more: Any) -> Call:
    return Call(0, phases.update, [Task(0, 0, {}, {})], {"w": w}, **more)


def place(short_calls: int = SHORT_CALLS, line: SocketLine | None = LINE) -> Place:
    return Place(0, None, short_calls=short_calls, line=line)


@pytest.mark.parametrize(
    ("to", "what", "way"),
    [
        (place(), call(), "sockets"),
        (place(), call(Ref(Inlined(np.ones(3)))), "sockets"),
        (place(), call(STORED), "ray"),
        (place(), call(beside_rounds=True), "ray"),
        (place(short_calls=SHORT_CALLS - 1), call(), "ray"),
        (place(line=None), call(), "ray"),
    ],
    ids=["short", "small values", "objects", "an errand", "long of late", "no line"],
)
def test_sockets_are_for_short_calls_without_objects(to: Place, what: Call, way: str) -> None:
    routes = Routes(keepers=0)
    assert routes.choose(to, what) is getattr(routes, way)


def test_keepers_take_what_sockets_do_not() -> None:
    routes = Routes(keepers=0)
    routes.keepers = keepers = KeeperCalls.__new__(KeeperCalls)
    assert routes.choose(place(), call()) is routes.sockets
    assert routes.choose(place(), call(STORED)) is keepers
    assert routes.collector is keepers


# -- a map in flight -------------------------------------------------------------------------------


def flight(clients: int = 2, **more: Any) -> MapInFlight:
    tasks = [Task(client, 0, {}, {}) for client in range(clients)]
    made = MapInFlight(3, phases.update, **more)
    made.start(HandOutPlan(tasks, lambda _: 0.0, 1), tasks, {})
    return made


def send(made: MapInFlight, to: Place) -> RayAnswer[Answer]:
    pending: RayAnswer[Answer] = RayAnswer(None)
    made.note_sent(pending, to, made.next_call(to).tasks)
    return pending


def test_a_map_is_open_until_the_last_answer() -> None:
    made, here = flight(), place()
    assert made.open
    pending = send(made, here)
    assert (made.open, made.busy, bool(made.plan)) == (True, {here}, False)
    made.note_answer(made.out.pop(pending), Answer([Done(1), Done(0)]))
    assert not made.open
    assert made.where == {0: here, 1: here}
    assert list(made.finish()[0]) == [0, 1]


def test_states_are_there_once_they_are_collected() -> None:
    made, here = flight(), place()
    found = made.out.pop(send(made, here))
    answer = Answer([Done(0, state_bytes={"v": 9}), Done(1)])
    made.note_collecting(RayAnswer(None), found, answer, {0: Inlined("state")})
    assert (found.stage, made.done, made.stored) == (Stage.COLLECTING, {}, {})
    made.note_answer(found, answer)
    assert list(made.stored) == [0]


def test_a_map_whose_phase_raised_waits_for_nobody() -> None:
    made = flight()
    made.plan.put_back([Task(5, 0, {}, {})])
    made.note_answer(made.out.pop(send(made, place())), Answer([Done(0, error="what went wrong")]))
    assert made.plan
    assert not made.open


def test_what_died_is_handed_out_again_so_many_times() -> None:
    made = flight()
    for _ in range(LIVES_OF_A_TASK - 1):
        made.note_death(made.out.pop(send(made, place())), PlaceDied("ActorDiedError"), 5)
        assert made.plan
    last = made.out.pop(send(made, place()))
    with pytest.raises(PhaseError, match="client 0 was part of 4 calls in round 5 whose actors"):
        made.note_death(last, PlaceDied("ActorDiedError"), 5)


def test_a_map_that_is_over_keeps_only_where_its_updates_lie() -> None:
    made, here = flight(), place()
    made.note_answer(made.out.pop(send(made, here)), Answer([Done(0), Done(1)]))
    made.finish()
    assert (made.done, made.stored, made.shared) == ({}, {}, {})
    assert made.where == {0: here, 1: here}


def test_a_chain_is_one_call_in_the_order_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much its inputs weigh."""
    monkeypatch.setattr("rayfl.fleet.on_ray.map_in_flight.MAX_ARGUMENT_BYTES", 1)
    tasks = [Task(client, 0, {"x": np.ones(9)}, {}) for client in (4, 1, 3)]
    made = MapInFlight(3, phases.update, chain=True)
    made.start(HandOutPlan(tasks, lambda _: 0.0, 1), tasks, {})
    sent = made.next_call(place())
    assert [task.client for task in sent.tasks] == [4, 1, 3]
    assert sent.chain
    assert not made.plan
