"""Ways to a mean: when each may be taken, and that all of them lead to the same bits."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.fleet.toys import CLIENTS, SIZES

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
    on_ray: BaseFleet, here: BaseFleet, monkeypatch: pytest.MonkeyPatch, way: str, size: int
) -> None:
    assert isinstance(on_ray, RayFleet)
    if way == "shared memory" and (not SUPPORTED or size < LEAST_BYTES // 4):
        pytest.skip("no pages")
    expected = here.get(here.map(phases.update, CLIENTS, size=size).mean(WEIGHTS))
    monkeypatch.setattr(on_ray.reduction, "ways", [Forced(WAYS[way](on_ray))])
    mean = on_ray.map(phases.update, CLIENTS, size=size).mean(WEIGHTS)
    assert on_ray.get(mean).tobytes() == expected.tobytes()


class Forced(WayToMean):
    """A way that is taken whether it fits or not."""

    def __init__(self, way: WayToMean) -> None:
        self.way = way

    def fits(self, placed: PlacedMean) -> bool:
        return True

    def run(self, placed: PlacedMean) -> Handle | None:
        return self.way.run(placed)


# -- several maps ----------------------------------------------------------------------------------


def both_maps(fleet: BaseFleet, size: int = 1000) -> Replies:
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
