"""What the tests of fedcr share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from rayfl.algorithms.fedcr import FedCR, deal, train_at_client, train_at_server
from rayfl.fleet.executor import Task
from rayfl.fleet.streams import Streams
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.models.mlp import MLP
from rayfl.protocol import SERVER, Client, Out, Shard, Vector
from tests.algorithms.toys import GivenBlueprint
from tests.phases import run_phase


def method_of(**more: Any) -> FedCR:
    return FedCR(**{"projector_hidden": 6, "projector_out": 5, **more})


def learner_of(method: FedCR, **training: Any) -> Learner:
    def build(i: int = 0) -> nn.Module:
        torch.manual_seed(0)
        return method.network(GivenBlueprint(MLP(hidden=(7,)).build((4, 4, 1), 3)))

    defaults = {"optimizer": "adam", "lr": 0.01, "batch_size": 8, "drop_last": True}
    return Learner(build, LocalTraining(**{**defaults, **training}), Normalisation())


def images(samples: int, seed: int = 0) -> Shard:
    rng = np.random.default_rng(seed)
    return Shard(rng.integers(0, 256, (samples, 4, 4, 1), np.uint8), rng.integers(0, 3, samples))


def client_of(
    learner: Learner, samples: int = 20, state: Mapping[str, Any] | None = None
) -> Client:
    return Client(3, images(samples).x, None, state or {}, Streams(0)(Task(3, 0, {}, {})), learner)


def dealt(method: FedCR, learner: Learner) -> dict[str, Vector]:
    """theta, sigma and xi as a run begins."""
    return parts(deal(client_of(learner), w=learner.first_weights()))


def parts(out: Out) -> dict[str, Vector]:
    assert isinstance(out.update, Mapping)
    return dict(out.update)


def served(
    method: FedCR, learner: Learner, start: Mapping[str, Vector], samples: int = 20, epochs: int = 1
) -> Out:
    server = Client(SERVER, images(0).x, None, {}, Streams(0)(Task(SERVER, 0, {}, {})), learner)
    given: dict[str, Any] = {key: start[key] for key in ("theta", "sigma", "xi")}
    given |= {"data": images(samples), "memory": start.get("optimiser")}
    return run_phase(train_at_server, server, **given, method=method, epochs=epochs)


def trained(method: FedCR, learner: Learner, start: Mapping[str, Vector], **inputs: Any) -> Out:
    return run_phase(
        train_at_client, client_of(learner), theta=start["theta"], method=method, **inputs
    )
