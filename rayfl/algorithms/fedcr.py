"""FedCR: labels at the server are noisy, clients have images alone; what both learn is a
contrastive representation.

W. Mao, B. Yu, Y. Lv, Y. Xie and C. Zhang: "Federated semi-supervised learning with contrastive
representations against noisy labels", Applied Soft Computing, Algorithm 1. Four networks: trunk B,
projector G, predictor Q, classifier C.

    theta = {B, G, Q}  online, q = Q(G(B(view 1))): travels, and is averaged by size       (eq. 15)
    xi    = {B', G'}   target, z = G'(B'(view 2)): xi <- ema xi + (1 - ema) theta           (eq. 2)
    sigma = {C}        classifier, p = softmax C(G(B(A(x)))) of a weak view A(x): learnt at the
                       server alone

    L_cr = sum over pairs with p_j . p_k >= eta of
           log(1 - cos(q_j, z_k)) + log(1 - cos(q_k, z_j))                                  (eq. 4)
    clients minimise L_cr, the server L_gce + lambda L_cr                                  (eq. 14)

A(x) is what `training.augment` makes of an image. The first rounds are the server's alone: its
pre-training, in portions of `server_epochs`, so that it can be resumed like any round;
`training.rounds` counts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.algorithms.parts.online_target import Layout, Online, resident_pair
from rayfl.algorithms.parts.server_training import for_epochs, refuse_idle_server
from rayfl.component import Count, Fraction, Natural, NonNegative, component, slot
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.views import Contrastive
from rayfl.learn.batches import Batch
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit, Fitting, Trained
from rayfl.learn.losses.byol import byol, byol_symmetric
from rayfl.learn.losses.contrastive_pairs import Diagonal, Reduction, contrastive_pairs, ctrr_pairs
from rayfl.learn.losses.cosine import scale_to_unit
from rayfl.learn.losses.gce import gce
from rayfl.learn.resident import Resident
from rayfl.learn.training import Training
from rayfl.models.network import Network
from rayfl.protocol import (
    Algorithm,
    Blueprint,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Replies,
    Shard,
    Vector,
)


@dataclass
class OnlineAndTarget:
    """The online network of one place and the target that follows it, during one visit."""

    method: FedCR
    online: Resident
    target: Resident
    layout: Layout

    @classmethod
    def at(cls, method: FedCR, learner: Learner) -> OnlineAndTarget:
        return cls(method, *resident_pair(learner))

    def contrast(self, online: Online, batch: Batch, p: Tensor | None) -> Tensor:
        """L_cr of a batch, or what replaces it; without probabilities an image is paired with
        itself alone."""
        method = self.method
        first = batch.view(method.views)
        second = batch.view(method.views)
        q = online.predict(first)
        z = self.project(second)
        if method.regulariser != "byol":
            loss = method.pairs(q, z, p)
        elif method.symmetric:
            loss = byol_symmetric(q, online.predict(second), self.project(first), z).mean()
        else:
            loss = byol(q, z).mean()
        batch.note(contrast=loss, spread=scale_to_unit(z).std(0).mean())
        return loss

    @torch.no_grad()
    def project(self, x: Tensor) -> Tensor:
        z: Tensor = self.target.net(x)
        return z

    @torch.no_grad()
    def follow(self, online: Resident) -> None:
        """After a step: xi <- ema xi + (1 - ema) theta. Statistics of xi come from its own
        passes."""
        theta = online.parameters[: self.layout.encoder]
        self.target.parameters.lerp_(theta, 1 - self.method.ema)


def report_of(trained: Trained) -> dict[str, Any]:
    """Steps, and means over them under names that no real client would send."""
    return {"steps": trained.steps, **{f"_{name}": mean for name, mean in trained.means.items()}}


# -- phases ----------------------------------------------------------------------------------------


def deal(client: Client, *, w: Vector) -> Out:
    """Cut the first weights into what travels and what stays; the target starts as a copy."""
    _, _, layout = resident_pair(client.learner)
    theta, sigma = layout.split(w)
    return Out(update={"theta": theta, "sigma": sigma, "xi": layout.target(theta)})


def train_at_server(
    server: Client,
    *,
    theta: Vector,
    sigma: Vector,
    xi: Vector,
    memory: Vector | None,
    data: Shard,
    method: FedCR,
    epochs: int,
) -> Fitting[Out]:
    """ServerTraining of Algorithm 1: L_gce + lambda L_cr over theta and sigma, xi in their wake."""
    pair = OnlineAndTarget.at(method, server.learner)
    pair.target.load(xi).net.train()

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        logits = net(batch.x)
        supervised = gce(logits, batch.y, method.exponent).mean()
        batch.note(supervised=supervised)
        if method.regulariser == "none" or method.strength == 0:
            return supervised
        p = logits.detach().softmax(1)
        return supervised + method.strength * pair.contrast(cast(Online, net), batch, p)

    trained = yield Fit(
        pair.layout.join(theta, sigma),
        loss=loss,
        client=server.on(data),
        settings=for_epochs(epochs),
        after_step=pair.follow,
        memory=memory,
        remember=True,
    )
    w = trained.weights
    theta, sigma = pair.layout.split(w)
    update = {"w": w, "theta": theta, "sigma": sigma, "xi": pair.target.dump()}
    return Out(report_of(trained), {**update, "optimiser": trained.memory})


def train_at_client(
    client: Client,
    *,
    theta: Vector,
    method: FedCR,
    sigma: Vector | None = None,
    xi: Vector | None = None,
) -> Fitting[Out]:
    """LocalUpdate of Algorithm 1; xi is discarded unless the whole model travels."""
    sigma, state = gate(client, method, sigma)
    pair, trained, theta = yield from contrast_locally(client, method, theta, sigma, xi)
    if not trained.steps:
        return Out(report_of(trained), state=state)
    update = {"theta": theta, "xi": pair.target.dump()} if method.whole_model else {"theta": theta}
    return Out(report_of(trained), update, state)


def gate(
    client: Client, method: FedCR, sigma: Vector | None
) -> tuple[Vector | None, dict[str, Any]]:
    """The classifier that gates a client's pairs, and what the client keeps of it."""
    if not method.gated or method.client_classifier != "stale":
        return sigma, {}
    return (client.state["sigma"], {}) if sigma is None else (sigma, {"sigma": sigma})


