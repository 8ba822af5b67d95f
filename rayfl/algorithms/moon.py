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
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.component import Count, NonNegative, Positive, component
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import BatchLoss, Fit, Fitting
from rayfl.learn.losses.model_contrastive import model_contrastive
from rayfl.learn.losses.unlabelled import UnlabelledLoss
from rayfl.models.heads import ProjectedClassifier
from rayfl.models.network import Network
from rayfl.protocol import Blueprint, Client, Fleet, Out, Vector

FirstNegative = Literal["skip", "init"]


def train_contrastively(client: Client, *, w: Vector, method: Moon) -> Fitting[Out]:
    """Local SGD with the model-contrastive term; the local model is remembered for the next
    visit."""
    earlier = load_earlier(client, method.first_negative)
    if earlier is None:
        trained = yield Fit(w, loss=method.loss)
    else:
        trained = yield Fit(w, loss=contrast_models(client, w, earlier, method))
    return Out(update=trained.weights, state={"w": trained.weights})


def load_earlier(client: Client, first_negative: FirstNegative) -> nn.Module | None:
    """The client's model at the end of its last visit, frozen."""
    learner = client.learner
    if "w" in client.state:
        return learner.resident(client.state["w"], "earlier").net.eval()
    if first_negative == "init":
        return learner.resident(learner.first_weights(), "earlier").net.eval()
    return None


def contrast_models(client: Client, w: Vector, earlier: nn.Module, method: Moon) -> BatchLoss:
    """The loss of a mini-batch."""
    received = client.learner.resident(w, "received").net.eval()

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        z, logits = project(net, batch.x)
        with torch.no_grad():
            z_glob, _ = project(received, batch.x)
            z_prev, _ = project(earlier, batch.x)
        contrast = model_contrastive(z, z_glob, [z_prev], method.tau).mean()
        return learn_from(method, net, batch, logits) + method.mu * contrast

    return loss


def learn_from(method: Moon, net: nn.Module, batch: Batch, logits: Tensor) -> Tensor:
    """The loss of the labels, or of images alone where the method is a host of it."""
    if not isinstance(method.loss, UnlabelledLoss):
        return method.loss.mean(logits, batch.y)
    value = method.loss(net, batch)
    return logits.new_zeros(()) if value is None else value


def project(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
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
        "A client's first visit has no contrastive term; the released code has none in the first "
        "round only, and later contrasts with a random network of the client's own. "
        "first_negative: init contrasts with the network that the run began with, one for all "
        "clients.",
        "One earlier model is remembered, the released code's default.",
        "The network's own head is replaced by a projection (features -> features -> out_dim) and "
        "a linear classifier.",
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

    def network(self, blueprint: Blueprint) -> nn.Module:
        network = blueprint()
        if not self.use_head:
            return network
        assert isinstance(network, Network)
        network.head = ProjectedClassifier(network.feature_dim, blueprint.classes, self.out_dim)
        return network

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train_contrastively, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=self.aggregate(got, fleet))
