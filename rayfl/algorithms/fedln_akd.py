"""FedLN-AKD: features of the clients are held to a frozen encoder's embeddings, which no wrong
label can reach.

V. Tsouvalas, A. Saeed, T. Ozcelebi and N. Meratnia: "Labeling chaos to learning harmony: federated
learning with noisy labels", ACM Transactions on Intelligent Systems and Technology 15(2), 2024
(adaptive knowledge distillation); code: FederatedML/FedLN.

The client's network has a trunk g, a class head h, and an embedding head e (linear) that meets the
encoder's embeddings s_i of dimension d:

    L = CE(h(g(x)), y) + alpha / (m d) sum_{i,c} | e(g(x_i))_c - s_ic |

The published rule (`adaptive: true`) distils where labels look noisy. A client asks, once, for the
commonest label among the k embeddings nearest to each of its own, itself included:

    nu_k = mean_i [ yhat_i != y_i ],   0 where that is below 0.15

and trains with L if nu_k > 0, with cross-entropy otherwise; its embedding head stays with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, cast

import numpy as np
import torch.nn.functional as functional
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global, train
from rayfl.component import Count, Fraction, NonNegative, component, slot
from rayfl.estimate.neighbour_votes import measure_disagreement
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import BatchLoss, Fit, Fitting
from rayfl.models import ENCODERS
from rayfl.models.encoders.base import EncoderSpec
from rayfl.models.encoders.hog import HoG
from rayfl.models.network import Network
from rayfl.protocol import Blueprint, Client, Fleet, Out, Phase, Ref, Vector


class TwoHeaded(Network):
    """A network whose second head answers to the encoder; its answer is the first one's."""

    def __init__(self, network: Network, width: int) -> None:
        super().__init__(network.trunk, network.head, network.feature_dim)
        self.embedding = nn.Linear(network.feature_dim, width)


@dataclass(frozen=True)
class Shared(Global):
    """The global model, and what of it travels where embedding heads stay at the clients."""

    shared: Ref | None = None


# -- the loss --------------------------------------------------------------------------------------


def distil(client: Client, method: FedLNAKD) -> BatchLoss:
    """L of a batch; the embeddings are those of the clean images."""
    embeddings = client.features["reference"]

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        network = cast(TwoHeaded, net)
        z = network.features(batch.x)
        # A mean over batch and dimension: a sum over the dimension would weigh as many times more.
        distance = functional.l1_loss(network.embedding(z), batch.take(embeddings))
        return method.loss.mean(network.head(z), batch.y) + method.strength * distance

    return loss


# -- at the client ---------------------------------------------------------------------------------


def train_distilled(client: Client, *, w: Vector, method: FedLNAKD) -> Fitting[Out]:
    """Local SGD on L."""
    trained = yield Fit(w, loss=distil(client, method))
    return Out(update=trained.weights)


def train_adaptively(client: Client, *, w: Vector, method: FedLNAKD) -> Fitting[Out]:
    """Local SGD on L where the labels look noisy, with the client's own embedding head."""
    nu = client.state.get("nu")
    if nu is None:
        nu = estimate_noise(client, method)
    own = locate_embedding(client)
    head = client.state.get("head")
    if head is None:
        head = client.learner.first_weights()[own]
    loss = distil(client, method) if nu and method.strength else method.loss
    trained = yield Fit(insert_head(w, head, own), loss=loss)
    kept = {"head": trained.weights[own].copy()} if nu else {}
    return Out({"_nu": nu}, update=cut_head(trained.weights, own), state={"nu": nu, **kept})


def estimate_noise(client: Client, method: FedLNAKD) -> float:
    """nu, from the embeddings and the labels that the client has now."""
    nu = measure_disagreement(client.features["reference"], client.y, method.k)
    return nu if nu >= method.least else 0.0


# -- what travels ----------------------------------------------------------------------------------


def locate_embedding(client: Client) -> slice:
    """Where the embedding head lies in the flat vector."""
    network = client.learner.shape_of()
    spans = network.span(cast(TwoHeaded, network.net).embedding)
    return slice(spans[0].start, spans[-1].stop)


