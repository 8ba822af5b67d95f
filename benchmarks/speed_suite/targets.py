"""What rayfl must reach, as ratios within one race."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Races = Mapping[str, Mapping[str, Any]]
Reading = Callable[[Races], float | None]
STACKED = "rayfl-stacked"


@dataclass(frozen=True)
class Target:
    """One line of the table: what is read from the races, the aim, and whether more is better."""

    title: str
    read: Reading
    aim: float
    unit: str = "x"
    more: bool = True

    def met(self, value: float) -> bool:
        return value >= self.aim if self.more else value <= self.aim


def system(
    races: Races,
    workload: str,
    name: str,
) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = races.get(workload, {}).get("systems", {}).get(name)
    return found


def faster(workload: str, other: str, ours: str = "rayfl") -> Reading:
    """How many times as fast as another system."""

    def read(races: Races) -> float | None:
        mine = system(races, workload, ours)
        theirs = system(races, workload, other)
        if mine is None or theirs is None:
            return None
        return float(theirs["seconds"] / mine["seconds"])

    return read


def faster_training(workload: str) -> Reading:
    """How many times as fast stacked local training is as that of bare2, without what both tell
    apart."""

    def read(races: Races) -> float | None:
        mine = system(races, workload, STACKED)
        theirs = system(races, workload, "bare2")
        if mine is None or theirs is None:
            return None
        return training_seconds(theirs) / training_seconds(mine)

    return read


def faster_visits(workload: str) -> Reading:
    """How many times as fast the clients' visits alone are, stacked, as those of bare2: a process's
    work on its share of the cohort, without what lies between visits and the next round."""

    def read(races: Races) -> float | None:
        mine = system(races, workload, STACKED)
        theirs = system(races, workload, "bare2")
        # A race of before has no such figure.
        if mine is None or theirs is None or "trained" not in theirs:
            return None
        return float(theirs["trained"] / mine["split"]["train"])

    return read


def training_seconds(found: Mapping[str, Any]) -> float:
    """Seconds a round without those that are told apart: FedDS's votes and EM."""
    return float(found["seconds"] - found.get("apart", 0.0))


def smaller(workload: str, other: str) -> Reading:
    """Peak memory over another system's."""

    def read(races: Races) -> float | None:
        mine = system(races, workload, "rayfl")
        theirs = system(races, workload, other)
        if mine is None or theirs is None:
            return None
        return float(mine["peak_mb"] / theirs["peak_mb"])

    return read


def not_training(workload: str) -> Reading:
    """Per cent of a round in which the actors do not train."""

    def read(races: Races) -> float | None:
        mine = system(races, workload, "rayfl")
        if mine is None:
            return None
        # All three from the same run: the median over runs may be a shorter round than the one that
        # was taken apart.
        split = mine["split"]
        train = float(split["train"])
        others = float(split["idle"] + split["between"])
        return 100 * others / (train + others)

    return read


def grown(workload: str, late: int = 50, early: int = 5) -> Reading:
    """The coordinator's memory after a late round over that after an early one."""

    def read(races: Races) -> float | None:
        mine = system(races, workload, "rayfl-watched")
        if mine is None or len(mine["rounds_log"]) < late:
            return None
        held = [record["memory/coordinator_mb"] for record in mine["rounds_log"]]
        return float(held[late - 1] / held[early - 1])

    return read


def over_model(method: str) -> Reading:
    """A method's round over what its cost model predicts."""

    def read(races: Races) -> float | None:
        found = races.get("w6", {}).get("overheads", {}).get(method)
        return None if found is None else float(found["ratio"])

    return read


def farthest_over_model(races: Races) -> float | None:
    """The round that is longest beside what its own cost model predicts, of every method's."""
    rows = races.get("w6-methods", {}).get("rows", {})
    return max((float(row["ratio"]) for row in rows.values()), default=None)


def started(workload: str) -> Reading:
    """Seconds from the command to the first round."""

    def read(races: Races) -> float | None:
        mine = system(races, workload, "rayfl")
        return None if mine is None else float(mine["startup"])

    return read


TARGETS = (
    *(Target(f"{w.upper()} in fp32 against bare2", faster(w, "bare2"), 1.2) for w in ("w1", "w2")),
    *(
        Target(f"{w.upper()} in bf16 against bare2", faster(w, "bare2", "rayfl-bf16"), 2.0)
        for w in ("w1", "w2")
    ),
    *(
        Target(f"{w.upper()}, stacked, against bare2", faster(w, "bare2", STACKED), 3.0)
        for w in ("w3", "w4")
    ),
    Target("W3 with FedProx, stacked, against its bare2", faster_training("w3-fedprox"), 2.5),
    Target("W3 with SCAFFOLD, stacked, against its bare2", faster_training("w3-scaffold"), 2.5),
    # Its whole round also moves control variates.
    Target(
        "W3 with SCAFFOLD, stacked, local training against bare2's",
        faster_visits("w3-scaffold"),
        2.5,
    ),
    Target("W3 with loss gce, stacked, against its bare2", faster_training("w3-gce"), 2.5),
    Target(
        "W3 with FedDS, stacked, against its bare2, votes and EM apart",
        faster_training("w3-fedds"),
        2.5,
    ),
    Target("W3, stacked, against Flower", faster("w3", "flower", STACKED), 100.0),
    Target("W4, stacked, against Flower", faster("w4", "flower", STACKED), 300.0),
    *(
        Target(f"{w.upper()}, stacked, against pfl", faster(w, "pfl", STACKED), 5.0)
        for w in ("w3", "w4")
    ),
    Target(
        "W5, reached kernels, against one Ray call per client",
        faster("w5", "naive", "rayfl-reached"),
        2.0,
    ),
    Target("W6: FedDS over its cost model", over_model("fedds"), 1.15, more=False),
    Target("W6: FedRN over its cost model", over_model("fedrn"), 1.15, more=False),
    Target(
        "W6: of all methods, the one farthest over its cost model",
        farthest_over_model,
        1.15,
        more=False,
    ),
    Target("W1: share of a round that is not training", not_training("w1"), 5.0, "%", more=False),
    Target("W4: coordinator's memory, round 50 over round 5", grown("w4"), 1.05, more=False),
    Target("W1: peak memory against Flower", smaller("w1", "flower"), 0.8, more=False),
    Target("W1: from the command to the first round", started("w1"), 6.0, "s", more=False),
)
