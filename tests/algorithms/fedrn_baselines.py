"""Arrays on which the functions of FedRN's released code were run, and what else the tests of the
methods that it compares itself with share.

The figures beside each test are those that ElvinKim/FedRN gave at commit 0b34b9a (and, for Robust
FL, at daf1183 of its branch experiment_RFL) on these arrays, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.learn.batches import Batch
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.models.mlp import MLP
from rayfl.models.network import Network, build_network
from rayfl.protocol import Client
from rayfl.run.engine import Outcome

FIRST = [
    [1.15, 3.672, 1.123, -1.751],
    [-0.224, -0.662, -1.644, -0.367],
    [0.353, -0.549, 1.158, 2.088],
    [1.225, 0.025, -3.858, 2.046],
    [-1.472, -1.207, 1.527, -0.56],
    [-1.513, 0.213, -0.051, 0.395],
    [4.088, 1.785, 0.751, -1.449],
]
SECOND = [
    [-0.546, 1.663, -2.459, -2.903],
    [-0.727, -1.805, -0.077, -0.31],
    [2.021, -1.076, 0.289, 3.094],
    [0.125, -0.661, -5.178, 1.215],
    [1.899, -2.306, 0.846, -0.029],
    [-2.223, 0.085, -0.41, -1.847],
    [-0.391, -1.895, -0.359, 0.417],
]
LABELS = [0, 1, 2, 3, 0, 1, 2]
ROWS = [
    [0.372, 0.305, 0.131, 0.193],
    [0.068, 0.128, 0.065, 0.739],
    [0.195, 0.494, 0.185, 0.126],
    [0.207, 0.49, 0.254, 0.049],
    [0.344, 0.118, 0.315, 0.223],
    [0.075, 0.558, 0.032, 0.335],
    [0.054, 0.29, 0.462, 0.194],
]


class Answers(nn.Module):
    """A network that gives these logits, whatever it sees."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[: len(x)]


def learner_of(classes: int = 4, **training: Any) -> Learner:
    """A small perceptron on images of 4 x 4."""

    def build(i: int = 0) -> Network:
        return build_network(MLP(hidden=(8,)), (4, 4, 1), classes, seed=i)

    defaults = {"lr": 0.1, "batch_size": 8, "epochs": 2}
    return Learner(build, LocalTraining(**{**defaults, **training}), Normalisation())


def client_of(
    learner: Learner, samples: int = 20, state: dict[str, Any] | None = None, classes: int = 4
) -> Client:
    """The same client, with the same stream, whenever it is asked for."""
    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, (samples, 4, 4, 1), dtype=np.uint8)
    y = rng.integers(0, classes, samples)
    return Client(3, x, y, state or {}, np.random.default_rng(1), learner, classes=classes)


def batch_of(learner: Learner, labels: list[int], epoch: int = 0) -> Batch:
    """A batch of the first samples of a client, with these labels."""
    n = len(labels)
    pixels = torch.zeros(n, 1, 4, 4, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor(labels)
    return Batch(pixels.float(), pixels, np.arange(n), generator, y, learner, epoch=epoch)


def measure_costs(outcome: Outcome) -> tuple[float, float, float, float]:
    """What a participant of the toy's last round cost: models down and up, passes forward and
    backward over its own data, in the units of FedRN's Table 8."""
    found = outcome.history[-1]["metrics"]
    participants, samples = 4, 60
    model = outcome.models[None].nbytes / 1e6
    down, up = (found[f"cost/{way}_mb"] / model / participants for way in ("down", "up"))
    passes = [found[f"cost/{way}"] / samples / participants for way in ("forward", "backward")]
    return down, up, passes[0], passes[1]
