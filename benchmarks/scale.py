"""What a round costs on clusters that nobody has at hand: a discrete-event model, fed with measured costs.

    python benchmarks/scale.py            measure, check against real rounds at 1 and 2 actors, predict, print
    python benchmarks/scale.py --write    the same, and put it into docs/scaling.md

The model runs rayfl's own placement (`Plan`: longest first, a small tail) against a cluster of nodes, actors, links and
a coordinator that does one thing at a time. Its costs are those of a call, of a client's report and state, and of a
partial sum, each measured on this machine; link speeds and the spread of client times are assumptions, said below.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from rayfl.fleet.executor import Done
from rayfl.fleet.placement import Plan
from rayfl.fleet.seam import Client, Out, Vector

if TYPE_CHECKING:
    from rayfl.fleet.ray_fleet import RayFleet

ROOT = Path(__file__).resolve().parent.parent
GRID_BYTES = 8  # a partial sum by sample counts holds a float64 a parameter, and next to nothing more
SMALL_BYTES = 64 << 10


@dataclass(frozen=True)
class Costs:
    """Seconds, measured.

    call         from sending a call that does nothing to its answer
    sending      for which a call occupies the coordinator
    client       for which a client in a call does, by the state that it leaves: "none", "small", "large"
    add_million  of adding a million parameters of one client to a partial sum
    """

    call: float
    sending: float
    client: Mapping[str, float]
    add_million: float

    @property
    def round(self) -> float:
        """A round without clients: a map and a mean wait for one answer each."""
        return 2 * self.call


@dataclass(frozen=True)
class Cluster:
    """Nodes, actors on each, and the speed of a link between two nodes (bytes a second)."""

    nodes: int
    actors_per_node: int
    link: float = 10e9 / 8

    @property
    def actors(self) -> int:
        return self.nodes * self.actors_per_node


@dataclass(frozen=True)
class Work:
    """A cohort: seconds of every client, and how large its model is."""

    seconds: Sequence[float]
    parameters: int
    state: str = "none"


@dataclass(frozen=True)
class Round:
    """A predicted round: how long, what share of it actors are idle, how long its parts are, and its calls."""

    seconds: float
    idle: float
    broadcast: float
    train: float
    reduce: float
    coordinator: float
    calls: int


def simulate(work: Work, cluster: Cluster, costs: Costs, fan_in: int = 8) -> Round:
    """One round, event by event."""
    broadcast = broadcast_seconds(work.parameters * 4, cluster)
    trained, busy, calls = train(work, cluster, costs, broadcast)
    reduce = reduce_seconds(work, cluster, costs, fan_in)
    total = costs.round + trained + reduce
    coordinating = calls * costs.sending + len(work.seconds) * costs.client[work.state]
    idle = 1 - busy / (cluster.actors * total)
    return Round(total, idle, broadcast, trained - broadcast, reduce, coordinating, calls)


def broadcast_seconds(size: int, cluster: Cluster) -> float:
    """One copy a node; every node that has it passes it on, so copies double."""
    return (
        0.0 if cluster.nodes == 1 or size < SMALL_BYTES else math.ceil(math.log2(cluster.nodes)) * size / cluster.link
    )


def train(work: Work, cluster: Cluster, costs: Costs, start: float) -> tuple[float, float, int]:
    """When the last report is in, the seconds that actors were busy, and how many calls were made."""
    plan: Plan[int] = Plan(range(len(work.seconds)), work.seconds.__getitem__, cluster.actors)
    coordinator = start
    answers: list[tuple[float, int]] = []
    busy, calls, idle = 0.0, 0, cluster.actors
    half = costs.client[work.state] / 2  # a client is sent off, and taken in

    def hand_out() -> None:
        nonlocal coordinator, busy, calls, idle
        while plan and idle:
            tasks = plan.next()
            coordinator += costs.sending + len(tasks) * half
            seconds = sum(work.seconds[task] for task in tasks)
            busy += seconds
            idle, calls = idle - 1, calls + 1
            heapq.heappush(answers, (coordinator + seconds, len(tasks)))

    hand_out()
    while answers:
        when, tasks = heapq.heappop(answers)
        coordinator = max(coordinator, when) + tasks * half
        idle += 1
        hand_out()
    return coordinator, busy, calls


def reduce_seconds(work: Work, cluster: Cluster, costs: Costs, fan_in: int) -> float:
    """Partial sums at the actors, then through a tree; small ones come with the answers, to the coordinator."""
    size = work.parameters * GRID_BYTES
    actors = min(cluster.actors, len(work.seconds))
    own = math.ceil(len(work.seconds) / actors) * costs.add_million * work.parameters / 1e6
    if work.parameters * 4 <= SMALL_BYTES:
        return own + actors * (size / cluster.link * (cluster.nodes > 1))
    merge = costs.add_million * work.parameters / 1e6
    depth, left = 0.0, actors
    while left > 1:
        inputs = min(fan_in, left)
        depth += inputs * ((size / cluster.link if cluster.nodes > 1 else 0.0) + merge) + costs.call
        left = math.ceil(left / inputs) if left > fan_in else 1
    return own + depth + actors * costs.sending


# -- measuring -------------------------------------------------------------------------------------------------------


def settings(actors: int, output: str, rounds: int, cohort: int) -> dict[str, object]:
    """The run that the model is held against: clients that take tens of milliseconds, of unequal sizes."""
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
    from rayfl.fleet.connection import connected

    with tempfile.TemporaryDirectory() as output, connected(None):
        return watched(settings(actors, output, rounds, cohort), actors, rounds)


def watched(configuration: dict[str, object], actors: int, rounds: int) -> Measured:
    """The rounds of a fleet that is driven from here, where every outcome can be seen."""
    from rayfl.engine import initial

    config, fleet = driven(configuration, actors)
    took: list[list[float]] = []
    account = fleet._account
    fleet._account = lambda done, *rest: account(noted(done, took), *rest)  # type: ignore[method-assign]
    method, state, seconds = config.method, config.method.init(fleet, fleet.serve(initial)), []
    took.clear()
    for t in range(rounds):
        started, fleet.round = time.perf_counter(), t
        state = method.round(state, fleet, t)
        seconds.append(time.perf_counter() - started)
    parameters = len(fleet.get(method.model(state)))
    fleet.close()
    return Measured(seconds, took, parameters)


def driven(configuration: dict[str, object], actors: int, cpus: float = 1) -> tuple[Any, RayFleet]:
    """A fleet without a coordinator around it, and its configuration."""
    import ray

    from rayfl.assembly import holdings_of, spec_of
    from rayfl.config import validated
    from rayfl.federation.scenario import open_federation
    from rayfl.fleet.coordinator import placed
    from rayfl.fleet.ray_fleet import RayFleet
    from rayfl.fleet.ray_places import Hiring

    config = validated(configuration)
    dataset, scenario = open_federation(config, 0)
    holdings = holdings_of(config, dataset, scenario)
    spec = spec_of(config, dataset, scenario, "cpu")
    placement = replace(placed(1, 1, 0, "cpu", spec.cohort), actors=actors, cpus=cpus)
    return config, RayFleet(spec, holdings, Hiring(ray.put(spec), ray.put(holdings), placement))


def noted(done: Iterable[Done], took: list[list[float]]) -> list[Done]:
    """The outcomes as they are, after a look at what each took."""
    outcomes = list(done)
    took.append([outcome.seconds for outcome in outcomes])
    return outcomes


STATES = {"none": 0, "small": 10, "large": 100_000}
"""How many numbers a client's state holds, where it leaves one; large ones lie in the object store."""


