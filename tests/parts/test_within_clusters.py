"""Hosts within clusters: one is the host alone, several are one map, and none sees another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.fedprox import FedProx
from rayfl.algorithms.parts.weighting import Equal
from rayfl.algorithms.parts.within_clusters import WithinClusters
from rayfl.algorithms.scaffold import Scaffold
from rayfl.component import component
from rayfl.config.schema import Config
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import SERVER, Algorithm, Client, ClientId, Fleet, NobodyLeft, Out, Ref, Vector
from tests.algorithms.conformance import Row, toy_config
from tests.algorithms.toys import fleet_of, toy_fleet

HALVES = {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}
THIRDS = {0: 2, 1: 0, 2: 0, 3: 1, 4: 1, 5: 2}


def toy(tmp_path: Path, **more: Any) -> Config:
    return toy_config(Row("toy", {"name": "fedavg"}), tmp_path, **more)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[InlineFleet]:
    made = toy_fleet(toy(tmp_path, training={"clients_per_round": 6}))
    made.round = -1
    yield made
    made.close()


@dataclass
class Played:
    """What came of some rounds."""

    models: dict[ClientId, list[float]]
    costs: dict[str, int]
    maps: int


def play(
    fleet: InlineFleet,
    method: Any,
    model: Callable[[Any, ClientId], Ref],
    monkeypatch: pytest.MonkeyPatch,
    rounds: int = 3,
) -> Played:
    """Some rounds of a method, or of a host within clusters."""
    maps = []
    execute = InlineFleet.execute

    def counted(self: InlineFleet, number: int, phase: Any, *more: Any) -> Any:
        maps.append(phase)
        return execute(self, number, phase, *more)

    fleet.round = -1
    state = method.init(fleet, fleet.initial())
    fleet.costs.take()
    monkeypatch.setattr(InlineFleet, "execute", counted)
    for fleet.round in range(rounds):
        state = method.round(state, fleet, fleet.round)
    monkeypatch.setattr(InlineFleet, "execute", execute)
    models = {k: fleet.get(model(state, k)).tolist() for k in fleet.clients}
    return Played(models, fleet.costs.take(), len(maps))


HOSTS: Mapping[str, Algorithm] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(weighting=Equal()),
    "scaffold": Scaffold(),
    "scaffold_I": Scaffold(option="I", eta_g=0.5),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("cohort", [4, 6])
def test_one_cluster_is_the_host_alone(
    name: str, cohort: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, and byte by byte."""
    host = HOSTS[name]
    fleets = [toy_fleet(toy(tmp_path, training={"clients_per_round": cohort})) for _ in range(2)]
    alone = play(fleets[0], host, lambda state, k: host.model(state, fleets[0], k), monkeypatch)
    within = WithinClusters(host, dict.fromkeys(fleets[1].clients, 0))
    clustered = play(
        fleets[1], within, lambda state, k: within.model(state, fleets[1], k), monkeypatch
    )
    assert clustered == alone


