"""Fleets without a network, with a network of one number, and with the toy's: what tests of several
methods play on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.config.schema import Config
from rayfl.federation.scenario import open_federation
from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.streams import Streams
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.models.network import Network
from rayfl.protocol import Client, Out
from rayfl.run.assembly import build_holdings, build_spec

Objective = Callable[[Tensor, Tensor], Tensor]
"""The loss of every sample, from the network's number and the client's id."""


class NoLearner:
    """Stands in where no network is needed."""

    def __init__(self) -> None:
        from rayfl.learn.learner import Passes

        self.passes = Passes()

    def begin_visit(self, rng: np.random.Generator) -> int:
        return int(rng.integers(2))


def fleet_of(sizes: list[int]) -> InlineFleet:
    """A fleet whose client k owns sizes[k] samples."""
    total = sum(sizes)
    holdings = Holdings(
        np.zeros((total, 1, 1, 1), np.uint8),
        np.zeros(total, np.int64),
        np.arange(total),
        np.cumsum([0, *sizes]),
    )
    return InlineFleet(Spec(NoLearner, Streams(0), cohort=len(sizes)), holdings)  # type: ignore[arg-type]


def leave(client: Client, *, models: dict[int, list[float]]) -> Out:
    return Out(update=np.array(models[client.id], np.float32))


class OneNumber(nn.Module):
    """A network that is one parameter, whatever it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.number.expand(len(x), 1)


def fleet_of_numbers(
    sizes: Sequence[int], cohort: int | None = None, **training: Any
) -> InlineFleet:
    """Clients that train one number; the label of every sample is the id of its client."""
    settings = LocalTraining(**{"batch_size": 1, "lr": 0.1, **training})
    total, offsets = sum(sizes), np.cumsum([0, *sizes])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    holdings = Holdings(np.zeros((total, 1, 1, 1), np.uint8), owner, np.arange(total), offsets)
    spec = Spec(
        lambda: Learner(OneNumber, settings, Normalisation()), Streams(0), cohort or len(sizes)
    )
    return InlineFleet(spec, holdings)


def minimise(monkeypatch: pytest.MonkeyPatch, objective: Objective) -> None:
    """Let clients minimise this where they would minimise cross-entropy."""

    def loss(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        values = objective(logits[:, 0], y)
        return values.sum() if reduction == "sum" else values.mean()

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", loss)


def quadratic(a: Sequence[float], b: Sequence[float]) -> Objective:
    """Client i minimises a_i / 2 (y - b_i)^2."""
    curvature, minimum = torch.tensor(a), torch.tensor(b)
    return lambda number, client: curvature[client] / 2 * (number - minimum[client]) ** 2


def played(
    method: FedAvg, fleet: InlineFleet, rounds: int, start: Sequence[float] = (0.0,)
) -> list[Global]:
    """The method's state after every round."""
    states = [method.init(fleet, fleet.put(np.array(start, np.float32)))]
    for fleet.round in range(rounds):
        states.append(method.round(states[-1], fleet, fleet.round))
    return states[1:]


def number(fleet: InlineFleet, state: Global) -> float:
    """The global model, where it is a number."""
    return float(fleet.get(state.model)[0])


@dataclass(frozen=True)
class GivenBlueprint:
    """A blueprint whose network is made already."""

    network: Network
    shape: tuple[int, int, int] = (1, 1, 1)
    classes: int = 10

    def __call__(self, i: int = 0) -> Network:
        assert i == 0, "there is only one"
        return self.network

    def width(self, encoder: str) -> int:
        raise KeyError(encoder)


def toy_fleet(config: Config) -> InlineFleet:
    """The toy federation in this process."""
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    return InlineFleet(
        build_spec(config, dataset, scenario, "cpu"), build_holdings(config, dataset, scenario)
    )
