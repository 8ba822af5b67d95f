"""What only happens on a pool of actors: calls, pinning, sizes, deaths."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.errors import PhaseError, ResourceError
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.executor import Task
from rayfl.fleet.on_ray import map_in_flight, suspects
from rayfl.fleet.on_ray.calls import Call
from rayfl.fleet.on_ray.client_actor import FIRST_CALLS, ClientActor
from rayfl.fleet.on_ray.placement import Placement
from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.fleet.on_ray.values import (
    INLINE_BYTES,
    STATE_BYTES,
    Packed,
    Stored,
)
from rayfl.fleet.replies import FinishedMap, Mean
from rayfl.fleet.sums.exact_sums import Partial
from rayfl.fleet.sums.shared_memory import Pages
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import SERVER, Phase, Replies
from tests.fleet import phases
from tests.fleet.toys import (
    CLIENTS,
    SIZES,
    await_actors,
    failing_learner,
    holdings,
    lent_fleet,
    pids,
    ray_fleet,
    spec,
)

Calls = list[tuple[int, list[int], list[Any]]]
WEIGHTS = {client: float(SIZES[client]) for client in CLIENTS}


@pytest.fixture
def calls(ray_pool: RayFleet, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every call to an actor: its place, its clients, and what travels beside the inputs."""
    made: Calls = []
    post = ray_pool.routes.post

    def record(place: Place, call: Call) -> Any:
        made.append((place.number, [task.client for task in call.tasks], call.packed[1]))
        return post(place, call)

    monkeypatch.setattr(ray_pool.routes, "post", record)
    return made


# -- calls -----------------------------------------------------------------------------------------


def test_one_call_an_actor_with_its_list(ray_pool: RayFleet, calls: Calls) -> None:
    ray_pool.map(phases.describe, CLIENTS)
    assert sorted(place for place, _, _ in calls) == [0, 1]
    assert sorted(client for _, clients, _ in calls for client in clients) == list(CLIENTS)
    # The longest, 7 and 5 samples, begin; the others go to whoever has less.
    assert sorted(clients for _, clients, _ in calls) == [[0, 5, 1], [3, 4]]


def test_slow_work_keeps_a_tail_for_the_actor_that_is_done_first(
    ray_pool: RayFleet, calls: Calls
) -> None:
    ray_pool.seconds_per_sample = 0.1
    ray_pool.map(phases.work, CLIENTS)
    assert len(calls) > 2
    assert sorted(client for _, clients, _ in calls for client in clients) == list(CLIENTS)


def test_speed_is_learnt_from_clients_alone(ray_pool: RayFleet) -> None:
    ray_pool.map(phases.work, [SERVER, SERVER - 1], seconds=0.05)
    assert ray_pool.seconds_per_sample == 0
    slow = measure_sample(ray_pool, phases.work, seconds=0.05)
    assert ray_pool.seconds_per_sample == pytest.approx(slow)
    quick = measure_sample(ray_pool, phases.describe)
    assert ray_pool.seconds_per_sample == pytest.approx(0.7 * slow + 0.3 * quick)


def measure_sample(pool: RayFleet, phase: Phase, **inputs: Any) -> float:
    """What client 0 took for each of its samples, as its actor says."""
    before = pool.clock.busy
    pool.map(phase, [0], **inputs)
    return (pool.clock.busy - before) / SIZES[0]


def test_large_inputs_travel_once_by_reference(ray_pool: RayFleet, calls: Calls) -> None:

    large = np.ones(INLINE_BYTES)
    got = ray_pool.map(
        phases.pass_on,
        CLIENTS,
        values={"list": [ray_pool.put(large)] * 3, "one": ray_pool.put(large)},
    )
    assert got[0]["total"] == 4 * len(large)
    assert all(isinstance(value, Stored) for _, _, values in calls for value in values)
    assert all(len(values) == 2 for _, _, values in calls)


def test_a_large_array_is_stored_before_it_is_sent(ray_pool: RayFleet, calls: Calls) -> None:
    ray_pool.map(phases.train_a_bit, CLIENTS, w=np.zeros(INLINE_BYTES, np.float32))
    assert len({values[0] for _, _, values in calls}) == 1
    assert ray_pool.costs.down == len(CLIENTS) * 4 * INLINE_BYTES


