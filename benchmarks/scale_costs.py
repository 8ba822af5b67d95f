"""What calls, clients and states cost the coordinator and a keeper, measured on this machine for
scale.py."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.fleet.executor import Done
from rayfl.fleet.host import spare_imports
from rayfl.protocol import Client, Out, Vector

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.ray_fleet import RayFleet

STATES = {"none": 0, "small": 10, "large": 100_000}
"""How many numbers a client's state holds, where it leaves one; large ones lie in the object
store."""

KEPT = ", kept"
KINDS = (*STATES, *(kind + KEPT for kind in STATES))
"""By what state clients leave, and whether there are keepers."""


@dataclass(frozen=True)
class Costs:
    """Seconds, measured.

    call         from sending a call that does nothing to its answer
    sending      for which a call occupies the coordinator, with its part in a mean: "direct", or
                 "kept" by a keeper
    client       for which a client in a call does, by KINDS
    keeping      for which a "call", and a large "state" in it, occupy a keeper
    add_million  of adding a million parameters of one client to a partial sum
    """

    call: float
    sending: Mapping[str, float]
    client: Mapping[str, float]
    keeping: Mapping[str, float]
    add_million: float

    def a_call(self, kind: str) -> float:
        """What a call of clients of this kind is to the coordinator."""
        return self.sending["kept" if kind.endswith(KEPT) else "direct"]

    def at_a_keeper(self, kind: str, clients: int) -> float:
        """What a call with so many of them is to its keeper."""
        if not kind.endswith(KEPT):
            return 0.0
        state = self.keeping["state"] if kind.startswith("large") else 0.0
        return self.keeping["call"] + clients * state

    @property
    def round(self) -> float:
        """A round without clients: a map and a mean wait for one answer each."""
        return 2 * self.call


def settings(
    actors: int,
    output: str,
    rounds: int,
    cohort: int,
) -> dict[str, object]:
    """The run that the model is held against: clients that take tens of milliseconds, of unequal
    sizes."""
    return {
        "data": {"name": "blobs", "samples": 8000, "test_samples": 200, "side": 16, "spread": 0.5},
        "clients": 40,
        "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 20},
        "model": {"name": "mlp", "hidden": [256]},
        "training": {"rounds": rounds, "clients_per_round": cohort, "epochs": 4, "batch_size": 16},
        "evaluation": {"every": rounds},
        "tracking": {"enabled": False},
        "checkpoint": {"every": 0},
        "resources": {"actors": actors},
        "device": "cpu",
        "output": output,
    }


@dataclass(frozen=True)
class Measured:
    """Real rounds: wall seconds of each, and the seconds of every client in it."""

    rounds: list[float]
    clients: list[list[float]]
    parameters: int


def measured(actors: int, rounds: int, cohort: int) -> Measured:
    """Run for real and note what each client took."""
    from rayfl.fleet.on_ray.connection import connect_ray

    with tempfile.TemporaryDirectory() as output, connect_ray(None):
        return watched(settings(actors, output, rounds, cohort), actors, rounds)


def watched(configuration: dict[str, object], actors: int, rounds: int) -> Measured:
    """The rounds of a fleet that is driven from here, where every outcome can be seen."""
    config, fleet = driven(configuration, actors)
    took: list[list[float]] = []
    account = fleet._account
    fleet._account = lambda done, *rest: account(noted(done, took), *rest)  # type: ignore[method-assign]
    method, state, seconds = config.method, config.method.init(fleet, fleet.initial()), []
    took.clear()
    for t in range(rounds):
        started = time.perf_counter()
        fleet.round = t
        state = method.round(state, fleet, t)
        seconds.append(time.perf_counter() - started)
    parameters = len(fleet.get(method.model(state, fleet)))
    fleet.close()
    return Measured(seconds, took, parameters)


def driven(
    configuration: dict[str, object],
    actors: int,
    cpus: float = 1,
    keepers: int = 0,
) -> tuple[Any, RayFleet]:
    """A fleet without a coordinator around it, and its configuration."""
    import ray

    from rayfl.config.schema import validate_config
    from rayfl.federation.scenario import open_federation
    from rayfl.fleet.on_ray.coordinator import fit_placement
    from rayfl.fleet.on_ray.hiring import Hiring
    from rayfl.fleet.on_ray.ray_fleet import RayFleet
    from rayfl.run.assembly import build_holdings, build_spec

    config = validate_config(configuration)
    dataset, scenario = open_federation(config, 0)
    holdings = build_holdings(config, dataset, scenario)
    spec = build_spec(config, dataset, scenario, "cpu")
    placement = replace(
        fit_placement(1, 1, 0, "cpu", spec.cohort),
        actors=actors,
        cpus=cpus,
        keepers=keepers,
    )
    return config, RayFleet(spec, holdings, Hiring(ray.put(spec), ray.put(holdings), placement))


def noted(done: Iterable[Done], took: list[list[float]]) -> list[Done]:
    """The outcomes as they are, after a look at what each took."""
    outcomes = list(done)
    took.append([outcome.seconds for outcome in outcomes])
    return outcomes


def idle_visit(client: Client, *, w: Vector, numbers: int) -> Out:
    """A visit that costs nothing but what every visit costs the coordinator."""
    return Out({"n": len(client)}, w, {"kept": np.zeros(numbers, np.float32)} if numbers else {})


@dataclass(frozen=True)
class Spent:
    """A round of visits that cost nothing else: processor seconds of all threads of the process
    that drives the fleet, and of its keepers; and the seconds that a call with one client takes."""

    coordinator: float
    keepers: float
    call: float


ACTORS = 8
FEW = 96
MANY = 1056


def measured_costs() -> Costs:
    """What calls and clients cost those who do one thing at a time, from rounds whose actors answer
    at once; over Ray's calls or through keepers, but never by standing lines, which only actors on
    the coordinator's node have."""
    from rayfl.fleet.on_ray.connection import connect_ray

    spent: dict[tuple[int, int, str], Spent] = {}
    with tempfile.TemporaryDirectory() as output, connect_ray(None):
        for way in ("", KEPT):
            for actors in (1, ACTORS):
                with settled_fleet(output, actors, keepers=len(way) and 1) as fleet:
                    for kind, numbers in STATES.items():
                        for clients in (FEW, MANY) if actors == 1 else (FEW,):
                            found = rounds_of_nothing(fleet, clients, numbers)
                            spent[actors, clients, kind + way] = found
        crossing = crossing_cost(output)

    def a_client(kind: str) -> float:
        more = spent[1, MANY, kind].coordinator - spent[1, FEW, kind].coordinator
        return more / (MANY - FEW)

    def a_call(kind: str) -> float:
        more = spent[ACTORS, FEW, kind].coordinator - spent[1, FEW, kind].coordinator
        return more / (ACTORS - 1)

    kept = "none" + KEPT
    kept_seconds = spent[ACTORS, FEW, kept].keepers - spent[1, FEW, kept].keepers
    keeping = {"call": kept_seconds / (ACTORS - 1), "state": crossing}
    return Costs(
        spent[1, FEW, "none"].call,
        {"direct": a_call("none"), "kept": a_call(kept)},
        {kind: a_client(kind) for kind in KINDS},
        keeping,
        adding_cost(),
    )