def idle_visit(client: Client, *, w: Vector, numbers: int) -> Out:
    """A visit that costs nothing but what every visit costs the coordinator."""
    return Out({"n": len(client)}, w, {"kept": np.zeros(numbers, np.float32)} if numbers else {})


def coordinating_costs(few: int = 100, many: int = 1100) -> tuple[float, float, dict[str, float]]:
    """Seconds from a call to its answer, and those for which a call, and each kind of client, occupy the coordinator:
    processor time of all threads of the process that drives a fleet, whose actors answer at once, over Ray's calls."""
    from rayfl.fleet.connection import connected

    occupied: dict[tuple[int, int, str], float] = {}
    with tempfile.TemporaryDirectory() as output, connected(None):
        for actors in (1, 4):
            setting = {**settings(actors, output, 10, many), "clients": many, "partition": "iid"}
            _, fleet = driven(setting, actors, cpus=0.25)
            fleet.node = "another"  # no standing lines, which only actors on the coordinator's node have
            for kind, numbers in STATES.items():
                for clients in (few, many) if actors == 1 else (few,):
                    occupied[actors, clients, kind], took = rounds_of_nothing(fleet, clients, numbers)
                    if (actors, clients, kind) == (1, few, "none"):
                        shortest = took
            fleet.close()
    client = {kind: (occupied[1, many, kind] - occupied[1, few, kind]) / (many - few) for kind in STATES}
    return shortest, (occupied[4, few, "none"] - occupied[1, few, "none"]) / 3, client


