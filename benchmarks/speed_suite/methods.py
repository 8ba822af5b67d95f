"""What a method costs over its own cost model (workload w6), from the records of three runs.

A method computes so many sample passes; FedAvg's rounds, in the same race, say what a pass takes:

    f = actors * seconds of a forward pass of the cohort / its samples
    b = (actors * FedAvg's round - f * its forward passes) / its backward passes  (with all else)
    predicted = (f * forward + b * backward) / actors + what the server computes by itself

The server of FedDS computes one EM, which is timed on votes of the same shape.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ACTORS = 2
Record = Mapping[str, float]


def overheads(systems: Mapping[str, Mapping[str, Any]], em: float) -> dict[str, dict[str, float]]:
    """For each method: measured and predicted seconds of a round, and their ratio."""
    plain = rounds_of(systems["fedavg"])
    forward, backward = pass_seconds(plain)
    found = {
        "fedavg": {
            "measured": mean(plain, "pace/train_s"),
            "forward": forward,
            "backward": backward,
            "em": em,
        }
    }
    for name in ("fedds", "fedrn"):
        records = rounds_of(systems[name])
        measured = mean(records, "time/train_s")
        f, b = (
            mean(records, f"cost/{way}") + mean(records, f"cost/server_{way}")
            for way in ("forward", "backward")
        )
        predicted = (forward * f + backward * b) / ACTORS + (em if name == "fedds" else 0.0)
        found[name] = {"measured": measured, "predicted": predicted, "ratio": measured / predicted}
    return found


def rounds_of(system: Mapping[str, Any]) -> list[Record]:
    """The records after the warm-up."""
    records: list[Record] = system["rounds_log"][system["warmup"] :]
    return records


def mean(records: Sequence[Record], name: str) -> float:
    return float(np.mean([record.get(name, 0.0) for record in records]))


def pass_seconds(plain: Sequence[Record]) -> tuple[float, float]:
    """Actor-seconds of a forward and of a backward pass of one sample."""
    samples = mean(plain, "pace/samples")
    forward = ACTORS * mean(plain, "pace/forward_s") / samples
    # The passes that were only made for the clock are among those counted.
    trained = mean(plain, "cost/forward") - samples
    backward = (ACTORS * mean(plain, "pace/train_s") - forward * trained) / mean(
        plain, "cost/backward"
    )
    return forward, backward


def em_seconds(
    public: int,
    annotators: int,
    classes: int,
    iterations: int,
) -> float:
    """How long Dawid-Skene takes on votes of this shape, of annotators that are right in four of
    five cases."""
    from rayfl.estimate.dawid_skene import DawidSkene

    rng = np.random.default_rng(0)
    truth = rng.integers(classes, size=(public, 1))
    votes = np.where(
        rng.random((public, annotators)) < 0.8,
        truth,
        rng.integers(classes, size=(public, annotators)),
    )
    model = DawidSkene(classes=classes, iterations=max(iterations, 1), tol=0.0)
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        model.fit(votes.astype(np.int64))
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))
