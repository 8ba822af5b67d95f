"""MOON: representations are drawn to the global model's and away from the client's own earlier
ones.

Q. Li, B. He and D. Song: "Model-contrastive federated learning", CVPR 2021, Algorithm 1. The local
loss is

    CE + mu * -log( exp(cos(z, z_glob)/tau) / ( exp(cos(z, z_glob)/tau) + exp(cos(z, z_prev)/tau) )
    )

with z, z_glob and z_prev the projections of an image by the model in training, by the model
received and by the model with which this client ended its last visit. The logits are linear in z.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.component import Count, NonNegative, Positive, component
from rayfl.learn.fit import Batch, Loss, cross_entropy, fit
from rayfl.learn.losses.model_contrastive import model_contrastive
from rayfl.models.heads import ProjectedClassifier
from rayfl.models.network import Network
from rayfl.protocol import Client, Fleet, Out, Vector

FirstNegative = Literal["skip", "init"]


def train_contrastively(
    client: Client, *, w: Vector, mu: float, tau: float, first_negative: FirstNegative
) -> Out:
    """Local SGD with the model-contrastive term; the local model is remembered for the next
    visit."""
    earlier = earlier_model(client, first_negative)
    loss = cross_entropy if earlier is None else contrastive(client, w, earlier, mu, tau)
    local = fit(client, w, loss=loss)
    return Out({"n": len(client)}, update=local, state={"w": local})


def earlier_model(client: Client, first_negative: FirstNegative) -> nn.Module | None:
    """The client's model at the end of its last visit, frozen."""
    if "w" in client.state:
        return client.learner.resident(client.state["w"], "earlier").net.eval()
    # A resident that was never loaded is the network that the run began with.
    return client.learner.resident(name="initial").net.eval() if first_negative == "init" else None


def contrastive(client: Client, w: Vector, earlier: nn.Module, mu: float, tau: float) -> Loss:
    """The loss of a mini-batch."""
    passes = client.learner.passes
    received = client.learner.resident(w, "received").net.eval()

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        z, logits = projected(net, batch.x)
        with torch.no_grad():
            z_global, z_earlier = (projected(frozen, batch.x)[0] for frozen in (received, earlier))
        passes.forward += 2 * len(batch.index)
        contrast = model_contrastive(z, z_global, [z_earlier], tau).mean()
        return functional.cross_entropy(logits, batch.y) + mu * contrast

    return loss


def projected(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors that are compared, and the logits: projections where there is a projection head,
    else features."""
    assert isinstance(net, Network)
    features = net.features(x)
    if not isinstance(net.head, ProjectedClassifier):
        return features, net.head(features)
    z = net.head.project(features)
    return z, net.head.classifier(z)


@component
class Moon(FedAvg):
    """Federated averaging with a contrastive term between the local, the global and the client's
    earlier model."""

    citation: ClassVar[str] = "Li et al., CVPR 2021"
    deviations: ClassVar[tuple[str, ...]] = (
        "A client's first visit has no contrastive term; the released code has none in the first round only, and later "
        "contrasts with a random network of the client's own. first_negative: init contrasts with the network that the "
        "run began with, one for all clients.",
        "One earlier model is remembered, the released code's default.",
        "The network's own head is replaced by a projection (features -> features -> out_dim) and a linear classifier.",
    )
    mu: NonNegative = 1.0
    """Weight of the contrastive term. Paper: 5 for CIFAR-10, 1 for CIFAR-100; 0 is FedAvg."""
    tau: Positive = 0.5
    """Temperature. Paper: 0.5."""
    out_dim: Count = 256
    """Width of the projection. Paper: 256."""
    use_head: bool = True
    """Whether the network gets the projection head; without, features are compared and the network
    stays FedAvg's."""
    first_negative: FirstNegative = "skip"
    """What a client without an earlier model contrasts with: nothing, or the run's initial
    network."""

    def network(self, network: nn.Module) -> nn.Module:
        if not self.use_head:
            return network
        assert isinstance(network, Network)
        classifier = [layer for layer in network.head.modules() if isinstance(layer, nn.Linear)][-1]
        network.head = ProjectedClassifier(
            network.feature_dim, classifier.out_features, self.out_dim
        )
        return network

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        cohort, first = fleet.sample(t), self.first_negative
        got = fleet.map(
            train_contrastively,
            cohort,
            w=state.model,
            mu=self.mu,
            tau=self.tau,
            first_negative=first,
        )
        return replace(state, model=got.mean(self.weighting(got, fleet)))
