"""Keepers: who owns large states, what travels instead, what is let go of, and what deaths do;
never other bits."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ObjectLostError, RayTaskError

from rayfl.errors import PhaseError
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.executor import Task
from rayfl.fleet.on_ray.calls import Answer, TaskBatch
from rayfl.fleet.on_ray.keepers.keeper_calls import KeeperCalls, KeeperShard, Kept
from rayfl.fleet.on_ray.keepers.keeper_process import Keeper, KeeperDied, Post, Tally
from rayfl.fleet.on_ray.placement import count_keepers
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.fleet.on_ray.socket_calls import SHORT_CALLS
from rayfl.fleet.on_ray.values import STATE_BYTES, Inlined, Packed, Stored
from rayfl.protocol import Ref
from rayfl.run.experiment import run as run_experiment
from tests.fleet import phases
from tests.fleet.toys import CLIENTS, SIZES, cleared, lent_fleet
from tests.reliability.drills import SETTINGS

LARGE = STATE_BYTES  # of float64, eight times what travels with an answer
WEIGHTS = {client: float(SIZES[client]) for client in CLIENTS}
PATIENCE = 180.0
"""How long a process may take to leave: others may want the machine as well."""


@pytest.fixture(scope="module")
def started(cluster: None) -> Iterator[RayFleet]:
    """Three actors, two keepers: actors of one keeper, and an actor of another. No lines: every
    call is a keeper's."""
    fleet: RayFleet = lent_fleet(3, keepers=2)
    fleet.pool.node = "another"
    yield fleet
    fleet.close()


@pytest.fixture
def kept(started: RayFleet) -> RayFleet:
    cleared(started)
    return started


@pytest.fixture
def mortal(cluster: None) -> Iterator[RayFleet]:
    """As many, for a test that kills a keeper."""
    fleet: RayFleet = lent_fleet(3, keepers=2)
    yield fleet
    fleet.close()


def history(fleet: BaseFleet, rounds: int = 4, marker: str = "") -> str:
    """A hash of rounds whose clients remember a model each, and read their neighbour's."""
    digest = hashlib.sha256()
    for fleet.round in range(rounds):
        peers = {c: fleet.state(CLIENTS[i - 1], "w") for i, c in enumerate(CLIENTS)}
        each = {c: {"peer": peer} for c, peer in peers.items() if peer is not None}
        got = fleet.map(
            phases.blend, CLIENTS, each=each, size=LARGE, marker=marker if fleet.round == 2 else ""
        )
        digest.update(fleet.get(got.mean(WEIGHTS)).tobytes() + repr(sorted(got.items())).encode())
        for client in CLIENTS:
            digest.update(fleet.get(fleet.table[client]["w"]).tobytes())
    return digest.hexdigest()


def tallies(fleet: RayFleet) -> list[Tally]:
    assert fleet.routes.keepers is not None
    return fleet.routes.keepers.take_tallies()


def states(fleet: RayFleet) -> int:
    """How many are kept, once the keepers know of all that was let go of."""
    fleet.map(phases.describe, CLIENTS)
    fleet.map(phases.describe, CLIENTS)
    return sum(tally.states for tally in tallies(fleet))


# -- the same bits ---------------------------------------------------------------------------------


def test_rounds_with_large_states_have_the_bits_of_one_process(
    kept: RayFleet, here: BaseFleet, on_ray: BaseFleet
) -> None:
    expected = history(here)
    assert history(on_ray) == expected
    assert history(kept) == expected
    assert kept.costs.take() == here.costs.take()


def test_an_actor_that_dies_in_the_middle_of_a_round_changes_no_bit(
    kept: RayFleet, here: BaseFleet, tmp_path: Path
) -> None:
    """It holds a keeper's call, its updates and the states of clients that it had visited."""
    before = [place.generation for place in kept.pool]
    assert history(kept, marker=str(tmp_path / "died")) == history(here)
    assert (tmp_path / "died").exists()
    assert sum(place.generation for place in kept.pool) == sum(before) + 1


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("scaffold", marks=pytest.mark.long),
        pytest.param("fedrn", marks=pytest.mark.alone),
    ],
)
def test_methods_with_large_states_do_not_see_keepers(
    method: str, tmp_path: Path, cluster: None
) -> None:
    """SCAFFOLD's clients want their own state again, FedRN's read their neighbours'."""
    changes: dict[str, Any] = {
        "device": "cpu",  # the tests' Ray has GPUs in name only
        "method": {"name": method, **({"warmup": 1} if method == "fedrn" else {})},
        "model": {"name": "mlp", "hidden": [200]},
        "training": {**SETTINGS["training"], "rounds": 3},
    }

    def run(name: str, **more: Any) -> str:
        return run_experiment({**SETTINGS, **changes, "output": tmp_path / name, **more}).sha256

    expected = run("inline", fleet="inline")
    for keepers in (0, 2):
        resources = {"cpus_per_client": 0.5, "actors": 3, "keepers": keepers}
        assert run(f"keepers{keepers}", resources=resources) == expected