@contextmanager
def settled_fleet(output: str, actors: int, keepers: int) -> Iterator[RayFleet]:
    """A fleet whose process has been through the same imports as a coordinator, and let go of them
    as it does."""
    setting = {**settings(actors, output, 10, MANY), "clients": MANY, "partition": "iid"}
    with spare_imports():
        _, fleet = driven(setting, actors, cpus=0.125, keepers=keepers)
    fleet.pool.node = "another"
    try:
        yield fleet
    finally:
        fleet.close()


def rounds_of_nothing(
    fleet: RayFleet,
    clients: int,
    numbers: int,
    rounds: int = 15,
) -> Spent:
    """Medians over rounds, of which the first warm up."""
    w = fleet.put(np.ones(4810, np.float32))
    occupied = []
    kept = []
    took = []
    for t in range(rounds):
        fleet.round = t
        before = keepers_seconds(fleet)
        started = time.process_time()
        got = fleet.map(idle_visit, range(clients), w=w, numbers=numbers)
        got.mean(dict.fromkeys(range(clients), 1.0))
        occupied.append(time.process_time() - started)
        kept.append(keepers_seconds(fleet) - before)
        started = time.perf_counter()
        fleet.map(idle_visit, [0], w=w, numbers=numbers)
        took.append(time.perf_counter() - started)
    return Spent(*(float(np.median(readings[3:])) for readings in (occupied, kept, took)))


def keepers_seconds(fleet: RayFleet) -> float:
    keepers = fleet.routes.keepers
    return 0.0 if keepers is None else sum(tally.seconds for tally in keepers.take_tallies())


def crossing_cost(output: str) -> float:
    """Processor seconds that a large state costs its keepers if every visit is at another keeper's
    actor than the last one: the state is collected here, lent there, and let go of. No run does
    worse."""
    readings = []
    with settled_fleet(output, 2, keepers=2) as fleet:
        for clients in (FEW, MANY // 2):
            seconds = []
            for t in range(12):
                # The same halves, dealt the other way round.
                pool = fleet.pool
                pool.others_first = lambda places: sorted(  # type: ignore[method-assign]
                    places, key=lambda place: place.number, reverse=fleet.round % 2 > 0
                )
                fleet.round, before = t, keepers_seconds(fleet)
                fleet.map(
                    idle_visit,
                    range(clients),
                    w=np.ones(8, np.float32),
                    numbers=STATES["large"],
                )
                seconds.append(keepers_seconds(fleet) - before)
            readings.append(float(np.median(seconds[3:])))
    return (readings[1] - readings[0]) / (MANY // 2 - FEW)


def adding_cost(parameters: int = 4_000_000) -> float:
    """Seconds to add one client's million parameters to a partial sum."""
    from rayfl.fleet.sums.exact_sums import Grid, partial_sum

    rng = np.random.default_rng(0)
    vectors = {k: rng.standard_normal(parameters).astype(np.float32) for k in range(4)}
    grid = Grid.bounded(24.0, 4)
    readings = []
    for _ in range(5):
        started = time.perf_counter()
        partial_sum(vectors, dict.fromkeys(vectors, 1.0), grid)
        readings.append(time.perf_counter() - started)
    return float(np.median(readings)) / len(vectors) / parameters * 1e6