def rounds_of_nothing(fleet: RayFleet, clients: int, numbers: int, rounds: int = 15) -> tuple[float, float]:
    """Processor seconds of this process a round, and the seconds that a call with one client takes."""
    w = fleet.put(np.ones(4810, np.float32))
    occupied, took = [], []
    for t in range(rounds):
        fleet.round, started = t, time.process_time()
        fleet.map(idle_visit, range(clients), w=w, numbers=numbers).mean(dict.fromkeys(range(clients), 1.0))
        occupied.append(time.process_time() - started)
        started = time.perf_counter()
        fleet.map(idle_visit, [0], w=w, numbers=numbers)
        took.append(time.perf_counter() - started)
    return float(np.median(occupied[3:])), float(np.median(took[3:]))


def adding_cost(parameters: int = 4_000_000) -> float:
    """Seconds to add one client's million parameters to a partial sum."""
    from rayfl.fleet.exact import Grid, partial_sum

    rng = np.random.default_rng(0)
    vectors = {k: rng.standard_normal(parameters).astype(np.float32) for k in range(4)}
    grid = Grid.bounded(24.0, 4)
    readings = []
    for _ in range(5):
        started = time.perf_counter()
        partial_sum(vectors, dict.fromkeys(vectors, 1.0), grid)
        readings.append(time.perf_counter() - started)
    return float(np.median(readings)) / len(vectors) / parameters * 1e6


# -- checking and predicting -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A prediction beside what really happened."""

    actors: int
    real: float
    predicted: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.real) / self.real