# -- who owns what ---------------------------------------------------------------------------------


def test_large_states_are_kept_and_small_ones_travel(kept: RayFleet) -> None:
    each = {client: {"size": LARGE if client % 2 else 3} for client in CLIENTS}
    kept.map(phases.remember, CLIENTS, each=each, value=5.0)
    handles = {client: kept.table[client]["v"].handle for client in CLIENTS}
    assert {client: type(handle) for client, handle in handles.items()} == {
        client: Kept if client % 2 else Packed for client in CLIENTS
    }
    got = kept.map(phases.remember, CLIENTS, value=0.0)
    assert {client: report["before"] for client, report in got.items()} == {
        client: [5.0] * inputs["size"] for client, inputs in each.items()
    }


def test_a_handle_names_one_version(kept: RayFleet) -> None:
    kept.map(phases.remember, CLIENTS, value=1.0, size=LARGE)
    first = kept.state(3, "v")
    kept.map(phases.remember, CLIENTS, value=2.0, size=LARGE)
    assert first is not None
    assert [kept.get(first)[0], kept.get(kept.table[3]["v"])[0]] == [1.0, 2.0]


@pytest.mark.parametrize("what", ["state", "peer"])
def test_what_a_keeper_lends_is_read_only(kept: RayFleet, what: str) -> None:
    kept.map(phases.remember, CLIENTS, value=1.0, size=LARGE)
    with pytest.raises(PhaseError, match="read-only"):
        kept.map(phases.scribble, [0], what=what, peer=kept.state(1, "v"))


def test_states_lie_in_the_store_and_are_not_copied(kept: RayFleet) -> None:
    kept.map(phases.remember, CLIENTS, value=1.0, size=LARGE)
    got = kept.map(
        phases.owns_memory, CLIENTS, each={c: {"peer": kept.state(1, "v")} for c in CLIENTS}
    )
    assert not any(report["own"] or report["peer"] for report in got.values())


