"""Ways to a mean: when each may be taken, and that all of them lead to the same bits."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfl.errors import ConfigError
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.executor import Done
from rayfl.fleet.on_ray.pool import ActorPool, Greeting, Place
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.fleet.on_ray.reduction import (
    FAN_IN,
    ArrivedUpdate,
    EarlySum,
    GatheredSums,
    LoneUpdate,
    PlacedMean,
    SharedMemory,
    TreeOfSums,
    WayToMean,
    merge_in_tree,
)
from rayfl.fleet.on_ray.values import INLINE_BYTES, Handle
from rayfl.fleet.replies import FinishedMap, Mean
from rayfl.fleet.sums.exact_sums import Partial
from rayfl.fleet.sums.shared_memory import LEAST_BYTES, MOST_PAGES, SUPPORTED
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import SERVER, Replies
from tests.fleet import phases
from tests.fleet.toys import CLIENTS, SIZES, pids

WEIGHTS = {client: float(SIZES[client]) for client in CLIENTS}
SMALL, MIDDLING, LARGE = INLINE_BYTES, INLINE_BYTES + 4, LEAST_BYTES


def place_on(node: str) -> Place:
    return Place(0, None, greeting=Greeting(pid=1, node=node, gpus=[], threads=1, cores=[]))


def placed(nbytes: int, clients: int = 2, node: str = "here") -> PlacedMean:
    """A mean of one place's updates, as far as preconditions look at it."""
    done = {
        client: Done(client, peaks={"w": 1.0}, update_bytes={"w": nbytes})
        for client in range(clients)
    }
    weights = {UpdateId(7, client): 1.0 for client in done}
    mean = Mean("w", weights, {7: FinishedMap(7, phases.update, {}, {}, done)})
    return PlacedMean(mean, {place_on(node): weights})


@pytest.fixture
def shared_memory() -> SharedMemory:
    """Of a process on the node `here`."""
    pool = ActorPool.__new__(ActorPool)
    pool.node = "here"
    way = SharedMemory(pool)
    way.works = True
    return way


def test_a_mean_of_one_is_that_one() -> None:
    assert LoneUpdate().fits(placed(LARGE, clients=1))
    assert not LoneUpdate().fits(placed(SMALL, clients=2))


def test_what_came_along_needs_no_call() -> None:
    there = replace(placed(SMALL, clients=1), arrived=np.ones(3, np.float32))
    assert ArrivedUpdate().fits(there)
    assert not ArrivedUpdate().fits(placed(SMALL, clients=1))


def test_early_sums_need_to_be_there() -> None:
    there = replace(placed(SMALL), early=[Partial(np.ones(3))])
    assert EarlySum().fits(there)
    assert not EarlySum().fits(placed(SMALL))


@pytest.mark.parametrize(("nbytes", "fits"), [(SMALL, True), (MIDDLING, False)])
def test_only_small_sums_are_gathered(nbytes: int, fits: bool) -> None:
    assert GatheredSums().fits(placed(nbytes)) == fits


@pytest.mark.parametrize(
    ("mean", "fits"),
    [
        (placed(LARGE), True),
        (placed(LARGE - 4), False),
        (placed(LARGE, clients=MOST_PAGES), True),
        (placed(LARGE, clients=MOST_PAGES + 1), False),
        (placed(LARGE, node="there"), False),
    ],
)
def test_shared_memory_is_for_large_updates_of_one_node(
    shared_memory: SharedMemory, mean: PlacedMean, fits: bool
) -> None:
    assert shared_memory.fits(mean) == fits


def test_shared_memory_that_turned_out_not_to_be_is_not_tried_again(
    shared_memory: SharedMemory,
) -> None:
    shared_memory.works = False
    assert not shared_memory.fits(placed(LARGE))


@pytest.mark.parametrize("nbytes", [SMALL, MIDDLING, LARGE])
def test_a_tree_of_sums_always_fits(nbytes: int) -> None:
    assert TreeOfSums().fits(placed(nbytes))


class Merging:
    """An actor that notes what it is to merge."""

    def __init__(self) -> None:
        self.merge = self
        self.merged: list[tuple[Any, ...]] = []

    def remote(self, *partials: Any) -> Any:
        self.merged.append(partials)
        return [item for partial in partials for item in partial]


