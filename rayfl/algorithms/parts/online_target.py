"""Online and target network of methods in the manner of BYOL, as parts of one flat vector.

J.-B. Grill et al.: "Bootstrap your own latent", NeurIPS 2020; here with a classifier on the
projection, as in FedCR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.learn.learner import Learner
from rayfl.learn.resident import Resident
from rayfl.models.heads import build_projection_mlp
from rayfl.models.network import Network
from rayfl.protocol import Vector


class Online(nn.Module):
    """B, G, Q and C in one; its answer is C(G(B(x))), so that it is tested like any classifier."""

    def __init__(self, network: Network, hidden: int, outputs: int) -> None:
        super().__init__()
        with torch.no_grad():
            classes = network.head(torch.zeros(2, network.feature_dim)).shape[1]
        self.encoder = nn.Sequential(
            network.trunk, build_projection_mlp(network.feature_dim, hidden, outputs)
        )
        self.predictor = build_projection_mlp(outputs, hidden, outputs)
        self.classifier = nn.Linear(outputs, classes)

    def predict(self, x: Tensor) -> Tensor:
        """q, which meets the target's projections."""
        q: Tensor = self.predictor(self.encoder(x))
        return q

    def features(self, x: Tensor) -> Tensor:
        """What the classifier sees, and figures of features show."""
        seen: Tensor = self.encoder(x)
        return seen

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


@dataclass(frozen=True)
class Layout:
    """Where things lie in the online network's flat vector: [B G | Q | C | statistics of B and G |
    of Q]."""

    encoder: int
    classifier: int
    parameters: int
    statistics: int

    @classmethod
    def of(cls, online: Resident, target: Resident) -> Layout:
        classifier = online.span(cast(Online, online.net).classifier)[0].start
        encoder = target.n_parameters
        return cls(encoder, classifier, online.n_parameters, len(target.flat) - encoder)

    @property
    def sigma(self) -> slice:
        return slice(self.classifier, self.parameters)

    def split(self, w: Vector) -> tuple[Vector, Vector]:
        """theta and sigma; BatchNorm statistics go with theta."""
        return np.concatenate((w[: self.classifier], w[self.parameters :])), w[self.sigma].copy()

    def join(self, theta: Vector, sigma: Vector | None) -> Vector:
        """The whole vector; a place that needs no classifier gets one of zeros."""
        filled = np.zeros(self.parameters - self.classifier, np.float32) if sigma is None else sigma
        return np.concatenate((theta[: self.classifier], filled, theta[self.classifier :]))

    def target(self, theta: Vector) -> Vector:
        """The encoder {B, G} of theta, as a target network."""
        return np.concatenate((theta[: self.encoder], theta[self.classifier :][: self.statistics]))


def resident_pair(learner: Learner) -> tuple[Resident, Resident, Layout]:
    """The online network of a place, its target network {B', G'}, and where things lie. What they
    hold is whoever's was there: load them."""
    online = learner.shape_of()
    target = learner.shape_of("target", lambda: cast(Online, learner.build()).encoder)
    return online, target, Layout.of(online, target)
