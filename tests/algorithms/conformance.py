"""The parts of the conformance table: what a row says, and how a toy federation is run in several
places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config.schema import Config, merge, validated
from rayfl.federation.scenario import open_federation
from rayfl.fleet.base import BaseFleet, Errand, WhenDone
from rayfl.fleet.executor import Done, Task
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import ClientId, Phase
from rayfl.run.assembly import holdings_of, refuse_missing_sets, seen_by, spec_of
from rayfl.run.engine import Engine, Outcome, Record

TOY: Mapping[str, Any] = {
    "data": {
        "name": "blobs",
        "samples": 360,
        "test_samples": 120,
        "classes": 4,
        "side": 8,
        "spread": 0.2,
    },
    "clients": 6,
    "partition": "iid",
    "noise": {"name": "symmetric", "rate": {"name": "ramp", "min": 0.0, "max": 0.6}},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {
        "rounds": 6,
        "clients_per_round": 4,
        "epochs": 2,
        "batch_size": 16,
        "lr": 0.2,
        "momentum": 0.5,
    },
    "fleet": "inline",
    "checkpoint": {"min_seconds": 0},
    "tracking": {"enabled": False},
}


@dataclass(frozen=True)
class Row:
    """One method (or variant) of the table.

    method    its settings, as in a configuration
    config    what else of the toy configuration it needs (sets, partition, network, rounds ...)
    floor     test accuracy that it must pass on the toy federation, under label noise
    neutral   settings that must give the same bits as `same_as`
    refused   overrides of `method` that must be refused, each with a part of the message
    brief     what makes it quicker where it need not learn
    untried   promises that cannot be tried on it, each with a part of the reason
    """

    name: str
    method: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    floor: float = 0.8
    neutral: Mapping[str, Any] | None = None
    same_as: Mapping[str, Any] | None = None
    refused: Sequence[tuple[Mapping[str, Any], str]] = ()
    brief: Mapping[str, Any] = field(default_factory=dict)
    untried: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def toy_config(
    row: Row, output: Path, method: Mapping[str, Any] | None = None, **more: Any
) -> Config:
    """The toy configuration of a row."""
    settings = merge(
        merge(TOY, row.config),
        {"method": dict(method or row.method), "output": str(output), **more},
    )
    return validated(merge(settings, {"data_root": str(output)}))


class Reversed(InlineFleet):
    """Executes the clients of every map in the opposite order."""

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        # The order of a chain is its meaning.
        backwards = dict(tasks) if chain else {k: tasks[k] for k in sorted(tasks, reverse=True)}
        done, stored = super().execute(number, phase, backwards, shared, chain)
        return {client: done[client] for client in sorted(done)}, stored


class Late(InlineFleet):
    """Carries out an errand when somebody waits for it, and not before."""

    def start_errand(
        self,
        phase: Phase,
        each: Mapping[ClientId, Mapping[str, Any]],
        when_done: WhenDone,
        **shared: Any,
    ) -> Errand:
        return Postponed(lambda: super(Late, self).start_errand(phase, each, when_done, **shared))


class Postponed(Errand):
    """An errand that has not begun."""

    def __init__(self, begin: Callable[[], Errand]) -> None:
        self.begin: Callable[[], object] = begin

    def wait(self) -> None:
        begin, self.begin = self.begin, lambda: None
        begin()


HERE: Mapping[str, type[InlineFleet]] = {"inline": InlineFleet, "reversed": Reversed, "late": Late}


def run_toy(
    config: Config, place: str = "inline", directory: str = "checkpoints"
) -> tuple[Outcome, BaseFleet]:
    """Run in one place: `inline`, `reversed`, `late`, `ray1`, `ray3` or `killing`. Checkpoints lie
    below the output folder."""
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    holdings = holdings_of(config, dataset, seen_by(config.method, scenario))
    refuse_missing_sets(config.method, holdings)
    spec = spec_of(config, dataset, scenario, "cpu")
    fleet: BaseFleet
    if place in HERE:
        fleet = HERE[place](spec, holdings)
    else:
        from tests.algorithms.ray_places import open_fleet

        fleet = open_fleet(place, spec, holdings)
    uri = str(config.output / directory)
    engine = Engine(
        config, scenario, uri, {"run": "toy"}, dataset.shape, config.output / "features"
    )
    records: list[Record] = []
    try:
        return engine.run(fleet, records.append), fleet
    finally:
        fleet.close()


def facts(outcome: Outcome) -> tuple[str, list[Any]]:
    """What must be equal wherever a run happened: the model's hash and every deterministic
    metric."""
    return outcome.sha256, [(record["round"], record["metrics"]) for record in outcome.history]


def shortened(config: Config, rounds: int) -> Config:
    """The same run with fewer rounds."""
    training = config.training.model_copy(update={"rounds": rounds})
    return config.model_copy(update={"training": training})


def norms(outcome: Outcome) -> list[float]:
    """One number a model, for golden files."""
    return [float(np.linalg.norm(vector.astype(np.float64))) for vector in outcome.models.values()]


__all__ = ["TOY", "Row", "facts", "norms", "run_toy", "shortened", "toy_config"]