def test_arguments_above_the_limit_are_split_over_several_calls(
    ray_pool: RayFleet, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_in_flight, "MAX_ARGUMENT_BYTES", 100)
    each = {
        client: {"values": {"list": [np.full(5, client)], "one": np.ones(1)}} for client in CLIENTS
    }
    got = ray_pool.map(phases.pass_on, CLIENTS, each=each)
    assert [report["total"] for report in got.values()] == [5.0 * client + 1 for client in CLIENTS]
    assert sorted(len(clients) for _, clients, _ in calls) == [1, 2, 2]


def test_state_moves_from_actor_to_actor(
    ray_pool: RayFleet, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator sends a reference and never fetches what it refers to."""
    import ray

    ray_pool.map(phases.remember, CLIENTS, value=3.0, size=STATE_BYTES)
    fetched: list[Any] = []
    get = ray.get

    def noted(refs: Any) -> Any:
        fetched.append(get(refs))
        return fetched[-1]

    monkeypatch.setattr(ray, "get", noted)
    monkeypatch.setattr(ray_pool, "get", None)
    calls.clear()
    each = {
        client: {"peer": ray_pool.state(CLIENTS[i - 1], "v")} for i, client in enumerate(CLIENTS)
    }
    got = ray_pool.map(phases.read_peer, CLIENTS, each=each, value=0.0)
    assert all(report["peer"] == [3.0] * STATE_BYTES for report in got.values())
    assert len({value for _, _, values in calls for value in values}) == len(CLIENTS)
    answers = [answer for (answer,) in fetched if answer is not True]
    outcomes = [outcome for answer in answers for outcome in answer.done]
    assert [outcome.report.keys() for outcome in outcomes] == [{"peer"}] * len(CLIENTS)


def test_small_states_come_with_the_answer_and_go_with_the_call(
    ray_pool: RayFleet, calls: Calls
) -> None:
    ray_pool.map(phases.remember, CLIENTS, value=3.0)
    known = [ray_pool.state(client, "v") for client in CLIENTS]
    assert all(ref is not None and isinstance(ref.handle, Packed) for ref in known)
    calls.clear()
    got = ray_pool.map(
        phases.read_peer,
        CLIENTS,
        each={c: {"peer": known[i]} for i, c in enumerate(CLIENTS)},
        value=0,
    )
    assert all(report["peer"] == [3.0] * 3 for report in got.values())
    assert not any(values for _, _, values in calls)
    assert ray_pool.costs.down == 3 * 8 * len(CLIENTS)


def test_a_small_state_is_its_own_and_nobody_can_write_to_it(ray_pool: RayFleet) -> None:
    """Not a view of the answer, which would stay in memory as long as one client's state is the
    latest."""
    ray_pool.map(phases.remember, CLIENTS, value=3.0)
    for client in CLIENTS:
        array = ray_pool.get(ray_pool.table[client]["v"])
        assert array.base.base is None
        assert not array.flags.writeable


def test_large_and_small_states_of_one_call(ray_pool: RayFleet) -> None:
    """Each client's is whole, whichever way it went."""
    each = {client: {"size": STATE_BYTES if client % 2 else 3} for client in CLIENTS}
    ray_pool.map(phases.remember, CLIENTS, each=each, value=5.0)
    got = ray_pool.map(phases.remember, CLIENTS, value=0.0)
    assert {client: report["before"] for client, report in got.items()} == {
        client: [5.0] * inputs["size"] for client, inputs in each.items()
    }


# -- pinning ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_eight_actors_at_a_quarter_spread_over_two_gpus(cluster: None) -> None:
    fleet = ray_fleet(8, cpus=0.25, gpus=0.25, cuda=False)
    try:
        await_actors(fleet)
        counts = Counter(tuple(place.greeting["gpus"]) for place in fleet.pool)
        assert counts == {("0",): 4, ("1",): 4}
        assert len({place.greeting["pid"] for place in fleet.pool}) == 8
    finally:
        fleet.close()


def test_actors_compute_with_their_threads(ray_pool: RayFleet) -> None:
    assert [place.greeting["threads"] for place in ray_pool.pool] == [1, 1]
    assert [place.greeting["gpus"] for place in ray_pool.pool] == [[], []]


def test_whoever_shares_the_coordinators_processor_is_sent_to_last(
    ray_pool: RayFleet, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, core in [(0, 7), (1, 9)]:
        monkeypatch.setitem(ray_pool.pool[place].greeting, "cores", [core])
    for here, order in [(7, [1, 0]), (9, [0, 1]), (8, [0, 1])]:
        monkeypatch.setattr("rayfl.fleet.on_ray.pool.current_core", lambda here=here: here)
        calls.clear()
        # Clients that took long, on a busy machine, would be handed out in more calls.
        ray_pool.seconds_per_sample = 0.0
        ray_pool.map(phases.describe, CLIENTS)
        assert [place for place, _, _ in calls] == order


def test_short_rounds_are_not_halted_by_a_search_through_all_that_was_imported(
    ray_pool: RayFleet,
) -> None:
    for _ in range(FIRST_CALLS):
        ray_pool.map(phases.garbage, CLIENTS)
    for report in ray_pool.map(phases.garbage, CLIENTS).values():
        assert report["watched"] < report["settled"] / 10


def test_an_actor_that_cannot_start_is_a_clear_error(cluster: None) -> None:
    with pytest.raises(ResourceError, match=r"(?s)a client actor could not start:.*no such device"):
        ray_fleet(1, made=replace(spec(), make_learner=failing_learner))


# -- deaths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("victims", [[0], [0, 1]])
def test_updates_that_died_before_the_mean_are_made_again(
    ray_pool: RayFleet, here: BaseFleet, victims: list[int]
) -> None:
    expected = here.get(here.map(phases.update, CLIENTS).mean(WEIGHTS))
    before, got = pids(ray_pool), ray_pool.map(phases.update, CLIENTS)
    for victim in victims:
        os.kill(before[victim], signal.SIGKILL)
    assert ray_pool.get(got.mean(WEIGHTS)).tobytes() == expected.tobytes()
    replaced = [old != new for old, new in zip(before, pids(ray_pool), strict=True)]
    assert replaced == [place in victims for place in (0, 1)]


def test_a_sum_that_was_made_early_outlives_its_actor(ray_pool: RayFleet, here: BaseFleet) -> None:
    expected = here.get(here.map(phases.update, CLIENTS).mean(WEIGHTS))
    ray_pool.map(phases.update, CLIENTS).mean(WEIGHTS)
    # A second visit in a round would draw other numbers.
    ray_pool.round = 0
    got = ray_pool.map(phases.update, CLIENTS)
    os.kill(pids(ray_pool)[0], signal.SIGKILL)
    assert ray_pool.get(got.mean(WEIGHTS)).tobytes() == expected.tobytes()
    ray_pool.pool.bury_the_dead()


def test_an_examination_survives_a_death(ray_pool: RayFleet, here: BaseFleet) -> None:
    expected = here.map(phases.update, CLIENTS).examine(phases.norm)
    got = ray_pool.map(phases.update, CLIENTS)
    os.kill(pids(ray_pool)[1], signal.SIGKILL)
    assert got.examine(phases.norm) == expected


@pytest.mark.parametrize(
    "look",
    [lambda got: got.mean(WEIGHTS), lambda got: got.examine(phases.norm)],
    ids=["mean", "examine"],
)
def test_a_round_with_a_death_frees_its_updates(
    ray_pool: RayFleet, look: Callable[[Replies], object]
) -> None:
    """At once, and not only when Python looks for garbage."""
    gc.collect()
    gc.disable()
    try:
        got = ray_pool.map(phases.update, CLIENTS)
        os.kill(pids(ray_pool)[0], signal.SIGKILL)
        look(got)
        del got
        for report in ray_pool.map(phases.held_updates, CLIENTS).values():
            assert report["held"] == []
    finally:
        gc.enable()


def test_a_death_during_a_map_changes_nothing(
    ray_pool: RayFleet, here: BaseFleet, tmp_path: Path
) -> None:
    marker, weights = tmp_path / "died", dict.fromkeys(CLIENTS, 1.0)
    got = ray_pool.map(phases.die_once, CLIENTS, victim=4, marker=str(marker))
    assert marker.exists()
    want = here.map(phases.update, CLIENTS)
    assert dict(got) == dict(want)
    assert ray_pool.get(got.mean(weights)).tobytes() == here.get(want.mean(weights)).tobytes()
    assert ray_pool.costs.take() == here.costs.take()


def test_a_task_whose_actors_keep_dying_stops_the_run(
    ray_pool: RayFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "LIVES_OF_A_TASK", 2)
    diary = tmp_path / "deaths"
    ray_pool.round = 9
    with pytest.raises(
        PhaseError, match=r"client 1's visit of die in round 9 ended its actor in each of 2 tries"
    ):
        ray_pool.map(phases.die, [1], victim=1, diary=str(diary))
    assert diary.read_text() == "xx"
    ray_pool.pool.bury_the_dead()
    assert len(ray_pool.map(phases.describe, CLIENTS)) == len(CLIENTS)


def test_an_actor_of_another_federation_knows_nothing_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Threads are for an actor's own process.
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    actor = ClientActor.__new__(ClientActor)
    actor.pages = Pages()
    for _ in range(2):
        actor.become(spec(), Placement(1), holdings())
        assert (actor.states, actor.sums, actor.board) == ({}, [], None)
        actor.states[0] = {1: {"w": 2.0}}
        actor.sums.append(Partial(np.ones(2)))


def test_a_replacement_knows_the_features(here: BaseFleet, cluster: None) -> None:
    fleet = lent_fleet(1)
    features = {
        name: np.arange(3.0 * n, dtype=np.float32).reshape(n, 3)
        for name, n in (("train", 20), ("public", 5))
    }
    expected = read_features(here, features)
    try:
        assert read_features(fleet, features) == expected
        os.kill(pids(fleet)[0], signal.SIGKILL)
        assert read_features(fleet, {}) == expected
    finally:
        fleet.close()


def read_features(fleet: BaseFleet, features: dict[str, Any]) -> dict[int, Any]:
    if features:
        fleet.share_features("enc", features)
    return dict(fleet.map(phases.read_features, [0, 3], public=fleet.data("public")))


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        ("ObjectStoreFullError", True),
        ("ActorDiedError", True),
        ("RayTaskError", False),
        (None, False),
    ],
)
def test_the_place_failed_or_the_method_did(
    ray_pool: RayFleet, error: str | None, lost: bool
) -> None:
    import ray.exceptions

    made = {
        "RayTaskError": lambda: ray.exceptions.RayTaskError("f", "text", ValueError()),
        None: ValueError,
    }
    raised = made[error]() if error in made else getattr(ray.exceptions, str(error))()
    assert ray_pool.lost(raised) == lost


