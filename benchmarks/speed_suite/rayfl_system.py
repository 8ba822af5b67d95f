"""rayfl as a person runs it, from its configuration. Variants are settings on top of the
workload's.

What the other systems do not do either is switched off, so that all do the same: checkpoints and
MLflow. The variant `tracked` has both, as they are by default."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from speed_suite.federation import Clock, answer, arguments, moved

Settings = dict[str, Any]

PLACES: Settings = {"resources": {"actors": 2, "cpus_per_client": 1}}
QUIET: Settings = {"tracking": {"enabled": False}, "checkpoint": {"every": 0}}

VARIANTS: Mapping[str, tuple[Settings, ...]] = {
    "": (PLACES, QUIET),
    "bf16": (PLACES, QUIET, {"training": {"precision": "bf16"}}),
    "stacked": (PLACES, QUIET, {"training": {"stack": "auto"}}),
    "channels-first": (PLACES, QUIET, {"training": {"layout": "channels_first"}}),
    "reached": (PLACES, QUIET, {"training": {"kernels": "reached"}}),
    "inline": (QUIET, {"fleet": "inline", "resources": {"cpus_per_client": 2}}),
    "tracked": (PLACES,),
    "watched": (PLACES, QUIET, {"method": {"name": "speed_suite.watched:WatchedFedAvg"}}),
    "fedavg": (PLACES, QUIET, {"method": {"name": "speed_suite.watched:PacedFedAvg"}}),
    "fedds": (PLACES, QUIET, {"method": {"name": "fedds"}}),
    "fedrn": (PLACES, QUIET, {"method": {"name": "fedrn", "k": 2, "warmup": 1}}),
}


OPTIONAL = {"bf16", "stacked", "channels-first", "reached"}


class Watch:
    """rayfl's progress, with the time at which the driver hears of each round."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def round(self, record: Mapping[str, Any]) -> None:
        self.clock.tick()
        if len(self.clock.ends) == 1:
            self.clock.begun = self.clock.ends[0] - took(record, "train_s")

    def note(self, text: str) -> None:
        """Nothing to time."""

    def close(self) -> None:
        """Nothing to close."""


def took(record: Mapping[str, Any], reading: str) -> float:
    """A reading of a round's clock; 0 where it has none."""
    return float(record["clock"].get(f"time/{reading}", 0.0))


def split(
    history: list[Mapping[str, Any]],
    warmup: int,
    seconds: float,
    actors: int,
) -> dict[str, float]:
    """Where an average round went, in seconds: every reading of the records, and what they leave
    over.

    `train` is the work of the phases divided by the actors; `idle` is what the actors waited while
    the method's round lasted; `between` is whatever lies between two rounds."""
    kept = history[warmup:]
    names = {name.removeprefix("time/") for record in kept for name in record["clock"]}
    # The last round is the only one that is evaluated, and its evaluation is no part of a round
    # here.
    names -= {"evaluate_s", "elapsed_s"}
    mean = {}
    for name in sorted(names):
        mean[name] = float(np.mean([took(record, name) for record in kept]))
    train = mean.get("busy_s", 0.0) / actors
    round_s = mean.get("train_s", 0.0)
    return {
        **mean,
        "train": train,
        "idle": max(round_s - train, 0.0),
        "between": max(seconds - round_s, 0.0),
    }


def merged(below: Settings, above: Mapping[str, Any]) -> Settings:
    """`above` onto `below`, key by key; a component that is named replaces the one below."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        nested = isinstance(old, dict) and isinstance(value, Mapping) and "name" not in value
        both[key] = merged(old, value) if nested and isinstance(old, dict) else value
    return both


def settings_of(
    folder: Path,
    variant: str,
    rounds: int,
    output: str,
) -> Settings:
    """The plain values of a variant's configuration."""
    settings: Settings = json.loads((folder / "config.json").read_text())
    fixed = {
        "training": {"rounds": rounds},
        "evaluation": {"every": max(rounds, 1)},
        "output": output,
    }
    for part in (fixed, *VARIANTS[variant]):
        settings = merged(settings, part)
    return settings


def configured(settings: Settings, variant: str) -> Any:
    """The validated configuration, or None with the reason said where this rayfl does not know the
    variant."""
    from rayfl.config.schema import validate_config
    from rayfl.errors import ConfigError

    try:
        return validate_config(settings)
    except ConfigError as refused:
        if variant not in OPTIONAL:
            raise
        answer(skipped=f"this rayfl refuses it ({' '.join(str(refused).split())})")
        return None


def main() -> None:
    told = arguments()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    from rayfl.fleet.on_ray.connection import connect_ahead

    with tempfile.TemporaryDirectory(prefix="rayfl_bench") as output:
        settings = settings_of(told.folder, told.variant, told.rounds, output)
        # As `rayfl run` does.
        with connect_ahead(settings, None):
            measure(told, settings)


def measure(told: argparse.Namespace, settings: Settings) -> None:
    """One run, followed with a clock."""
    from rayfl.fleet.host import spare_imports

    # As `rayfl run` does.
    with spare_imports():
        from rayfl.run.experiment import run

        config = configured(settings, told.variant)
    if config is not None:
        clock = Clock(told.started, told.warmup)
        result = run(config, progress=Watch(clock))
        finished = time.time()
        # Where rounds end, not where this process, which is told of several short ones together,
        # hears of it; the last is told after the test, which the other systems do not time either.
        clock.ends = [clock.begun + took(record, "elapsed_s") for record in result.history]
        report(told.warmup, clock, result, finished)


def report(
    warmup: int,
    clock: Clock,
    result: Any,
    finished: float,
) -> None:
    """The answer: what all systems say, and what only rayfl knows."""
    facts = clock.facts()
    metrics = result.metrics
    actors = 1 if result.config.fleet == "inline" else 2
    answer(
        **facts,
        **apart(result.history[warmup:]),
        accuracy=metrics["test/accuracy"],
        loss=metrics["test/loss"],
        moved=distance(result),
        split=split(result.history, warmup, facts["seconds"], actors),
        ended=finished - clock.started,
        rounds_log=per_round(result.history),
        versions=library_versions(),
    )


def apart(history: list[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds a round that are not local training, where the method noted them."""
    noted = [record["metrics"].get("pace/apart_s") for record in history]
    return {} if None in noted else {"apart": float(np.mean(noted))}


def distance(result: Any) -> float:
    """How far the trainable weights have come from the initial ones."""
    import torch

    from rayfl.learn.resident import Resident

    fresh = Resident(result.recipe(), torch.device("cpu"), result.config.training.layout)
    count = fresh.n_parameters
    return moved([result.models[None][:count]], [fresh.dump()[:count]])


def per_round(history: list[Mapping[str, Any]]) -> list[dict[str, float]]:
    """What a method's cost model, and the coordinator's memory, are computed from."""
    wanted = ("cost/", "reliability/em", "memory/", "pace/")
    rounds = []
    for record in history:
        metrics = record["metrics"].items()
        kept = {name: value for name, value in metrics if name.startswith(wanted)}
        rounds.append({**kept, **record["clock"]})
    return rounds


def library_versions() -> dict[str, str]:
    import ray
    import torch

    import rayfl

    return {
        "torch": str(torch.__version__),
        "ray": ray.__version__,
        "rayfl": rayfl.__version__,
    }


if __name__ == "__main__":
    main()
