"""What the tests of fedrn share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.algorithms.fedrn import (
    FedRN,
    train_on_clean,
    tune_head,
)
from rayfl.estimate.mixture import LossMixture
from rayfl.learn.fit import compute_losses, compute_outputs
from rayfl.learn.learner import Learner
from rayfl.learn.resident import Resident
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.models.mlp import MLP
from rayfl.models.network import Architecture, Network, build_network
from rayfl.protocol import Client, Out, Vector
from tests.phases import drive, run_phase


def learner_of(
    spec: Architecture, side: int = 4, channels: int = 1, classes: int = 4, **training: Any
) -> Learner:
    def build() -> Network:
        return build_network(spec, (side, side, channels), classes, seed=0)

    return Learner(
        build, LocalTraining(**{"lr": 0.1, "batch_size": 8, **training}), Normalisation(), "cpu", 16
    )


def weights(learner: Learner, seed: int) -> Vector:
    """The fresh network, moved a little."""
    start = Resident(learner.build(), learner.device).dump()
    return (start + np.random.default_rng(seed).normal(0, 0.1, start.shape)).astype(np.float32)


def client_of(
    learner: Learner, samples: int = 40, state: dict[str, Any] | None = None, side: int = 4
) -> Client:
    rng = np.random.default_rng(7)
    channels = 3 if side > 4 else 1
    x = rng.integers(0, 256, (samples, side, side, channels), dtype=np.uint8)
    # Every visit of a test starts from the same stream.
    return Client(3, x, rng.integers(0, 4, samples), state or {}, np.random.default_rng(1), learner)


def toy_client(samples: int = 40, own: int | None = 1, **training: Any) -> tuple[Client, Vector]:
    """A client of a small perceptron with its last local model, and a global model."""
    learner = learner_of(MLP(hidden=(8,)), **training)
    state = {} if own is None else {"w": weights(learner, own)}
    return client_of(learner, samples, state), weights(learner, 0)


def visit(client: Client, w: Vector, peers: Sequence[Vector] = (), **settings: Any) -> Out:
    trust = settings.pop("trust", [1.0] * (len(peers) + 1))
    method = FedRN(**{"fine_tune": False, **settings})
    return run_phase(train_on_clean, client, w=w, peers=peers, trust=trust, method=method)


def tuned(client: Client, model: Vector, samples: NDArray[np.bool_]) -> Vector:
    """The model after its head was fitted to these samples."""
    return drive(client, tune_head(client, model, samples))


def model_of(out: Out) -> Vector:
    assert isinstance(out.update, np.ndarray)
    return out.update


def filtered(client: Client, model: Vector) -> NDArray[np.bool_]:
    """What one model's mixture keeps."""
    losses = compute_losses(compute_outputs(client.learner, model, client.x), client.y)
    return LossMixture().fit(losses).clean > 0.5


# -- who is a neighbour ----------------------------------------------------------------------------
