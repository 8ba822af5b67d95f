"""A fleet whose clients leave given models, which have given scores: what tests of methods play on
that score models on the server's clean images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np
import pytest

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.server_scoring import ModelScore
from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.streams import Streams
from rayfl.protocol import Client, ClientId, DataRef, Out, Replies, Shard
from tests.algorithms.toys import NoLearner

Accuracies = Sequence[Mapping[ClientId, float]]
"""Of each round, the accuracy of every client's model."""


def leave_own_number(client: Client, **inputs: object) -> Out:
    """A model that is one number: the client's id."""
    return Out({"LL": 0.0}, update=np.array([client.id], np.float32))


def script(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    accuracies: Accuracies,
    sizes: Sequence[int],
    cohort: int | None = None,
    phase: str = "train",
) -> InlineFleet:
    """A fleet of clients of these sizes, on which the method of a module finds these accuracies."""
    total = sum(sizes)
    image = Shard(np.zeros((1, 1, 1, 1), np.uint8), None)
    holdings = Holdings(
        np.zeros((total, 1, 1, 1), np.uint8),
        np.zeros(total, np.int64),
        np.arange(total),
        np.cumsum([0, *sizes]),
        {"public": image, "validation": image},
    )
    spec = Spec(NoLearner, Streams(0), cohort or len(sizes))  # type: ignore[arg-type]
    fleet = InlineFleet(spec, holdings)

    def give_scores(got: Replies, held: DataRef) -> dict[ClientId, ModelScore]:
        return {k: ModelScore(accuracies[fleet.round][k], -accuracies[fleet.round][k]) for k in got}

    monkeypatch.setattr(module, phase, leave_own_number)
    monkeypatch.setattr(module, "score_updates", give_scores)
    return fleet


def play(method: FedAvg, fleet: InlineFleet, rounds: int) -> list[Global]:
    """The state after every round, from a first model of -1."""
    states = [method.init(fleet, fleet.put(np.array([-1.0], np.float32)))]
    for fleet.round in range(rounds):
        states.append(method.round(states[-1], fleet, fleet.round))
    return states[1:]


def read_model(fleet: InlineFleet, state: Global) -> float:
    """The global model, which is one number."""
    return float(fleet.get(state.model)[0])