def cut_head(w: Vector, head: slice) -> Vector:
    """The vector without the embedding head."""
    return np.concatenate((w[: head.start], w[head.stop :]))


def insert_head(w: Vector, values: Vector, head: slice) -> Vector:
    """The whole vector."""
    return np.concatenate((w[: head.start], values, w[head.start :]))


def split_off(server: Client, *, w: Vector) -> Out:
    """What of the first weights travels."""
    return Out(update=cut_head(w, locate_embedding(server)))


def complete(server: Client, *, w: Vector) -> Out:
    """The model that is tested, whose embedding head is the one that the run began with."""
    head = locate_embedding(server)
    return Out(update=insert_head(w, server.learner.first_weights()[head], head))


@component
class FedLNAKD(FedAvg):
    """Clients learn a frozen encoder's embeddings beside their labels."""

    citation: ClassVar[str] = "Tsouvalas et al., ACM TIST 2024"
    deviations: ClassVar[tuple[str, ...]] = (
        "Every client distils, and the embedding head is averaged with the rest, as in the port "
        "with which local K-similarity's tables were made (stha-prashant/baseline_FedLN). "
        "`adaptive: true` is the published rule.",
        "Under `adaptive` nu is estimated at a client's first visit; the authors' code does so in "
        "round 1.",
        "The authors' code counts classes that a client lacks into its vote (it renames the "
        "classes of the classifier), and so calls clients with few classes noisy; here a vote is "
        "for a label that the client has.",
        "The authors' cutout and the kernel penalty of their networks are not a part of the "
        "method: `training.augment` and `training.weight_decay` are the run's.",
        "A temperature of 4 that both codes carry is never used by them.",
        "A client of fewer than k samples votes with all that it has.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "nu/noise_correlation": "Pearson's correlation of nu (this round's participants) with "
        "their true share of wrong labels; under `adaptive`",
        "fedln_akd/distilling": "share of the participants whose labels look noisy; under "
        "`adaptive`",
    }

    encoder: Annotated[EncoderSpec, slot(ENCODERS)] = HoG(cell=4)
    """The frozen encoder. Local K-similarity: `simclr` (ResNet-50, ImageNet)."""
    strength: NonNegative = 10.0
    """alpha. Paper: 10; local K-similarity: 10, and 3 where all clients are noisy. Neutral: 0, the
    trunk and the class head of federated averaging."""
    adaptive: bool = False
    """Whether only clients whose labels look noisy distil, with embedding heads of their own
    (paper: true)."""
    k: Count = 10
    """Neighbours that vote. Authors' code: 10."""
    least: Fraction = 0.15
    """nu below which labels count as clean. Authors' code: 0.15."""

    def encoders(self) -> Mapping[str, EncoderSpec]:
        return {"reference": self.encoder}

    def network(self, blueprint: Blueprint) -> nn.Module:
        return TwoHeaded(cast(Network, blueprint()), blueprint.width("reference"))

    def init(self, fleet: Fleet, model: Ref) -> Shared:
        return Shared(model, fleet.serve(split_off, w=model)["w"] if self.adaptive else None)

    def round(self, state: Global, fleet: Fleet, t: int) -> Shared:
        known = cast(Shared, state)
        cohort = fleet.sample(t)
        if not self.adaptive:
            # At strength 0 nothing reaches the embedding head, and clients can be stacked.
            phase: Phase = train_distilled if self.strength else train
            got = fleet.map(phase, cohort, w=known.model, method=self)
            return replace(known, model=self.aggregate(got, fleet))
        got = fleet.map(train_adaptively, cohort, w=known.shared, method=self)
        nu = {k: report["_nu"] for k, report in got.items()}
        fleet.estimate("nu", nu)
        fleet.log(**{"fedln_akd/distilling": float(np.mean([value > 0 for value in nu.values()]))})
        shared = self.aggregate(got, fleet)
        return Shared(fleet.serve(complete, w=shared)["w"], shared)