@pytest.mark.parametrize("actors", [1, FAN_IN, FAN_IN + 1, FAN_IN**2 + 1])
def test_a_tree_loses_no_sum_and_merges_few_at_once(actors: int) -> None:
    places = [Merging() for _ in range(actors)]
    left: Any = merge_in_tree(places, [[i] for i in range(actors)])
    assert len(left) <= FAN_IN
    assert [item for partial in left for item in partial] == list(range(actors))
    assert all(len(merged) <= FAN_IN for place in places for merged in place.merged)


# -- the same bits ---------------------------------------------------------------------------------

WAYS: dict[str, Callable[[RayFleet], WayToMean]] = {
    "gathered": lambda fleet: GatheredSums(),
    "shared memory": lambda fleet: fleet.reduction.shared_memory,
    "tree": lambda fleet: TreeOfSums(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1000, LEAST_BYTES // 4 + 999])
def test_all_ways_have_the_bits_of_one_process(
    ray_pool: RayFleet, here: BaseFleet, monkeypatch: pytest.MonkeyPatch, way: str, size: int
) -> None:
    """Of a pool that expects no mean: what came early would need no place."""
    if way == "shared memory" and (not SUPPORTED or size < LEAST_BYTES // 4):
        pytest.skip("no pages")
    here.round = ray_pool.round = 0
    expected = here.get(here.map(phases.update, CLIENTS, size=size).mean(WEIGHTS))
    monkeypatch.setattr(ray_pool.reduction, "ways", [Forced(WAYS[way](ray_pool))])
    mean = ray_pool.map(phases.update, CLIENTS, size=size).mean(WEIGHTS)
    assert ray_pool.get(mean).tobytes() == expected.tobytes()


class Forced(WayToMean):
    """A way that is taken whether it fits or not."""

    def __init__(self, way: WayToMean) -> None:
        self.way = way

    def fits(self, placed: PlacedMean) -> bool:
        return True

    def run(self, placed: PlacedMean) -> Handle | None:
        return self.way.run(placed)


# -- one memory ------------------------------------------------------------------------------------

PAGES: dict[str, Any] = {"size": LEAST_BYTES // 4 + 12345}
on_linux = pytest.mark.skipif(not SUPPORTED, reason="pages are a matter of Linux")


@pytest.fixture
def large(here: BaseFleet) -> bytes:
    """The mean of large updates, made in one process."""
    mean: bytes = here.get(here.map(phases.update, CLIENTS, **PAGES).mean(WEIGHTS)).tobytes()
    return mean


@pytest.fixture
def sent(ray_pool: RayFleet, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which methods of actors made a mean."""
    import ray

    made: list[str] = []
    original = ray.actor.ActorMethod._remote

    def remote(self: Any, *arguments: Any, **more: Any) -> Any:
        made.append(self._method_name)
        return original(self, *arguments, **more)

    monkeypatch.setattr(ray.actor.ActorMethod, "_remote", remote)
    return made


@on_linux
def test_large_updates_are_added_up_where_they_lie(
    ray_pool: RayFleet, large: bytes, sent: list[str]
) -> None:
    got = ray_pool.map(phases.update, CLIENTS, **PAGES)
    mean = ray_pool.get(got.mean(WEIGHTS))
    assert mean.tobytes() == large
    assert not mean.flags.writeable
    assert Counter(sent)["add_up"] == 2
    assert not {"begin_sum", "partial"} & set(sent)


def test_actors_on_other_nodes_send_their_sums(
    ray_pool: RayFleet, large: bytes, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ray_pool.pool[1].greeting, "node", "another")
    assert (
        ray_pool.get(ray_pool.map(phases.update, CLIENTS, **PAGES).mean(WEIGHTS)).tobytes() == large
    )
    assert Counter(sent)["begin_sum"] == Counter(sent)["partial"] == 1
    assert "add_up" not in sent


@on_linux
def test_an_actor_that_dies_before_its_updates_are_read(
    ray_pool: RayFleet, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said where they lie; then nobody can open them any more."""
    got, vector, before = (
        ray_pool.map(phases.update, CLIENTS, **PAGES),
        ray_pool.reduction.shared_memory.pages.vector,
        pids(ray_pool),
    )

    def kill_first(length: int) -> Any:
        monkeypatch.setattr(ray_pool.reduction.shared_memory.pages, "vector", vector)
        os.kill(before[0], signal.SIGKILL)
        return vector(length)

    monkeypatch.setattr(ray_pool.reduction.shared_memory.pages, "vector", kill_first)
    assert ray_pool.get(got.mean(WEIGHTS)).tobytes() == large
    assert [old == new for old, new in zip(before, pids(ray_pool), strict=True)] == [False, True]
    assert ray_pool.reduction.shared_memory.works


@on_linux
def test_actors_that_do_not_see_each_others_memory_send_their_sums(
    ray_pool: RayFleet,
    large: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ray_pool.reduction.shared_memory, "works", True)
    page_of = ray_pool.reduction.shared_memory.pages.page_of

    def misname(vector: Any) -> Any:
        page = page_of(vector)
        assert page is not None
        return replace(page, inode=1)

    monkeypatch.setattr(ray_pool.reduction.shared_memory.pages, "page_of", misname)
    got = ray_pool.map(phases.update, CLIENTS, **PAGES)
    assert ray_pool.get(got.mean(WEIGHTS)).tobytes() == large
    assert "do not see each other's memory" in caplog.text
    assert not ray_pool.reduction.shared_memory.works


@on_linux
@pytest.mark.parametrize("most", [0, 2])
def test_more_updates_than_pages_send_their_sums(
    ray_pool: RayFleet, large: bytes, sent: list[str], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("rayfl.fleet.on_ray.reduction.MOST_PAGES", most)
    assert (
        ray_pool.get(ray_pool.map(phases.update, CLIENTS, **PAGES).mean(WEIGHTS)).tobytes() == large
    )
    assert Counter(sent)["begin_sum"] == Counter(sent)["partial"] == 1


@on_linux
def test_pages_are_used_again_round_after_round(ray_pool: RayFleet) -> None:
    """The memory of a run with large updates does not grow."""

    def round_of(cohort: Sequence[int]) -> set[str]:
        got = ray_pool.map(phases.pages_of_this_process, cohort, **PAGES)
        got.mean(dict.fromkeys(cohort, 1.0))
        return {page for report in got.values() for page in report["pages"]}

    before, after = round_of(CLIENTS), [round_of(CLIENTS) for _ in range(8)][-1]
    # Whoever is slow leaves the other up to all of a cohort. A page shows as two descriptors: its
    # own and its map's.
    assert before
    assert len(after | before) - len(before) <= 2 * 2 * (len(CLIENTS) + 1) < 8 * 2 * len(CLIENTS)


# -- several maps ----------------------------------------------------------------------------------


def both_maps(fleet: BaseFleet, size: int = 1000) -> Replies:
    # Anew each time: a second visit in a round draws other numbers.
    fleet.round = 0
    clients = fleet.map(phases.update, CLIENTS, size=size)
    server = fleet.map(phases.update, [SERVER], size=size)
    return clients | server


@pytest.mark.parametrize("size", [1000, LEAST_BYTES // 4 + 999])
def test_a_mean_over_two_maps(on_ray: BaseFleet, here: BaseFleet, size: int) -> None:
    weights = {**WEIGHTS, SERVER: 2.5}
    found = [fleet.get(both_maps(fleet, size=size).mean(weights)) for fleet in (on_ray, here)]
    assert found[0].tobytes() == found[1].tobytes()
    parts = [here.get(both_maps(here, size=size).ref(client)) for client in sorted(weights)]
    shares = [weights[client] for client in sorted(weights)]
    exact = np.average(np.array(parts, np.float64), axis=0, weights=shares)
    np.testing.assert_allclose(found[0], exact, rtol=1e-6, atol=1e-7)


def test_both_maps_live_as_long_as_what_was_made_of_them(fleet: BaseFleet) -> None:
    both = both_maps(fleet)
    held = fleet.map(phases.held_updates, CLIENTS)
    numbers = {number for report in held.values() for number, _ in report["held"]}
    assert len(numbers) == 2
    del both
    for report in fleet.map(phases.held_updates, CLIENTS).values():
        assert report["held"] == []


def test_maps_with_a_client_in_common_have_no_mean_together(here: BaseFleet) -> None:
    first, second = (here.map(phases.update, clients) for clients in ([0, 3], [3, 4]))
    with pytest.raises(ConfigError, match="joined over different clients; got client 3 in both"):
        _ = first | second


def test_a_reference_to_one_update_is_that_update(fleet: BaseFleet) -> None:
    models = {0: [1.0, -0.0], 1: [3.0, 4.0]}
    got = fleet.map(phases.leave, [0, 1], models=models)
    ref = got.ref(0)
    del got
    assert fleet.get(ref).tobytes() == np.array(models[0], np.float32).tobytes()