def contrast_locally(
    client: Client, method: FedCR, theta: Vector, sigma: Vector | None, xi: Vector | None
) -> Fitting[tuple[OnlineAndTarget, Trained, Vector]]:
    """Minimise L_cr from theta, with a frozen classifier and the target xi (by default theta's own
    encoder)."""
    pair = OnlineAndTarget.at(method, client.learner)
    layout = pair.layout
    start = layout.join(theta, sigma)
    pair.target.load(layout.target(theta) if xi is None else xi).net.train()
    frozen = torch.from_numpy(start[layout.sigma]).to(pair.online.flat.device)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        p = None
        if method.gated:
            with torch.no_grad():
                p = net(batch.x).softmax(1)
        return pair.contrast(cast(Online, net), batch, p)

    def after_step(online: Resident) -> None:
        pair.follow(online)
        # a frozen classifier must not decay either
        online.parameters[layout.sigma] = frozen

    trained = yield Fit(start, loss=loss, after_step=after_step)
    return pair, trained, layout.split(trained.weights)[0]


# -- the method ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Networks:
    """Theta, xi and sigma; the whole network for tests; the server's optimiser; the classifier that
    was sent once."""

    model: Ref
    theta: Ref
    sigma: Ref
    xi: Ref
    optimiser: Ref | None = None
    sent: Ref | None = None