def test_the_coordinator_owns_none_and_fetches_none(
    kept: RayFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.map(phases.blend, CLIENTS, size=LARGE, marker="")
    fetched: list[Any] = []
    get = ray.get

    def noted(references: Any) -> Any:
        fetched.append(get(references))
        return fetched[-1]

    monkeypatch.setattr(ray, "get", noted)
    each = {client: {"peer": kept.state(CLIENTS[i - 1], "w")} for i, client in enumerate(CLIENTS)}
    kept.map(phases.blend, CLIENTS, each=each, size=LARGE, marker="")
    assert fetched
    assert all(type(answer) is bytes and len(answer) < 4 * LARGE for (answer,) in fetched)


def test_examinations_and_errands_read_kept_states(kept: RayFleet, here: BaseFleet) -> None:
    def read(fleet: BaseFleet) -> list[Any]:
        fleet.map(phases.remember, CLIENTS, value=2.5, size=LARGE)
        peer = fleet.state(4, "v")
        told = [fleet.map(phases.update, CLIENTS).examine(phases.norm_beside, peer=peer)]
        values: dict[str, Any] = {"list": [], "one": peer}
        fleet.start_errand(
            phases.pass_on, {-1: {}}, lambda reports, _: told.append(dict(reports)), values=values
        ).wait()
        return told

    assert read(kept) == read(here)


# -- letting go ------------------------------------------------------------------------------------


def test_what_nobody_names_any_more_is_freed(kept: RayFleet) -> None:
    for t in range(6):
        kept.map(phases.remember, CLIENTS, value=float(t), size=LARGE)
        assert sum(tally.states for tally in tallies(kept)) <= 3 * len(CLIENTS)
    assert states(kept) == len(CLIENTS)
    snapshot = dict(kept.table)
    kept.map(phases.remember, CLIENTS, value=9.0, size=LARGE)
    assert states(kept) == 2 * len(CLIENTS)
    del snapshot
    assert states(kept) == len(CLIENTS)


def test_the_store_is_freed_too(kept: RayFleet) -> None:
    """Twenty rounds of states of twenty megabytes each do not stay."""
    kept.map(phases.blend, CLIENTS, size=1 << 20, marker="")
    before = in_store()
    for _ in range(20):
        kept.map(phases.blend, CLIENTS, size=1 << 20, marker="")
    assert in_store() < before + 5 * len(CLIENTS) * (4 << 20)


def in_store() -> float:
    """Bytes of the object store in use, as Ray counts what there is."""
    time.sleep(1)
    free = ray.available_resources().get("object_store_memory", 0.0)
    return float(ray.cluster_resources()["object_store_memory"] - free)


def test_states_that_are_made_again_do_not_take_those_in_use_with_them(
    kept: RayFleet, here: BaseFleet
) -> None:
    """A lost update is computed again, and leaves its state a second time, which nobody wants."""
    expected = here.map(phases.blend, CLIENTS, size=LARGE, marker="").mean(WEIGHTS)
    got = kept.map(phases.blend, CLIENTS, size=LARGE, marker="")
    os.kill(ray.get(kept.pool[0].actor.hello.remote())["pid"], signal.SIGKILL)
    assert kept.get(got.mean(WEIGHTS)).tobytes() == here.get(expected).tobytes()
    assert states(kept) == len(CLIENTS)
    for client in CLIENTS:
        assert (
            kept.get(kept.table[client]["w"]).tobytes()
            == here.get(here.table[client]["w"]).tobytes()
        )


@pytest.mark.long
def test_keepers_end_with_their_fleet(mortal: RayFleet) -> None:
    pids = [tally.pid for tally in tallies(mortal)]
    mortal.close()
    assert pids
    assert all_end(pids)


class Owner:
    """A process that has keepers, as the coordinator does."""

    def __init__(self) -> None:
        self.keepers = KeeperCalls(2)

    def pids(self) -> list[int]:
        return [tally.pid for tally in self.keepers.take_tallies()]


def test_keepers_end_with_whoever_started_them(cluster: None) -> None:
    """A coordinator that is killed dismisses nobody."""
    owner = ray.remote(Owner).options(num_cpus=0).remote()
    pids = ray.get(owner.pids.remote())
    ray.kill(owner)
    assert pids
    assert all_end(pids)


def all_end(pids: list[int]) -> bool:
    """Whether these processes are gone in the end."""
    started = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() - started > PATIENCE:
            return False
        time.sleep(0.05)
    return True


# -- beside lines ----------------------------------------------------------------------------------


def test_large_states_of_a_call_on_a_line_are_kept_as_well(mortal: RayFleet) -> None:
    for _ in range(SHORT_CALLS):
        mortal.map(phases.describe, CLIENTS)
    assert all(place.line is not None for place in mortal.pool)
    mortal.map(phases.remember, CLIENTS, value=4.0, size=LARGE)
    assert {type(mortal.table[client]["v"].handle) for client in CLIENTS} == {Kept}
    assert [
        report["before"][0] for report in mortal.map(phases.remember, CLIENTS, value=0.0).values()
    ] == [4.0] * 5


# -- deaths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["run", "get", "examine", "lend"])
def test_a_dead_keeper_loses_states_like_a_dead_node(mortal: RayFleet, use: str) -> None:
    """Whoever drives the run then goes back to the last checkpoint."""
    mortal.map(phases.remember, CLIENTS, value=4.0, size=LARGE)
    refs = {client: mortal.table[client]["v"] for client in CLIENTS}
    theirs = next(ref for ref in refs.values() if ref.handle.shard.number == 1)
    uses: dict[str, Callable[[], object]] = {
        "run": lambda: mortal.map(phases.describe, CLIENTS),
        "get": lambda: mortal.get(theirs),
        "examine": lambda: mortal.map(phases.update, CLIENTS).examine(
            phases.norm_beside, peer=theirs
        ),
        # One call, of a place whose keeper lives.
        "lend": lambda: mortal.map(phases.pass_on, [0], values={"list": [], "one": theirs}),
    }
    os.kill(tallies(mortal)[1].pid, signal.SIGKILL)
    with pytest.raises(ObjectLostError, match="a keeper of client states died") as caught:
        uses[use]()
    assert mortal.lost(caught.value)


def test_a_keepers_own_trouble_is_not_an_actors_death(kept: RayFleet) -> None:
    """A call that a keeper cannot make stops the run with what was wrong; no actor is replaced for
    it."""
    before = [place.generation for place in kept.pool]
    kept.map(phases.remember, CLIENTS, value=4.0, size=LARGE)
    assert kept.routes.keepers is not None
    stranger = Ref(Kept(kept.routes.keepers.shards[0], (-1, 0)), "v", 8)
    with pytest.raises(PhaseError, match=r"(?s)a call for client 0 failed in round 0:.*KeyError"):
        kept.map(phases.pass_on, [0], values={"list": [], "one": stranger})
    assert [place.generation for place in kept.pool] == before


def test_a_keepers_death_is_known_when_it_arrives_from_elsewhere(cluster: None) -> None:
    def raise_it() -> None:
        raise KeeperDied("killed")

    raising = ray.remote(raise_it)
    with pytest.raises(
        ObjectLostError, match=r"a keeper of client states died, .*: killed"
    ) as caught:
        ray.get(raising.remote())
    assert isinstance(caught.value, RayTaskError)


# -- without keepers, and how many -----------------------------------------------------------------


def test_without_keepers_nothing_is_started(on_ray: BaseFleet) -> None:
    assert isinstance(on_ray, RayFleet)
    assert on_ray.routes.keepers is None
    on_ray.map(phases.remember, CLIENTS, value=1.0, size=LARGE)
    assert {type(on_ray.table[client]["v"].handle) for client in CLIENTS} == {Stored}


@pytest.mark.parametrize(
    ("wanted", "actors", "keepers"),
    [
        ("auto", 1, 0),
        ("auto", 64, 0),
        ("auto", 65, 2),
        ("auto", 256, 4),
        ("auto", 257, 5),
        (0, 999, 0),
        (3, 1, 3),
    ],
)
def test_how_many_keepers_there_are(wanted: int | str, actors: int, keepers: int) -> None:
    assert count_keepers(wanted, actors) == keepers


# -- small parts -----------------------------------------------------------------------------------


def test_a_handle_that_goes_says_so_once() -> None:
    shard = KeeperShard(0, None)
    handle = Kept(shard, (7, 3))
    held = [handle, handle]
    del handle
    assert shard.gone == []
    del held
    assert shard.gone == [(7, 3)]


def test_tickets_are_never_given_twice(kept: RayFleet) -> None:
    seen = [
        kept.table[0]["v"].handle.key
        for _ in range(3)
        if kept.map(phases.remember, [0], value=0.0, size=LARGE)
    ]
    assert len(set(seen)) == 3


def test_whole_states_travel_unopened_and_come_back() -> None:
    whole = {"w": Ref("a", "w", 5), "y": Ref("b", "y", 5)}
    mixed = {"w": Ref("a", "w", 5), "v": Ref(Inlined({"v": 8}), "v", 5)}
    packed = Packed(pickle.dumps({"v": np.arange(3), "log": [7]}))
    small = {"log": Ref(packed, "log", 5), "v": Ref(packed, "v", 5)}
    tasks = [
        Task(i, 2, {}, state)
        for i, state in enumerate([whole, mixed, {}, {"x": Ref("a", "w")}, small])
    ]
    values: dict[Any, int] = {}
    batch = TaskBatch.of(tasks, values)
    assert batch.stored == {0: {"w": 0, "y": 1}}
    assert list(values) == ["a", "b"]
    back = batch.unpack([{"w": 1}, {"y": 2}])
    assert [dict(task.state) for task in back[:4]] == [
        {"w": 1, "y": 2},
        {"w": 1, "v": 8},
        {},
        {"x": 1},
    ]
    assert list(back[4].state) == ["log", "v"]
    assert (back[4].state["log"], back[4].state["v"].tolist()) == ([7], [0, 1, 2])
    unpacked: Any = packed.value
    assert not unpacked["v"].flags.writeable


def test_states_that_were_collected_are_nowhere_else() -> None:
    from rayfl.fleet.executor import Done

    done = [Done(client, state_bytes={"w": 9}) for client in range(3)] + [Done(3)]
    assert Answer(done).left_at_actor == [0, 1, 2]
    assert Answer(done, states={0: (b"", ())}, kept={2: Inlined(None)}).left_at_actor == [1]


def test_a_keeper_drops_what_it_never_had() -> None:
    keeper = Keeper(0)
    keeper.kept = {(1, 1): "state"}
    keeper._set_out(Post([], [], [(1, 1), (1, 2)]), [])
    assert keeper.kept == {}


WITHOUT = """
import sys
import rayfl.fleet.on_ray.ray_fleet
from rayfl.fleet.on_ray.routes import Routes
Routes(keepers=0)
print([name for name in sys.modules if "keeper" in name])
"""


def test_a_fleet_without_keepers_never_imports_them() -> None:
    run = [sys.executable, "-c", WITHOUT]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout == "[]\n"