# -- the store -------------------------------------------------------------------------------------


def test_holdings_lie_in_the_store_once(ray_pool: RayFleet) -> None:
    """Actors read the images out of the object store: their arrays cannot be written."""
    with pytest.raises(PhaseError, match="read-only"):
        ray_pool.map(phases.scribble, [0], what="public", public=ray_pool.data("public"))
    assert ray_pool.sets == {name: len(shard) for name, shard in holdings().sets.items()}


# -- chains ----------------------------------------------------------------------------------------


def run_chain(fleet: BaseFleet) -> tuple[list[int], FinishedMap]:
    """A map whose clients are visited one after the other; whom, in which order."""
    tasks = {client: Task(client, 0, {}, {}) for client in (5, 0, 4)}
    shared = {"w": np.zeros(1000, np.float32)}
    done, _ = fleet.execute(77, phases.step_on, tasks, shared, chain=True)
    return list(done), FinishedMap(77, phases.step_on, tasks, shared, done)


def test_a_chain_is_one_call(ray_pool: RayFleet, calls: Calls) -> None:
    run_chain(ray_pool)
    assert [clients for _, clients, _ in calls] == [[5, 0, 4]]
    ray_pool.forget(77)


def test_a_chain_with_a_lost_link_is_made_again_as_a_whole(
    ray_pool: RayFleet, here: BaseFleet, calls: Calls
) -> None:
    _, expected = run_chain(here)
    _, made = run_chain(ray_pool)
    os.kill(pids(ray_pool)[calls[0][0]], signal.SIGKILL)
    weights, found = {UpdateId(77, 0): 0.5, UpdateId(77, 4): 0.25}, []
    for fleet, finished in ((ray_pool, made), (here, expected)):
        mean = fleet.reduce(Mean("w", weights, {77: finished}))
        found.append(fleet.get(mean).tobytes())
    assert found[0] == found[1]
    assert [clients for _, clients, _ in calls] == [[5, 0, 4]] * 2
    ray_pool.forget(77)
