"""How long runs will take: from rounds that were measured, or from mini-batches that are timed here
and now."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config
from rayfl.learn.training import Normalisation
from rayfl.protocol import Algorithm
from rayfl.run.assembly import LearnerRecipe, NetworkRecipe
from rayfl.run.store import Record, Shelf
from rayfl.study.checks import TrialFacts

SECONDS = 0.5
"""How long a network is timed."""

PLAIN = {"fedavg", "clean_fedavg", "oracle", "fedprox", "single_global"}
"""Methods whose visits are local training and little else; others take at least as long."""

FORWARD = 1 / 3
"""What a pass without gradients costs, as a share of a training step."""

START = 8.0
"""Seconds before the first round and after the last: data, actors, figures, tracking."""


@dataclass(frozen=True)
class DurationEstimate:
    """Seconds of a run; a lower bound where its method does more than was timed."""

    seconds: float
    at_least: bool = False


@dataclass
class DurationEstimator:
    """Estimates; every distinct network is timed once."""

    shelf: Shelf
    timed: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, float] | None = None

    def of(self, config: Config, facts: TrialFacts) -> DurationEstimate:
        measured = self.measured(config)
        if measured is not None:
            return DurationEstimate(START + measured * config.training.rounds)
        name = str(config.resolved()["method"]["name"])
        weighted = config.resolved()["method"].get("weighting", {}).get("name") == "dawid_skene"
        return DurationEstimate(START + self.counted(config, facts), name not in PLAIN or weighted)

    def measured(self, config: Config) -> float | None:
        """Seconds of a round of the newest finished run that does the same work in each."""
        # Reading every run's configuration takes a while, and a first study has no runs.
        if self.rounds is None:
            self.rounds = {
                _describe_work(record.config): seconds
                for record in self.shelf
                if (seconds := _average_round(record))
            }
        return self.rounds.get(_describe_work(config.resolved()))

    def counted(self, config: Config, facts: TrialFacts) -> float:
        """Seconds of all rounds by the samples that pass through the network."""
        training, a_sample = config.training, self.seconds_a_sample(config, facts)
        visit = facts.mean_samples * training.epochs
        if training.steps is not None:
            visit = training.steps * training.batch_size
        at_clients = visit * training.cohort(config.clients) if config.method.client_labels else 0.0
        tested = facts.tested * FORWARD / config.evaluation.every
        passes = getattr(
            config.method, "server_epochs", getattr(config.method, "epochs", training.epochs)
        )
        at_server = facts.labelled * passes if "labelled" in config.method.needs else 0
        return (
            training.rounds * a_sample * ((at_clients + tested) / count_actors(config) + at_server)
        )

    def seconds_a_sample(self, config: Config, facts: TrialFacts) -> float:
        """Forward, backward and step for one sample, on one actor of this machine's CPU."""
        local = config.training.model_dump(
            mode="json", exclude={"rounds", "fraction", "clients_per_round", "epochs"}
        )
        # A method counts only where it makes a network of its own; otherwise one timing serves them
        # all.
        own = type(config.method).network is not Algorithm.network
        network = [config.resolved()[key] for key in (("model", "method") if own else ("model",))]
        key = json.dumps(
            [network, facts.shape, facts.classes, local, _count_threads(config)], sort_keys=True
        )
        if key not in self.timed:
            self.timed[key] = _time_training(config, facts)
        return self.timed[key]


@dataclass
class TimingClient:
    """A client of one mini-batch of noise, to time the training loop on."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    learner: Any
    rng: np.random.Generator

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.y


def _time_training(config: Config, facts: TrialFacts) -> float:
    """Seconds a sample of local training, over as many mini-batches as fit into half a second, one
    at least."""
    import torch

    from rayfl.learn.fit import fit

    before, rng = torch.get_num_threads(), np.random.default_rng(0)
    torch.set_num_threads(_count_threads(config))
    try:
        learner = LearnerRecipe(
            NetworkRecipe(config, facts.shape, facts.classes), Normalisation(), "cpu"
        )()
        size = config.training.batch_size
        x = rng.integers(0, 256, (size, *facts.shape), dtype=np.uint8)
        trial = TimingClient(x, rng.integers(0, facts.classes, size), learner, rng)
        one = config.training.model_copy(update={"steps": 1, "epochs": 1})
        weights = learner.resident().dump()
        # The first step pays for memory and kernels that later ones find ready.
        fit(trial, weights, training=one)
        steps: list[float] = []
        started = time.perf_counter()
        while not steps or time.perf_counter() - started < SECONDS:
            before_step = time.perf_counter()
            fit(trial, weights, training=one)
            steps.append(time.perf_counter() - before_step)
        # The median: others may be at work on this machine for a moment.
        return float(np.median(steps)) / size
    finally:
        torch.set_num_threads(before)


def _count_threads(config: Config) -> int:
    return max(int(config.resources.cpus_per_client), 1)


def count_actors(config: Config) -> int:
    """How many actors share the work, on this machine if the configuration leaves it open."""
    if config.fleet == "inline":
        return 1
    wanted = config.resources.actors
    room = max(int((os.cpu_count() or 1) / config.resources.cpus_per_client), 1)
    return min(room, config.training.cohort(config.clients)) if wanted == "auto" else wanted


def _describe_work(resolved: Mapping[str, Any]) -> str:
    """What a round's work depends on."""
    keys = (
        "data",
        "clients",
        "split",
        "partition",
        "model",
        "method",
        "evaluation",
        "fleet",
        "device",
        "resources",
    )
    training = {key: value for key, value in resolved["training"].items() if key != "rounds"}
    return json.dumps([*(resolved.get(key) for key in keys), training], sort_keys=True)


def _average_round(record: Record) -> float:
    """Mean seconds of a run's rounds; 0 where it has none."""
    clocks = [entry["clock"] for entry in record.history]
    return (
        float(np.mean([clock["time/train_s"] + clock["time/evaluate_s"] for clock in clocks]))
        if clocks
        else 0.0
    )
