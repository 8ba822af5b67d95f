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
from rayfl.learn.local_fit import Fit
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
    """The runs that are over."""
    timed: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, float] | None = None

    def of(self, config: Config, facts: TrialFacts) -> DurationEstimate:
        """How long a run will take, on what its trial found."""
        measured = self.find_measured(config)
        if measured is not None:
            return DurationEstimate(START + measured * config.training.rounds)
        method = config.resolved()["method"]
        weighted = method.get("weighting", {}).get("name") == "dawid_skene"
        seconds = START + self.count_seconds(config, facts)
        return DurationEstimate(seconds, at_least=weighted or method["name"] not in PLAIN)

    def find_measured(self, config: Config) -> float | None:
        """Seconds of a round of the newest finished run that does the same work in each."""
        # Reading every run's configuration takes a while, and a first study has no runs.
        if self.rounds is None:
            self.rounds = {}
            for record in self.shelf:
                seconds = _average_round(record)
                if seconds:
                    self.rounds[_describe_work(record.config)] = seconds
        return self.rounds.get(_describe_work(config.resolved()))

    def count_seconds(self, config: Config, facts: TrialFacts) -> float:
        """Seconds of all rounds by the samples that pass through the network."""
        training = config.training
        visit = facts.mean_samples * training.epochs
        if training.steps is not None:
            visit = training.steps * training.batch_size
        cohort = training.cohort(config.clients) if config.method.client_labels else 0
        tested = facts.tested * FORWARD / config.evaluation.every
        on_actors = (visit * cohort + tested) / count_actors(config)
        at_server = facts.labelled * _count_server_passes(config)
        samples = training.rounds * (on_actors + at_server)
        return samples * self._time_sample(config, facts)

    def _time_sample(self, config: Config, facts: TrialFacts) -> float:
        """Forward, backward and step for one sample, on one actor of this machine's CPU."""
        key = _describe_network(config, facts)
        if key not in self.timed:
            self.timed[key] = _time_training(config, facts)
        return self.timed[key]


def _count_server_passes(config: Config) -> int:
    """How often a round passes over what the server trains on."""
    method = config.method
    if "labelled" not in method.needs:
        return 0
    epochs = getattr(method, "epochs", config.training.epochs)
    return int(getattr(method, "server_epochs", epochs))


def _describe_network(config: Config, facts: TrialFacts) -> str:
    """What the time of a sample depends on."""
    rounds = {"rounds", "fraction", "clients_per_round", "epochs"}
    local = config.training.model_dump(mode="json", exclude=rounds)
    resolved = config.resolved()
    network = [resolved["model"]]
    # A method counts only where it makes a network of its own; otherwise one timing serves them
    # all.
    if type(config.method).network is not Algorithm.network:
        network.append(resolved["method"])
    key = [network, facts.shape, facts.classes, local, config.threads]
    return json.dumps(key, sort_keys=True)


# -- timing ----------------------------------------------------------------------------------------


@dataclass
class TimingClient:
    """A client of one mini-batch of noise, to time the training loop on."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    learner: Any
    rng: np.random.Generator
    id: int = 0

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels to train on."""
        return self.y


def _time_training(config: Config, facts: TrialFacts) -> float:
    """Seconds a sample of local training, over as many mini-batches as fit into half a second, one
    at least."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        client = _make_client(config, facts)
        # The median: others may be at work on this machine for a moment.
        return float(np.median(_time_steps(client))) / len(client.x)
    finally:
        torch.set_num_threads(before)


def _make_client(config: Config, facts: TrialFacts) -> TimingClient:
    network = NetworkRecipe(config, facts.shape, facts.classes)
    learner = LearnerRecipe(network, Normalisation(), "cpu")()
    rng = np.random.default_rng(0)
    size = config.training.batch_size
    x = rng.integers(
        0,
        256,
        (size, *facts.shape),
        dtype=np.uint8,
    )
    return TimingClient(
        x,
        rng.integers(0, facts.classes, size),
        learner,
        rng,
    )


def _time_steps(client: TimingClient) -> list[float]:
    """Seconds of single training steps."""
    from rayfl.learn.fit import carry_out

    wish = Fit(client.learner.first_weights(), settings={"steps": 1, "epochs": 1})
    # The first step pays for memory and kernels that later ones find ready.
    carry_out(client, wish)
    steps: list[float] = []
    begin = time.perf_counter()
    while not steps or time.perf_counter() - begin < SECONDS:
        before = time.perf_counter()
        carry_out(client, wish)
        steps.append(time.perf_counter() - before)
    return steps


# -- what a run has and does -----------------------------------------------------------------------


def count_actors(config: Config) -> int:
    """How many actors share the work, on this machine if the configuration leaves it open."""
    if config.fleet == "inline":
        return 1
    wanted = config.resources.actors
    if wanted != "auto":
        return wanted
    cores = os.cpu_count() or 1
    room = max(int(cores / config.resources.cpus_per_client), 1)
    return min(room, config.training.cohort(config.clients))


WORK = (
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
"""Settings that a round's work depends on, beside those of training."""


def _describe_work(resolved: Mapping[str, Any]) -> str:
    """What a round's work depends on."""
    training = {key: value for key, value in resolved["training"].items() if key != "rounds"}
    settings = [resolved.get(key) for key in WORK]
    return json.dumps([*settings, training], sort_keys=True)


def _average_round(record: Record) -> float:
    """Mean seconds of a run's rounds; 0 where it has none."""
    clocks = [entry["clock"] for entry in record.history]
    if not clocks:
        return 0.0
    return float(np.mean([clock["time/train_s"] + clock["time/evaluate_s"] for clock in clocks]))