def checked(costs: Costs, rounds: int = 24, cohort: int = 20) -> list[Check]:
    """Medians over rounds, at one and at two actors; the first rounds warm up."""
    checks = []
    for actors in (1, 2):
        real = measured(actors, rounds, cohort)
        cluster = Cluster(1, actors)
        predicted = [simulate(Work(clients, real.parameters), cluster, costs).seconds for clients in real.clients]
        warm = slice(rounds // 4, None)
        checks.append(Check(actors, float(np.median(real.rounds[warm])), float(np.median(predicted[warm]))))
    return checks


def cohort_of(clients: int, mean: float, spread: float) -> list[float]:
    """Client times, log-normal with this mean."""
    rng = np.random.default_rng(clients)
    return list(rng.lognormal(math.log(mean) - spread**2 / 2, spread, clients))


def predictions(costs: Costs) -> Iterator[tuple[str, int, int, Round, float]]:
    """Rounds, and how long their sum would take if one actor took every partial one."""
    for title, mean, parameters in (
        ("2 s a client, 11 M parameters", 2.0, 11_000_000),
        ("20 ms, 0.1 M", 0.02, 100_000),
    ):
        for actors in (1, 8, 64, 256, 1024):
            cluster = Cluster(max(actors // 8, 1), min(actors, 8))
            for clients in (1_000, 10_000, 100_000, 1_000_000):
                if clients < actors:
                    continue
                work = Work(cohort_of(clients, mean, 0.5), parameters)
                yield (
                    title,
                    actors,
                    clients,
                    simulate(work, cluster, costs),
                    reduce_seconds(work, cluster, costs, 10**9),
                )


def document(costs: Costs, checks: Sequence[Check]) -> str:
    """The page, with what was assumed."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"
    parts = [
        "# Scaling, predicted\n\nWritten by `python benchmarks/scale.py --write`. "
        + (__doc__ or "").split("\n\n")[2].strip(),
        f"Machine: {machine}. Measured: an empty call {costs.call * 1e3:.2f} ms; the coordinator is occupied "
        f"{costs.sending * 1e3:.2f} ms by a call and {costs.client['none'] * 1e6:.1f} us by a client in it "
        f"({costs.client['small'] * 1e6:.1f} us if it leaves a small state, {costs.client['large'] * 1e6:.0f} us if a "
        f"large one); adding a million parameters {costs.add_million * 1e3:.2f} ms. "
        "Assumed: 8 actors a node, links of 10 Gbit/s, client times log-normal with sigma 0.5.",
        "## Against real rounds",
        table(
            ["actors", "measured", "predicted", "error"],
            [
                [
                    str(check.actors),
                    f"{check.real * 1e3:.1f} ms",
                    f"{check.predicted * 1e3:.1f} ms",
                    f"{check.error:.1%}",
                ]
                for check in checks
            ],
        ),
        "## Predictions",
        table(
            ["work", "actors", "clients a round", "round", "idle", "coordinator", "reduce", "reduce without a tree"],
            [
                [
                    title,
                    f"{actors:,}",
                    f"{clients:,}",
                    span(tree.seconds),
                    f"{tree.idle:.0%}",
                    span(tree.coordinator),
                    span(tree.reduce),
                    span(flat),
                ]
                for title, actors, clients, tree, flat in predictions(costs)
            ],
        ),
        bottleneck(costs),
    ]
    return "\n\n".join(parts) + "\n"


def bottleneck(costs: Costs) -> str:
    """For how many actors the coordinator works as long as each of them, by what it does for one of them in a round."""
    rows = []
    for seconds in (0.002, 0.02, 0.2, 2.0):
        for clients in (10, 100, 1000):
            cluster = Cluster(32, 8)
            work = Work([seconds] * clients * cluster.actors, 100_000)
            calls = simulate(work, cluster, costs).calls / cluster.actors
            limits = [
                clients * seconds / (calls * costs.sending + clients * client) for client in costs.client.values()
            ]
            figures = [f"{limit:,.0f}" for limit in limits]
            rows.append([span(seconds), f"{clients:,}", span(clients * seconds), f"{calls:.1f}", *figures])
    head = ["a client", "clients an actor", "an actor's share", "calls an actor"]
    return (
        "## Where the coordinator becomes the bottleneck\n\nFor this many actors the coordinator works as long as "
        "each of them does, by what state clients leave (40 bytes, 400 KB). Where an actor's share of a round "
        "is milliseconds, Ray's calls decide; such rounds want fewer actors, and `training.stack`.\n\n"
        + table([*head, *(f"state: {kind}" for kind in costs.client)], rows)
    )


def span(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    line: Callable[[Sequence[str]], str] = lambda cells: "| " + " | ".join(cells) + " |"  # noqa: E731
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


@click.command()
@click.option("--write", is_flag=True, help="Put the result into docs/scaling.md.")
def main(write: bool) -> None:
    """Measure, check, predict."""
    costs = Costs(*coordinating_costs(), adding_cost())
    checks = checked(costs)
    text = document(costs, checks)
    click.echo(text)
    click.echo(json.dumps({"errors": [round(check.error, 4) for check in checks]}))
    if write:
        (ROOT / "docs" / "scaling.md").write_text(text)
    if max(check.error for check in checks) > 0.1:
        raise click.ClickException("a prediction is more than 10 % off: this machine is busy, or the model is wrong")


if __name__ == "__main__":
    main()
