"""What a round costs on clusters that nobody has at hand: a discrete-event model, fed with measured costs.

    python benchmarks/scale.py            measure, check against real rounds at 1 and 2 actors, predict, print
    python benchmarks/scale.py --write    the same, and put it into docs/scaling.md

The model runs rayfl's own placement (`Plan`: longest first, a small tail) against a cluster of nodes, actors, links and
a coordinator that does one thing at a time. Its costs are those of a call, of a client's report and of a partial sum,
each measured on this machine; link speeds and the spread of client times are assumptions, said in the table.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from rayfl.fleet.executor import Done
from rayfl.fleet.placement import Plan

ROOT = Path(__file__).resolve().parent.parent
GRID_BYTES = 8  # a partial sum by sample counts holds a float64 a parameter, and next to nothing more
SMALL_BYTES = 64 << 10


@dataclass(frozen=True)
class Costs:
    """Seconds, measured: of the coordinator for a call and for a client in it, of a round without clients, of adding a
    million parameters of one client to a partial sum, and of taking up a broadcast."""

    call: float
    client: float
    round: float
    add_million: float


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


@dataclass(frozen=True)
class Round:
    """A predicted round: how long, what share of it actors are idle, and how long its parts are."""

    seconds: float
    idle: float
    broadcast: float
    train: float
    reduce: float
    coordinator: float


def simulate(work: Work, cluster: Cluster, costs: Costs, fan_in: int = 8) -> Round:
    """One round, event by event."""
    broadcast = broadcast_seconds(work.parameters * 4, cluster)
    trained, busy, coordinating = train(work, cluster, costs, broadcast)
    reduce = reduce_seconds(work, cluster, costs, fan_in)
    total = costs.round + trained + reduce
    return Round(total, 1 - busy / (cluster.actors * total), broadcast, trained - broadcast, reduce, coordinating)


def broadcast_seconds(size: int, cluster: Cluster) -> float:
    """One copy a node; every node that has it passes it on, so copies double."""
    return (
        0.0 if cluster.nodes == 1 or size < SMALL_BYTES else math.ceil(math.log2(cluster.nodes)) * size / cluster.link
    )


def train(work: Work, cluster: Cluster, costs: Costs, start: float) -> tuple[float, float, float]:
    """When the last report is in, the seconds that actors were busy, and those that the coordinator was."""
    plan: Plan[int] = Plan(range(len(work.seconds)), work.seconds.__getitem__, cluster.actors)
    coordinator = start
    answers: list[tuple[float, int]] = []
    busy, calls, idle = 0.0, 0, cluster.actors

    def hand_out() -> None:
        nonlocal coordinator, busy, calls, idle
        while plan and idle:
            tasks = plan.next()
            coordinator += costs.call + len(tasks) * costs.client
            seconds = sum(work.seconds[task] for task in tasks)
            busy += seconds
            idle, calls = idle - 1, calls + 1
            heapq.heappush(answers, (coordinator + seconds, len(tasks)))

    hand_out()
    while answers:
        when, tasks = heapq.heappop(answers)
        coordinator = max(coordinator, when) + tasks * costs.client
        idle += 1
        hand_out()
    return coordinator, busy, calls * costs.call + 2 * len(work.seconds) * costs.client


def reduce_seconds(work: Work, cluster: Cluster, costs: Costs, fan_in: int) -> float:
    """Partial sums at the actors, then through a tree; small ones are added up at the coordinator."""
    size = work.parameters * GRID_BYTES
    actors = min(cluster.actors, len(work.seconds))
    own = math.ceil(len(work.seconds) / actors) * costs.add_million * work.parameters / 1e6
    if work.parameters * 4 <= SMALL_BYTES:
        return own + actors * (costs.call + size / cluster.link * (cluster.nodes > 1))
    merge = costs.add_million * work.parameters / 1e6
    depth, left = 0.0, actors
    while left > 1:
        inputs = min(fan_in, left)
        depth += inputs * ((size / cluster.link if cluster.nodes > 1 else 0.0) + merge) + costs.call
        left = math.ceil(left / inputs) if left > fan_in else 1
    return own + depth + actors * costs.call


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
        return watched(settings(actors, output, rounds, cohort), rounds)


def watched(configuration: dict[str, object], rounds: int) -> Measured:
    """The rounds of a fleet that is driven from here, where every outcome can be seen."""
    import ray

    from rayfl.assembly import holdings_of, spec_of
    from rayfl.config import validated
    from rayfl.engine import initial
    from rayfl.federation.scenario import open_federation
    from rayfl.fleet.coordinator import placed
    from rayfl.fleet.ray_fleet import RayFleet
    from rayfl.fleet.ray_places import Hiring

    config = validated(configuration)
    dataset, scenario = open_federation(config, 0)
    holdings = holdings_of(config, dataset, scenario)
    spec = spec_of(config, dataset, scenario, "cpu")
    placement = placed(config.resources.actors, 1, 0, "cpu", spec.cohort)
    fleet = RayFleet(spec, holdings, Hiring(ray.put(spec), ray.put(holdings), placement))
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


def noted(done: Iterable[Done], took: list[list[float]]) -> list[Done]:
    """The outcomes as they are, after a look at what each took."""
    outcomes = list(done)
    took.append([outcome.seconds for outcome in outcomes])
    return outcomes


def call_costs(repeats: int = 300) -> tuple[float, float]:
    """Seconds of one call and answer, and of each further client in it, at the caller."""
    import ray

    from rayfl.fleet.connection import connected
    from rayfl.fleet.executor import Task
    from rayfl.fleet.travel import Batch

    with connected(None):
        echo = ray.remote(Echo).options(num_cpus=0).remote()

        def answered(clients: int) -> float:
            batch = Batch.packed([Task(k, 0, {}, {}) for k in range(clients)], {})
            readings = []
            for _ in range(repeats):
                started = time.perf_counter()
                ray.get(echo.answer.remote(batch, [Done(k, {"n": 20}) for k in range(clients)]))
                readings.append(time.perf_counter() - started)
            return float(np.median(readings))

        few, many = answered(1), answered(101)
    return few, max(many - few, 1e-7) / 100


class Echo:
    """Answers what it is given."""

    def answer(self, batch: object, done: list[object]) -> list[object]:
        return done


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
        f"Machine: {machine}. Measured: a call {costs.call * 1e3:.2f} ms, a client in it {costs.client * 1e6:.1f} us, "
        f"a round without clients {costs.round * 1e3:.2f} ms, adding a million parameters "
        f"{costs.add_million * 1e3:.2f} ms. "
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
    """Where the coordinator, not training, decides: actors times the coordinator's share of a client."""
    serial = 2 * costs.client
    lines = [
        f"* {span(seconds)} a client: at {int(seconds / serial):,} actors the coordinator works as long as they do."
        for seconds in (0.002, 0.02, 0.2, 2.0)
    ]
    return "## Where the coordinator becomes the bottleneck\n\n" + "\n".join(lines)


def span(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    line: Callable[[Sequence[str]], str] = lambda cells: "| " + " | ".join(cells) + " |"  # noqa: E731
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


@click.command()
@click.option("--write", is_flag=True, help="Put the result into docs/scaling.md.")
def main(write: bool) -> None:
    """Measure, check, predict."""
    call, client = call_costs()
    costs = Costs(call, client, 0.0, adding_cost())
    costs = replace(costs, round=2 * call)  # a map and a mean each wait for one answer
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