@pytest.mark.parametrize("name", HOSTS)
def test_maps_of_all_clusters_are_one(
    name: str, fleet: InlineFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HOSTS[name]
    alone = play(fleet, host, lambda state, k: host.model(state, fleet, k), monkeypatch)
    within = WithinClusters(host, THIRDS)
    several = play(fleet, within, lambda state, k: within.model(state, fleet, k), monkeypatch)
    assert several.maps == alone.maps
    assert several.costs == alone.costs
    assert len({tuple(model) for model in several.models.values()}) == 3


def add_number(client: Client, *, w: Vector, method: FedAvg) -> Out:
    return Out(update=w + np.float32(10**client.id))


def test_each_cluster_is_averaged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfl.algorithms.fedavg.train", add_number)
    fleet = fleet_of([1, 2, 3, 4])
    within = WithinClusters(FedAvg(), {0: 0, 1: 1, 2: 0, 3: 1})
    states = within.init(fleet, fleet.put(np.zeros(1, np.float32)))
    states = within.round(states, fleet, 0)
    found = [float(fleet.get(within.model(states, fleet, k))[0]) for k in range(4)]
    # (1 * 1 + 3 * 100) / 4 and (2 * 10 + 4 * 1000) / 6
    assert found == [75.25, 670.0, 75.25, 670.0]


def test_who_was_not_drawn_leaves_its_cluster_as_it_is(fleet: InlineFleet) -> None:
    fleet.spec = replace(fleet.spec, cohort=1)
    fleet.round = 0
    (drawn,) = fleet.sample(0)
    within = WithinClusters(FedAvg(), HALVES)
    before = within.init(fleet, fleet.initial())
    after = within.round(before, fleet, 0)
    assert after[1 - HALVES[drawn]] is before[1 - HALVES[drawn]]
    assert after[HALVES[drawn]] is not before[HALVES[drawn]]


@pytest.mark.parametrize("lost", [{0}, {1}])
def test_a_cluster_all_of_whose_clients_diverge_keeps_its_state(
    lost: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(client: Client, *, w: Vector, method: FedAvg) -> Out:
        return Out(update=w + np.float32(np.nan if client.id % 2 in lost else 1))

    monkeypatch.setattr("rayfl.algorithms.fedavg.train", diverge)
    fleet = fleet_of([1] * 4)
    within = WithinClusters(FedAvg(), {0: 0, 1: 1, 2: 0, 3: 1})
    before = within.init(fleet, fleet.put(np.zeros(1, np.float32)))
    after = within.round(before, fleet, 0)
    (kept,) = lost
    assert after[kept] is before[kept]
    assert fleet.get(after[1 - kept].model).tolist() == [1.0]


def test_a_round_without_anybody_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(client: Client, *, w: Vector, method: FedAvg) -> Out:
        return Out(update=w * np.float32(np.nan))

    monkeypatch.setattr("rayfl.algorithms.fedavg.train", diverge)
    fleet = fleet_of([1] * 4)
    within = WithinClusters(FedAvg(), {0: 0, 1: 1, 2: 0, 3: 1})
    states = within.init(fleet, fleet.put(np.zeros(1, np.float32)))
    with pytest.raises(NobodyLeft, match="every one of 4 updates diverged"):
        within.round(states, fleet, 0)


# -- what a host sees ------------------------------------------------------------------------------


def give_number(client: Client, *, plus: float = 0.0) -> Out:
    """An update that is the client's id; the server's counts its visits."""
    if client.id >= 0:
        return Out({"id": client.id}, np.array([client.id + plus], np.float32))
    visits = int(client.state.get("visits", 0)) + 1
    return Out({"visits": visits}, np.array([100.0], np.float32), state={"visits": visits})


def pass_on(client: Client, *, w: Vector) -> Out:
    return Out(update=w + np.float32(client.id + 1))


def look(server: Client, *, w: Vector, plus: float) -> Out:
    return Out({"seen": float(w[0]) + plus})


@component
class Curious(Algorithm):
    """Says what it finds."""

    wrong: str = ""

    def init(self, fleet: Fleet, model: Ref) -> Global:
        return Global(model)

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        if self.wrong == "stranger":
            fleet.map(give_number, [0])
        if self.wrong == "raises":
            raise ZeroDivisionError("a bug of the host")
        own = fleet.clients
        first, rest = own[:1], own[1:]
        both = fleet.map(give_number, first) | fleet.map(give_number, [*rest, SERVER])
        seen = both.examine(look, own, {own[0]: {"plus": 0.5}}, plus=0.0)
        chained = fleet.chain(pass_on, own, fleet.put(np.zeros(1, np.float32)))
        served = fleet.serve(give_number)
        doubled = fleet.combine((2.0, served["w"]))
        fleet.log(
            mean=float(fleet.get(both.mean(dict.fromkeys(both, 1.0)))[0]),
            among=float(fleet.get(both.among([SERVER]).ref(SERVER))[0]),
            visits=float(served.report["visits"]),
            doubled=float(fleet.get(doubled)[0]),
            last=float(fleet.get(chained.last)[0]),
            draw=float(fleet.rng(t, "anything").random()),
            share=float(fleet.cohort),
            part=float(len(fleet.sample(t, among=own))),
        )
        fleet.estimate("seen", {k: report["seen"] for k, report in seen.items()})
        fleet.answered("public", {k: np.array([k]) for k in own})
        fleet.leave("own", np.array(own))
        return state


def test_a_host_sees_its_clients_and_a_server_of_its_own() -> None:
    fleet = fleet_of([1] * 6)
    within = WithinClusters(Curious(), HALVES)
    states = within.init(fleet, fleet.put(np.zeros(1, np.float32)))
    within.round(states, fleet, 0)
    # Clients 0, 2, 4 and 1, 3, 5, each with the server's 100; chained, 1 + 3 + 5 and 2 + 4 + 6.
    draws = [fleet.rng(0, name).random() for name in ("anything", "anything/1")]
    assert draws[0] != draws[1]
    assert fleet.take_logged() == pytest.approx(
        {
            "mean": (106 / 4 + 109 / 4) / 2,
            "among": 100.0,
            "visits": 2.0,
            "doubled": 200.0,
            "last": (9 + 12) / 2,
            "draw": sum(draws) / 2,
            "share": 3.0,
            "part": 3.0,
        }
    )
    assert fleet.take_estimates() == {
        "seen": {0: 0.5, 1: 1.5, **{k: float(k) for k in (2, 3, 4, 5)}}
    }
    assert sorted(fleet.take_answers()["public"]) == list(range(6))
    assert {name: fleet.left[name].tolist() for name in ("own/0", "own/1")} == {
        "own/0": [0, 2, 4],
        "own/1": [1, 3, 5],
    }
    # A state of each cluster's server.
    assert {SERVER, SERVER - 1} <= set(fleet.table)
    view = within.view(fleet, 1)
    visits = view.state(SERVER, "visits")
    assert visits is not None
    assert view.get(visits) == 2


def test_the_clients_of_other_clusters_are_out_of_reach() -> None:
    fleet = fleet_of([1] * 6)
    within = WithinClusters(Curious(wrong="stranger"), HALVES)
    states = within.init(fleet, fleet.put(np.zeros(1, np.float32)))
    with pytest.raises(ConfigError, match="visits the clients of its cluster; got client 0"):
        within.round(states, fleet, 0)


def test_a_host_that_raises_ends_the_round() -> None:
    fleet = fleet_of([1] * 6)
    within = WithinClusters(Curious(wrong="raises"), HALVES)
    states = within.init(fleet, fleet.put(np.zeros(1, np.float32)))
    with pytest.raises(ZeroDivisionError, match="a bug of the host"):
        within.round(states, fleet, 0)


@pytest.mark.parametrize("i", [0, 1, 5])
@pytest.mark.parametrize("m", [0, 1, 2])
def test_tasks_of_the_servers_have_numbers_of_their_own(i: int, m: int) -> None:
    view = WithinClusters(Curious(), THIRDS).view(fleet_of([1] * 6), m)
    assert view.outer(SERVER - i) == SERVER - (3 * i + m)
    assert view.inner(view.outer(SERVER - i)) == SERVER - i
