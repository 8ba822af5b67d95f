"""Clients that misbehave, in this process and on real actors: who they are is said, and nobody else
suffers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from rayfl.errors import ConfigError, PhaseError, Stopped
from rayfl.fleet.absences import Absence
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.memory import measure_own_memory
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.fleet.safeguards import Safeguards, VisitTimes
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import NobodyLeft, Replies
from tests.fleet import misbehaviour as phases
from tests.fleet.toys import (
    CLIENTS,
    SIZES,
    await_actors,
    cleared,
    holdings,
    network,
    ray_fleet,
    spec,
)

GB = 10**9
SECONDS = 3.0
"""Of one visit: many times what the others need on a busy machine."""
ROOM = 2 * GB


def guard(fleet: BaseFleet, **rules: Any) -> BaseFleet:
    """The same fleet, told otherwise about clients that misbehave."""
    kept = replace(fleet.spec.safeguards, **rules)
    fleet.spec = replace(fleet.spec, safeguards=kept)
    fleet.times = VisitTimes(kept)
    fleet.absences.remember({})
    fleet._named.clear()
    return fleet


def make_stacking_learner() -> Learner:
    """Of a place that trains all clients together that it can."""
    return Learner(network, LocalTraining(stack="always"), Normalisation())


def mean_of(fleet: BaseFleet, got: Replies) -> bytes:
    found: bytes = fleet.get(got.mean({client: float(SIZES[client]) for client in got})).tobytes()
    return found


@pytest.fixture(scope="module")
def limited(cluster: None) -> Iterator[RayFleet]:
    """Two actors with a limit on time and on memory."""
    rules = Safeguards(visit_seconds=SECONDS, memory_bytes=ROOM)
    fleet = ray_fleet(2, made=replace(spec(), safeguards=rules))
    yield fleet
    fleet.close()


@pytest.fixture
def held(limited: RayFleet) -> RayFleet:
    cleared(limited)
    await_actors(limited)
    guard(limited, visit_seconds=SECONDS)
    return limited


# -- time ------------------------------------------------------------------------------------------


def test_a_visit_that_does_not_return_ends_the_run_and_is_named(held: RayFleet) -> None:
    held.round = 6
    match = (
        r"^client 4's visit of dawdle in round 6 was over its limit of 3 s: it was at "
        r".*misbehaviour\.py:\d+, in dawdle\. Raise resources\.visit_limit, or set "
        r"safety\.unfinished: leave_out\.$"
    )
    with pytest.raises(PhaseError, match=match):
        held.map(phases.dawdle, CLIENTS, victim=4, seconds=1000)
    assert list(held.map(phases.dawdle, CLIENTS, victim=-9, seconds=0)) == list(CLIENTS)


def test_a_late_client_is_left_out_and_its_neighbours_are_not(
    held: RayFleet, here: BaseFleet, caplog: pytest.LogCaptureFixture
) -> None:
    guard(held, leave_out=True)
    held.round = here.round = 6
    got = held.map(phases.dawdle, CLIENTS, victim=4, seconds=1000)
    assert list(got) == [client for client in CLIENTS if client != 4]
    assert held.absences.decided == {Absence(6, 4, 0): "late"}
    assert "client 4's visit of dawdle in round 6 was over its limit" in caplog.text
    with pytest.raises(ConfigError, match=r"client 4\. It was left out of this round, and so"):
        got.mean({4: 1.0})
    # Elsewhere, where it would have been in time, the decision stands.
    here.absences.remember(held.absences.decided)
    again = here.map(phases.dawdle, CLIENTS, victim=4, seconds=0)
    assert dict(again) == dict(got)
    assert mean_of(here, again) == mean_of(held, got)
    assert here.costs.take() == held.costs.take()
    assert here.absences.take() == held.absences.take() == [4]


def test_a_late_link_of_a_chain_is_passed_over(held: RayFleet) -> None:
    guard(held, leave_out=True)
    order = [5, 4, 0, 3]
    w = held.put(np.zeros(3, np.float32))
    got = held.chain(phases.dawdle_on, order, w, victim=4, seconds=1000)
    assert held.get(got.last).tolist() == [8.0] * 3
    assert list(got) == [0, 3, 5]


def test_in_one_process_a_late_visit_is_told_of_and_left_out(
    here: BaseFleet, caplog: pytest.LogCaptureFixture
) -> None:
    guard(here, visit_seconds=0.3, leave_out=True)
    got = here.map(phases.dawdle, CLIENTS, victim=3, seconds=0.9)
    assert list(got) == [client for client in CLIENTS if client != 3]
    assert here.absences.decided == {Absence(0, 3, 0): "late"}
    first, second = caplog.messages
    assert first.startswith("client 3 is over the limit of 0.3 s a visit, at ")
    assert "in dawdle; a visit in this process (fleet: inline) cannot be ended" in first
    assert "client 3's visit of dawdle in round 0 was over its limit of 0.3 s: it took" in second


def test_in_one_process_a_late_visit_ends_the_run(here: BaseFleet) -> None:
    guard(here, visit_seconds=0.2)
    with pytest.raises(PhaseError, match=r"client 3's visit .* limit of 0.2 s: it took 0.[4-9]"):
        here.map(phases.dawdle, CLIENTS, victim=3, seconds=0.5)


def test_clients_that_train_together_are_told_apart() -> None:
    """Together they may take as long as all of them; who took too long shows alone."""
    rules = Safeguards(visit_seconds=0.3, leave_out=True)
    made = replace(spec(), make_learner=make_stacking_learner, safeguards=rules)
    fleet = InlineFleet(made, holdings())
    try:
        w = fleet.initial()
        got = fleet.map(phases.dawdle_and_train, CLIENTS, w=w, victim=3, seconds=2.0)
        assert list(got) == [client for client in CLIENTS if client != 3]
    finally:
        fleet.close()


def test_if_all_are_late_the_round_is_void(here: BaseFleet) -> None:
    guard(here, visit_seconds=0.05, leave_out=True)
    with pytest.raises(NobodyLeft, match=r"nobody is left of 1 clients \(it was left out"):
        here.map(phases.dawdle, [3], victim=3, seconds=0.2)


# -- deaths ----------------------------------------------------------------------------------------


def test_a_client_that_ends_its_actors_is_found_among_others(
    ray_pool: RayFleet, here: BaseFleet, caplog: pytest.LogCaptureFixture
) -> None:
    guard(ray_pool, leave_out=True)
    # In one call with two others.
    got = ray_pool.map(phases.crash, CLIENTS, victim=1, how="segfault")
    assert ray_pool.absences.decided == {Absence(0, 1, 0): "died"}
    said = "client 1's visit of crash in round 0 ended its actor in each of 4 tries, 3 of them with"
    assert said in caplog.text
    here.absences.remember(ray_pool.absences.decided)
    want = here.map(phases.crash, CLIENTS, victim=1, how="segfault")
    assert dict(got) == dict(want)
    assert mean_of(ray_pool, got) == mean_of(here, want)


def test_an_examination_that_ends_its_actors_is_named(
    ray_pool: RayFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfl.fleet.on_ray.ray_fleet.LIVES_OF_A_TASK", 2)
    got = ray_pool.map(phases.leave_first, CLIENTS)
    match = "visit of crash_looking in round 0, which examines the update of client 4, ended its"
    with pytest.raises(PhaseError, match=match):
        got.examine(phases.crash_looking, victim=4.0)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bit by bit", "at once", "torch"])
def test_a_phase_that_takes_all_memory_ends_with_a_sentence(held: RayFleet, kind: str) -> None:
    match = (
        r"(?s)^client 4's visit of hoard in round 0 ran out of memory:\nTraceback.*in hoard.*"
        r"\nLet the phase take less memory, raise resources\.memory_per_client if it is set"
    )
    # To fill memory takes its time where others do the same.
    guard(held, visit_seconds=None)
    before = [place.greeting["pid"] for place in held.pool]
    with pytest.raises(PhaseError, match=match):
        held.map(phases.hoard, CLIENTS, victim=4, kind=kind, megabytes=8000)
    assert list(held.map(phases.hoard, CLIENTS, victim=-9, kind=kind, megabytes=0))
    assert [place.greeting["pid"] for place in held.pool] == before


def test_a_client_without_memory_is_left_out(cluster: None) -> None:
    rules = Safeguards(memory_bytes=measure_own_memory() + GB, leave_out=True)
    fleet = InlineFleet(replace(spec(), safeguards=rules), holdings())
    try:
        got = fleet.map(phases.hoard, CLIENTS, victim=4, kind="bit by bit", megabytes=30000)
        assert list(got) == [client for client in CLIENTS if client != 4]
        assert fleet.absences.decided == {Absence(0, 4, 0): "memory"}
    finally:
        fleet.close()


# -- updates ---------------------------------------------------------------------------------------


def exaggerated(fleet: BaseFleet, action: Literal["name", "clip", "drop"], factor: float) -> Any:
    guard(fleet, absurd=action, norm_multiple=10.0)
    got = fleet.map(phases.exaggerate, CLIENTS, victim=3, factor=factor)
    return got, fleet.get(got.mean(dict.fromkeys(got, 1.0)))


@pytest.mark.parametrize("factor", [1e6, 1e37])
def test_an_absurd_update_is_counted_and_named_and_changes_nothing(
    fleet: BaseFleet, factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    got, mean = exaggerated(fleet, "name", factor)
    assert list(got) == list(CLIENTS)
    assert abs(mean).max() > factor / 100
    assert fleet.take_absurd() == [3]
    assert "the update 'w' of client 3 is absurd: its largest value is " in caplog.text
    caplog.clear()
    exaggerated(fleet, "name", 1.0)
    assert fleet.take_absurd() == []
    assert not caplog.text


def test_a_dropped_update_is_as_if_it_had_not_been(fleet: BaseFleet) -> None:
    got, _ = exaggerated(fleet, "drop", 1e6)
    assert list(got) == [client for client in CLIENTS if client != 3]
    assert got.diverged == ()
    assert 3 not in fleet.table
    with pytest.raises(ConfigError, match="Its update was absurd, and dropped, and so it is not"):
        got.mean({3: 1.0})


def test_a_clipped_update_is_as_large_as_the_limit(fleet: BaseFleet) -> None:
    got, _ = exaggerated(fleet, "clip", 1e37)
    own = fleet.get(got.ref(3))
    median = sorted(abs(fleet.get(got.ref(client))).max() for client in CLIENTS)[2]
    assert abs(own).max() == pytest.approx(10 * median, rel=1e-6)
    # The phase kept its own as state, which is nobody's but the client's.
    assert abs(fleet.get(fleet.table[3]["last"])).max() > 1e36


@pytest.mark.parametrize("action", ["clip", "drop"])
def test_what_is_done_about_it_has_the_same_bits_everywhere(
    here: BaseFleet, ray_pool: RayFleet, action: Literal["clip", "drop"]
) -> None:
    """Also where a mean is expected, and where the clipped update is lost and made again."""
    for fleet in (here, ray_pool):
        exaggerated(fleet, action, 1e6)
        fleet.round = 1
    _, expected = exaggerated(here, action, 1e6)
    got, found = exaggerated(ray_pool, action, 1e6)
    assert found.tobytes() == expected.tobytes()
    for place in ray_pool.pool if action == "clip" else ():
        os.kill(place.greeting["pid"], signal.SIGKILL)
    again = ray_pool.get(got.mean(dict.fromkeys(got, 1.0)))
    assert again.tobytes() == expected.tobytes()


def test_in_a_chain_an_absurd_update_is_only_named(here: BaseFleet) -> None:
    guard(here, absurd="drop", norm_multiple=1.5)
    w = here.put(np.ones(3, np.float32))
    got = here.chain(phases.dawdle_on, [0, 1, 5], w, victim=-9, seconds=0)
    assert (list(got), here.take_absurd()) == ([0, 1, 5], [5])


def test_updates_of_unequal_length_are_told_apart(fleet: BaseFleet) -> None:
    weights = dict.fromkeys(CLIENTS, 1.0)
    match = (
        r"^updates 'w' of one mean are equally long, 9 numbers mostly; got 7 of client 4\. Have "
        r"the phase return all of the weights"
    )
    for victim in (-9, 4, 4):
        got = fleet.map(phases.leave_odd_length, CLIENTS, victim=victim)
        if victim == 4:
            with pytest.raises(PhaseError, match=match):
                got.mean(weights)
        else:
            got.mean(weights)


@pytest.mark.parametrize("n", [float("nan"), -5.0])
def test_a_report_of_samples_that_cannot_be_is_refused(here: BaseFleet, n: float) -> None:
    got = here.map(phases.leave_first, CLIENTS)
    with pytest.raises(ConfigError, match=rf"weights of a mean are finite .* got {n} \(client 4\)"):
        got.mean({**dict.fromkeys(CLIENTS, 1.0), 4: n})


# -- ends that are no Exceptions -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, phases.Odd])
def test_whatever_a_phase_raises_is_an_error_of_its_client(
    fleet: BaseFleet, kind: type[BaseException]
) -> None:
    with pytest.raises(PhaseError, match=rf"(?s)^a phase raised on client 4 .*{kind.__name__}: 3$"):
        fleet.map(phases.leave_python, CLIENTS, victim=4, kind=kind)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stopped])
def test_whoever_is_told_to_stop_stops(here: BaseFleet, kind: type[BaseException]) -> None:
    with pytest.raises(kind, match="3"):
        here.map(phases.leave_python, CLIENTS, victim=4, kind=kind)