@component
class FedCR(Algorithm):
    """Clients without labels and a server with noisy ones learn contrastively; confident pairs
    attract each other."""

    citation: ClassVar[str] = "Mao et al., Applied Soft Computing"
    metrics: ClassVar[Mapping[str, str]] = {
        "server/pretraining": "1 while the server still trains alone, before the first federated "
        "round",
        "clients/idle": "participants that took no step, and do not count",
        "loss/supervised": "mean of the server's loss on its labels",
        "loss/contrast": "mean of the server's contrastive loss",
        "loss/client_contrast": "mean of the clients' contrastive loss",
        "target/spread": "spread of the target's unit projections at the server, which falls to 0 "
        "if they collapse",
        "target/client_spread": "the same at clients",
    }
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    deviations: ClassVar[tuple[str, ...]] = (
        "An image's own two views are a pair however unsure the classifier is (force_diagonal: "
        "false is eq. 4).",
        "The loss averages over the pairs of an image, then over the batch: lambda = 50 stems "
        "from CTRR's code, which does so; reduction: sum is eq. 4.",
        "L_gce is a mean over the batch; eq. 12 is a sum.",
        "Both orders of a pair are summed, as in eq. 4; CTRR's code, from which lambda = 50 stems, "
        "counts one, so that strength: 25 weighs as there. Scaled down on Fashion-MNIST, 4 and 50 "
        "did alike (72.97 and 72.24, two seeds).",
        "The gate's p is that of the weak view A(x) in training mode, with the batch's statistics; "
        "the paper says `representation of images x`. At a client this is one more pass that "
        "theta's running statistics see. In evaluation mode, at server and clients, "
        "configs/methods/fedcr.yaml ends at .911 in place of .886 (seed 0), .881 of .853 (seed 1).",
        "1 - cos counts as at least `delta`: without a guard the loss has no lower bound.",
        "Clients get the newest classifier in each round, as a download; Algorithm 1 sends it "
        "once, after the pre-training (client_classifier: stale, charged at a client's first "
        "visit).",
        "The server makes `server_epochs` passes a round; the paper says `several`.",
        "Pre-training is made of rounds of the server's own, which send nothing.",
        "Eq. 2 is for parameters: xi's BatchNorm statistics come from its own passes.",
        "The decay rate of 0.99 is read as that of the target network; the learning rate is "
        "constant.",
        "The classifier is one linear layer on the projection.",
        "A client that took no step, having less than a batch, is left out of the average and "
        "counted.",
        "Adam's moments persist at the server and are fresh at a client.",
        "`w/o L_cr` is strength 0: the server has no contrastive term, clients keep theirs, as "
        "they have no other.",
    )
    pretraining: Natural = 700
    """Passes over the labelled set before the first federated round (paper: 700; neutral: 0)."""
    server_epochs: Count = 5
    """Passes over the labelled set in a round; pre-training takes pretraining / server_epochs
    rounds, rounded up."""
    supervised: Literal["gce", "ce"] = "gce"
    """The server's loss on labels (paper: gce where they are noisy, ce where they are known to be
    right)."""
    gamma: Fraction = 0.6
    """Exponent of the generalised cross-entropy (paper: 0.6; neutral: 0, cross-entropy)."""
    regulariser: Literal["pairs", "ctrr", "byol", "none"] = "pairs"
    """L_cr; the loss as in CTRR's public code; the mean square error of BYOL; or none, which leaves
    clients idle."""
    strength: NonNegative = 50.0
    """Lambda, the weight of the regulariser at the server (paper: 50; neutral: 0)."""
    eta: Fraction = 0.8
    """Pairs need p_j . p_k of at least this (paper: 0.8; 1 leaves an image's own two views)."""
    force_diagonal: bool = True
    reduction: Reduction = "row_mean"
    diagonal: Diagonal = "log"
    """`neg_cos`: an image's own two views count by -cos instead of the logarithm, as in CTRR's
    code."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    symmetric: bool = True
    """BYOL's loss in both directions."""
    ema: Fraction = 0.99
    """Share of the target that a step leaves (paper: 0.99; 0: the target is the online encoder,
    `w/o EMA`)."""
    client_classifier: Literal["fresh", "stale", "none"] = "fresh"
    """Which classifier gates the pairs of clients: the newest, the first, or none (own views
    only)."""
    whole_model: bool = False
    """The target network travels and is averaged too (Table 7)."""
    projector_hidden: Count = 4096
    projector_out: Count = 2048
    views: Annotated[Augmentation, slot(AUGMENTATIONS)] = Contrastive()
    """The two views of the contrastive term."""

    @property
    def exponent(self) -> float:
        return self.gamma if self.supervised == "gce" else 0.0

    @property
    def gated(self) -> bool:
        """Whether clients need class probabilities, and so a classifier."""
        return self.regulariser in ("pairs", "ctrr") and self.client_classifier != "none"

    def pairs(self, q: Tensor, z: Tensor, p: Tensor | None) -> Tensor:
        """L_cr; without probabilities no two images are a pair."""
        own = self.force_diagonal or p is None
        # probabilities of 0 reach no threshold but 0
        p, eta = (q.new_zeros(len(q), 1), 1.0) if p is None else (p, self.eta)
        if self.regulariser == "ctrr":
            return ctrr_pairs(q, z, p, eta)
        return contrastive_pairs(q, z, p, eta, own, self.reduction, self.diagonal, self.delta)

    def network(self, blueprint: Blueprint) -> nn.Module:
        return Online(cast(Network, blueprint()), self.projector_hidden, self.projector_out)

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        alone = -(-self.pretraining // self.server_epochs)
        if self.regulariser != "none":
            yield from warn_of_late_stage(
                "method.pretraining", alone, training.rounds, "no client will ever train"
            )

    def init(self, fleet: Fleet, model: Ref) -> Networks:
        cut = fleet.serve(deal, w=model)
        return Networks(model, cut["theta"], cut["sigma"], cut["xi"])

    def round(self, state: Networks, fleet: Fleet, t: int) -> Networks:
        left = self.pretraining - t * self.server_epochs
        fleet.log(**{"server/pretraining": float(left > 0)})
        if left <= 0 and self.regulariser != "none":
            state = replace(state, sent=state.sent or state.sigma)
            state = self.average_clients(state, self.train_clients(state, fleet, t), fleet)
        epochs = min(self.server_epochs, left) if left > 0 else self.server_epochs
        return self.train_server(state, fleet, epochs)

    def train_clients(self, state: Networks, fleet: Fleet, t: int) -> Replies:
        """Lines 4 to 7 of Algorithm 1."""
        cohort = fleet.sample(t)
        whole = {"xi": state.xi} if self.whole_model else {}
        each = self.classifiers(state, fleet, cohort)
        theta = state.theta
        return fleet.map(train_at_client, cohort, each=each, theta=theta, method=self, **whole)

    def classifiers(
        self, state: Networks, fleet: Fleet, cohort: list[ClientId]
    ) -> dict[ClientId, dict[str, Any]]:
        """What each client is sent of sigma: the newest one, the first one once, or nothing."""
        if not self.gated:
            return {}
        if self.client_classifier == "stale":
            new = [client for client in cohort if fleet.state(client, "sigma") is None]
            return {client: {"sigma": state.sent} for client in new}
        return {client: {"sigma": state.sigma} for client in cohort}

    def average_clients(self, state: Networks, got: Replies, fleet: Fleet) -> Networks:
        """The averages by size (eq. 15) over the clients that took a step."""
        active = [client for client, report in got.items() if report["steps"]]
        weights = {client: float(fleet.size(client)) for client in active}
        reports = [got[client] for client in active]
        idle = float(len(got) - len(active))
        fleet.log(**{"clients/idle": idle, **mean_losses(reports, "client_")})
        if not weights:
            return state
        travelling = ("theta", "xi") if self.whole_model else ("theta",)
        return replace(state, **{key: got.mean(weights, key) for key in travelling})

    def train_server(self, state: Networks, fleet: Fleet, epochs: int) -> Networks:
        """Line 10 of Algorithm 1; the optimiser goes on where it stopped."""
        got = fleet.serve(
            train_at_server,
            theta=state.theta,
            sigma=state.sigma,
            xi=state.xi,
            memory=state.optimiser,
            data=fleet.data("labelled"),
            method=self,
            epochs=epochs,
        )
        refuse_idle_server(got.report)
        fleet.log(**mean_losses([got.report], ""))
        left = {key: got[key] for key in ("theta", "sigma", "xi", "optimiser")}
        return replace(state, model=got["w"], **left)

    def model(self, state: Networks, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model


LOSSES_LOGGED = {
    "_supervised": "loss/{}supervised",
    "_contrast": "loss/{}contrast",
    "_spread": "target/{}spread",
}


def mean_losses(reports: list[Mapping[str, Any]], prefix: str) -> dict[str, float]:
    """The losses as metrics, averaged over places; the spread of unit projections falls to 0 if
    they collapse."""
    means = {}
    for name, metric in LOSSES_LOGGED.items():
        values = [report[name] for report in reports if name in report]
        if values:
            means[metric.format(prefix)] = float(np.mean(values))
    return means
