"""What a round costs on clusters that nobody has at hand: a discrete-event model, fed with measured
costs.

    python benchmarks/scale.py            measure, check against real rounds, predict, print
    python benchmarks/scale.py --write    the same, and put it into docs/scaling.md

The model runs rayfl's own placement (`Plan`: longest first, a small tail) against a cluster of
nodes, actors, links and a coordinator that does one thing at a time. Its costs are those of a call,
of a client's report and state, and of a partial sum, each measured on this machine; link speeds and
the spread of client times are assumptions, said below."""

from __future__ import annotations

import heapq
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from scale_costs import KEPT, STATES, Costs, measured, measured_costs

from rayfl.fleet.on_ray.placement import ACTORS_A_KEEPER, HandOutPlan, count_keepers

ROOT = Path(__file__).resolve().parent.parent
# A partial sum by sample counts holds a float64 a parameter, and next to nothing more.
GRID_BYTES = 8
SMALL_BYTES = 64 << 10


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
    """A predicted round: how long, what share of it actors are idle, how long its parts are, and
    its calls."""

    seconds: float
    idle: float
    broadcast: float
    train: float
    reduce: float
    coordinator: float
    calls: int


def simulate(
    work: Work,
    cluster: Cluster,
    costs: Costs,
    fan_in: int = 8,
) -> Round:
    """One round, event by event."""
    broadcast = broadcast_seconds(work.parameters * 4, cluster)
    trained, busy, calls = train(work, cluster, costs, broadcast)
    reduce = reduce_seconds(work, cluster, costs, fan_in)
    total = costs.round + trained + reduce
    coordinating = calls * costs.a_call(work.state) + len(work.seconds) * costs.client[work.state]
    idle = 1 - busy / (cluster.actors * total)
    return Round(total, idle, broadcast, trained - broadcast, reduce, coordinating, calls)


def broadcast_seconds(size: int, cluster: Cluster) -> float:
    """One copy a node; every node that has it passes it on, so copies double."""
    if cluster.nodes == 1 or size < SMALL_BYTES:
        return 0.0
    steps = math.ceil(math.log2(cluster.nodes))
    return steps * size / cluster.link


def train(
    work: Work,
    cluster: Cluster,
    costs: Costs,
    start: float,
) -> tuple[float, float, int]:
    """When the last report is in, the seconds that actors were busy, and how many calls were
    made."""
    plan: HandOutPlan[int] = HandOutPlan(
        range(len(work.seconds)), work.seconds.__getitem__, cluster.actors
    )
    coordinator = start
    answers: list[tuple[float, int]] = []
    busy = 0.0
    calls = 0
    idle = cluster.actors
    half = costs.client[work.state] / 2  # a client is sent off, and taken in
    keepers = [start] * max(count_keepers("auto", cluster.actors), 1)

    def hand_out() -> None:
        nonlocal coordinator, busy, calls, idle
        while plan and idle:
            tasks = plan.next()
            coordinator += costs.a_call(work.state) + len(tasks) * half
            seconds = sum(work.seconds[task] for task in tasks)
            busy += seconds
            idle = idle - 1
            calls = calls + 1
            heapq.heappush(answers, (coordinator + seconds, len(tasks)))

    hand_out()
    while answers:
        when, tasks = heapq.heappop(answers)
        # Each keeper does one thing at a time as well; whoever is free longest stands for the
        # call's own.
        kept = max(heapq.heappop(keepers), when) + costs.at_a_keeper(work.state, tasks)
        heapq.heappush(keepers, kept)
        coordinator = max(coordinator, kept) + tasks * half
        idle += 1
        hand_out()
    return coordinator, busy, calls


def reduce_seconds(
    work: Work,
    cluster: Cluster,
    costs: Costs,
    fan_in: int,
) -> float:
    """Partial sums at the actors, then through a tree; small ones come with the answers, to the
    coordinator."""
    size = work.parameters * GRID_BYTES
    actors = min(cluster.actors, len(work.seconds))
    own = math.ceil(len(work.seconds) / actors) * costs.add_million * work.parameters / 1e6
    if work.parameters * 4 <= SMALL_BYTES:
        return own + actors * (size / cluster.link * (cluster.nodes > 1))
    merge = costs.add_million * work.parameters / 1e6
    depth = 0.0
    left = actors
    while left > 1:
        inputs = min(fan_in, left)
        depth += inputs * ((size / cluster.link if cluster.nodes > 1 else 0.0) + merge) + costs.call
        left = math.ceil(left / inputs) if left > fan_in else 1
    return own + depth + actors * costs.sending["direct"]


# -- checking and predicting -----------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A prediction beside what really happened."""

    actors: int
    real: float
    predicted: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.real) / self.real

    def row(self) -> list[str]:
        """Its line in the document."""
        return [
            str(self.actors),
            f"{self.real * 1e3:.1f} ms",
            f"{self.predicted * 1e3:.1f} ms",
            f"{self.error:.1%}",
        ]


