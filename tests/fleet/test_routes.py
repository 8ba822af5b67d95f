"""Which way a call takes, and what a map in flight knows of its calls."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from rayfl.fleet.executor import Done, Task
from rayfl.fleet.on_ray.calls import Answer, Call
from rayfl.fleet.on_ray.keepers.keeper_calls import KeeperCalls
from rayfl.fleet.on_ray.map_in_flight import MapInFlight, Stage
from rayfl.fleet.on_ray.placement import HandOutPlan
from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.on_ray.ray_calls import RayAnswer
from rayfl.fleet.on_ray.routes import Routes
from rayfl.fleet.on_ray.socket_calls import SHORT_CALLS, SocketLine
from rayfl.fleet.on_ray.suspects import LIVES_OF_A_TASK
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
    made.start(HandOutPlan(tasks, lambda _: 0.0, 1), {})
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
    made = flight(1)
    for _ in range(LIVES_OF_A_TASK):
        assert made.open
        made.note_death(made.out.pop(send(made, place())), PlaceDied("ActorDiedError"))
    assert not made.open
    unfinished = made.done[0].unfinished
    assert unfinished is not None
    assert unfinished.what.startswith(
        "client 0's visit of update in round 0 ended its actor in each of 4 tries, 4 of them with "
        "no other client in the call (ActorDiedError"
    )


def die(made: MapInFlight) -> list[int]:
    """Post the next call, whose actor dies; the clients that it was for."""
    call = made.out.pop(send(made, place()))
    made.note_death(call, PlaceDied("ActorDiedError", "gone.\nmore"))
    return [task.client for task in call.tasks]


def test_a_suspect_call_is_split_until_whoever_ends_actors_is_alone() -> None:
    made = flight(50)
    assert len(die(made)) == 50
    innocent = [made.out.pop(send(made, place())).tasks for _ in range(6)]
    culprits = die(made)
    assert [len(tasks) for tasks in innocent] == [8] * 6
    assert culprits == [48, 49]
    assert [die(made) for _ in range(3)] == [[48], [49], [48]]
    assert list(made.done) == [48]
    assert made.done[48].unfinished is not None
    assert not made.open


def test_a_lenient_map_goes_on_without_whoever_ends_actors() -> None:
    tasks = [Task(client, 0, {}, {}) for client in range(2)]
    made = MapInFlight(3, phases.update)
    made.start(HandOutPlan(tasks, lambda _: 0.0, 1), {}, lenient=True)
    for clients in ([0, 1], [0, 1], [0]):
        assert die(made) == clients
    made.note_answer(made.out.pop(send(made, place())), Answer([Done(1)]))
    assert die(made) == [0]
    assert not made.open
    assert (made.done[0].unfinished is None, made.done[1]) == (False, Done(1))


def test_a_chain_that_ends_its_actors_is_named_as_a_whole() -> None:
    """It is one call, in which nobody can be told from another: nobody is left out."""
    tasks = [Task(client, 2, {}, {}) for client in (4, 1)]
    made = MapInFlight(3, phases.update, chain=True)
    made.start(HandOutPlan(tasks, lambda _: 0.0, 1), {}, lenient=True)
    for _ in range(LIVES_OF_A_TASK):
        assert made.open
        assert die(made) == [4, 1]
    unfinished = made.done[4].unfinished
    assert not made.open
    assert unfinished is not None
    assert unfinished.sentence == (
        "a chain of update in round 2, of the clients 4, 1, ended its actor in each of 4 tries "
        "(ActorDiedError: gone). Mend what ends the process (native code, os._exit; or a lack of "
        "memory, which resources.memory_per_client would tell)."
    )


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
    made.start(HandOutPlan(tasks, lambda _: 0.0, 1), {})
    sent = made.next_call(place())
    assert [task.client for task in sent.tasks] == [4, 1, 3]
    assert sent.chain
    assert not made.plan