def checked(
    costs: Costs,
    rounds: int = 24,
    cohort: int = 20,
) -> list[Check]:
    """Medians over rounds, at one and at two actors; the first rounds warm up."""
    checks = []
    for actors in (1, 2):
        real = measured(actors, rounds, cohort)
        cluster = Cluster(1, actors)
        works = [Work(clients, real.parameters) for clients in real.clients]
        predicted = [simulate(work, cluster, costs).seconds for work in works]
        warm = slice(rounds // 4, None)
        took = float(np.median(real.rounds[warm]))
        checks.append(Check(actors, took, float(np.median(predicted[warm]))))
    return checks


def cohort_of(clients: int, mean: float, spread: float) -> list[float]:
    """Client times, log-normal with this mean."""
    rng = np.random.default_rng(clients)
    return list(rng.lognormal(math.log(mean) - spread**2 / 2, spread, clients))


WORKS = (
    ("2 s a client, 11 M parameters", 2.0, 11_000_000, "none", (1, 8, 64, 256, 1024)),
    ("20 ms, 0.1 M", 0.02, 100_000, "none", (1, 8, 64, 256, 1024)),
    ("20 ms, 0.1 M, large states", 0.02, 100_000, "large", (64, 256, 1024)),
    ("20 ms, 0.1 M, large states, kept", 0.02, 100_000, "large, kept", (256, 1024)),
)


def predictions(costs: Costs) -> Iterator[tuple[str, int, int, Round, float]]:
    """Rounds, and how long their sum would take if one actor took every partial one."""
    for title, mean, parameters, state, pools in WORKS:
        for actors in pools:
            cluster = Cluster(max(actors // 8, 1), min(actors, 8))
            for clients in (1_000, 10_000, 100_000, 1_000_000):
                if clients < actors:
                    continue
                work = Work(cohort_of(clients, mean, 0.5), parameters, state)
                yield (
                    title,
                    actors,
                    clients,
                    simulate(work, cluster, costs),
                    reduce_seconds(work, cluster, costs, 10**9),
                )


def client_microseconds(costs: Costs, way: str) -> list[str]:
    """What a client costs, by the state that it leaves."""
    return [f"{costs.client[kind + way] * 1e6:.1f} us" for kind in STATES]


def document(costs: Costs, checks: Sequence[Check]) -> str:
    """The page, with what was assumed."""
    method = (__doc__ or "").split("\n\n")[2].strip()
    states = [
        ["calls by the coordinator", *client_microseconds(costs, "")],
        ["through keepers", *client_microseconds(costs, KEPT)],
    ]
    parts = [
        f"# Scaling, predicted\n\nWritten by `python benchmarks/scale.py --write`. {method}",
        measurements(costs),
        table(["a client leaves", "none", "small (40 bytes)", "large (400 KB)"], states),
        "## Against real rounds",
        table(["actors", "measured", "predicted", "error"], [check.row() for check in checks]),
        "## Predictions",
        predicted_table(costs),
        bottleneck(costs),
    ]
    return "\n\n".join(parts) + "\n"


def measurements(costs: Costs) -> str:
    """What was measured, where, and what is assumed."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"
    return (
        f"Machine: {machine}. Measured: an empty call {costs.call * 1e3:.2f} ms; the coordinator "
        f"is occupied {costs.sending['direct'] * 1e3:.2f} ms by a call with its part in a mean, "
        f"{costs.sending['kept'] * 1e3:.2f} ms if it goes through a keeper, and by a client in it "
        f"as the table says; a keeper is occupied {costs.keeping['call'] * 1e3:.2f} ms by a call "
        f"and {costs.keeping['state'] * 1e6:.0f} us by a large state that was kept by another one "
        f"before; adding a million parameters {costs.add_million * 1e3:.2f} ms. "
        "Assumed: 8 actors a node, links of 10 Gbit/s, client times log-normal with sigma 0.5."
    )


def predicted_table(costs: Costs) -> str:
    head = [
        "work",
        "actors",
        "clients a round",
        "round",
        "idle",
        "coordinator",
        "reduce",
        "reduce without a tree",
    ]
    rows = [
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
    ]
    return table(head, rows)


def bottleneck(costs: Costs) -> str:
    """For how many actors the coordinator works as long as each of them, by what it does for one of
    them in a round."""
    rows = []
    for seconds in (0.002, 0.02, 0.2, 2.0):
        for clients in (10, 100, 1000):
            cluster = Cluster(32, 8)
            work = Work([seconds] * clients * cluster.actors, 100_000)
            calls = simulate(work, cluster, costs).calls / cluster.actors
            share = clients * seconds
            limits = [
                share / (calls * costs.a_call(kind) + clients * client)
                for kind, client in costs.client.items()
            ]
            a_call = costs.at_a_keeper("large" + KEPT, round(clients / calls))
            at_a_keeper = share / (calls * a_call)
            figures = [f"{limit:,.0f}" for limit in (*limits, at_a_keeper)]
            rows.append([span(seconds), f"{clients:,}", span(share), f"{calls:.1f}", *figures])
    head = ["a client", "clients an actor", "an actor's share", "calls an actor"]
    return (
        "## Where the coordinator becomes the bottleneck\n\n"
        "For this many actors the coordinator works as long as each of them does, by what state "
        "clients leave (40 bytes, 400 KB) and whether there are keepers (`resources.keepers`; by "
        f"itself one for {ACTORS_A_KEEPER} actors where there are more). The last column is the "
        "same for a keeper: so many actors whose clients leave large states occupy it wholly. "
        f"Where that is below {ACTORS_A_KEEPER}, keepers are the bottleneck, and more of them "
        "help. Where an actor's share of a round is milliseconds, Ray's calls decide; such rounds "
        "want fewer actors, and `training.stack`.\n\n"
        + table([*head, *(f"state: {kind}" for kind in costs.client), "actors a keeper"], rows)
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
    costs = measured_costs()
    checks = checked(costs)
    text = document(costs, checks)
    click.echo(text)
    click.echo(json.dumps({"errors": [round(check.error, 4) for check in checks]}))
    if write:
        (ROOT / "docs" / "scaling.md").write_text(text)
    if max(check.error for check in checks) > 0.1:
        raise click.ClickException(
            "a prediction is more than 10 % off: this machine is busy, or the model is wrong"
        )


if __name__ == "__main__":
    main()
