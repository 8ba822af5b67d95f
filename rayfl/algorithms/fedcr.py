"""FedCR: labels at the server are noisy, clients have images alone; what both learn is a
contrastive representation.

W. Mao, B. Yu, Y. Lv, Y. Xie and C. Zhang: "Federated semi-supervised learning with contrastive
representations against noisy labels", Applied Soft Computing, Algorithm 1. Four networks: trunk B,
projector G, predictor Q, classifier C.

    theta = {B, G, Q}  online: q = Q(G(B(view 1)))         travels, and is averaged by size (eq. 15)
    xi    = {B', G'}   target: z = G'(B'(view 2))          follows theta: xi <- ema xi + (1 - ema) theta   (eq. 2)
    sigma = {C}        classifier: p = softmax C(G(B(A(x)))), with A(x) a weak view        learnt at the server alone

    L_cr = sum over pairs with p_j . p_k >= eta of log(1 - cos(q_j, z_k)) + log(1 - cos(q_k, z_j))        (eq. 4)
    clients minimise L_cr, the server L_gce + lambda L_cr                                                 (eq. 14)

A(x) is what `training.augment` makes of an image. The first rounds are the server's alone: its
pre-training, in portions of `server_epochs`, so that it can be resumed like any round;
`training.rounds` counts them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rayfl.algorithms.parts.online_target import Layout, Online, resident_pair
from rayfl.algorithms.server_sl import for_epochs, owning, refuse_idle
from rayfl.component import Count, Fraction, Natural, NonNegative, component, slot
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.views import Contrastive
from rayfl.learn.fit import Batch, fit
from rayfl.learn.learner import Learner
from rayfl.learn.losses.byol import byol, byol_symmetric
from rayfl.learn.losses.contrastive_pairs import Diagonal, Reduction, contrastive_pairs, ctrr_pairs
from rayfl.learn.losses.cosine import unit
from rayfl.learn.losses.gce import gce
from rayfl.learn.optimisers import make_optimiser
from rayfl.learn.resident import Resident
from rayfl.models.network import Network
from rayfl.protocol import (
    SERVER,
    Algorithm,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Replies,
    Shard,
    Vector,
)

log = logging.getLogger("rayfl")


@dataclass
class Visit:
    """Both networks of one place during one visit, and what its steps had to say."""

    method: FedCR
    learner: Learner
    online: Resident
    target: Resident
    layout: Layout
    steps: int = 0
    record: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, method: FedCR, learner: Learner) -> Visit:
        return cls(method, learner, *resident_pair(learner))

    def contrast(self, online: Online, batch: Batch, p: Tensor | None) -> Tensor:
        """L_cr of a batch, or what replaces it; without probabilities an image is paired with
        itself alone."""
        method, passes = self.method, self.learner.passes
        first, second = (
            self.learner.normalise(method.views(batch.pixels, batch.generator)) for _ in range(2)
        )
        q, z = online.predict(first), self.project(second)
        if method.regulariser != "byol":
            loss = method.pairs(q, z, p)
        elif method.symmetric:
            loss = byol_symmetric(q, online.predict(second), self.project(first), z).mean()
        else:
            loss = byol(q, z).mean()
        directions = 2 if method.regulariser == "byol" and method.symmetric else 1
        passes.forward += 2 * directions * len(batch.index)
        passes.backward += directions * len(batch.index)
        self.note(contrast=loss, spread=unit(z).std(0).mean())
        return loss

    @torch.no_grad()
    def project(self, x: Tensor) -> Tensor:
        z: Tensor = self.target.net(x)
        return z

    @torch.no_grad()
    def follow(self, online: Resident) -> None:
        """After a step: xi <- ema xi + (1 - ema) theta. Statistics of xi come from its own
        passes."""
        self.steps += 1
        self.target.parameters.lerp_(online.parameters[: self.layout.encoder], 1 - self.method.ema)

    def note(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.record[name].append(value.detach())

    def report(self) -> dict[str, Any]:
        """Steps, and means over them under names that no real client would send."""
        means = {
            f"_{name}": float(torch.stack(values).mean()) for name, values in self.record.items()
        }
        return {"steps": self.steps, **means}


# -- phases ----------------------------------------------------------------------------------------------------------


def deal(client: Client, *, w: Vector) -> Out:
    """Cut the first weights into what travels and what stays; the target starts as a copy."""
    _, _, layout = resident_pair(client.learner)
    theta, sigma = layout.split(w)
    return Out(update={"theta": theta, "sigma": sigma, "xi": layout.target(theta)})


def train_at_server(
    client: Client,
    *,
    theta: Vector,
    sigma: Vector,
    xi: Vector,
    memory: Vector | None,
    data: Shard,
    method: FedCR,
    epochs: int,
) -> Out:
    """ServerTraining of Algorithm 1: L_gce + lambda L_cr over theta and sigma, xi in their wake."""
    visit = Visit.of(method, client.learner)
    settings = for_epochs(client.learner, epochs)
    update = make_optimiser(visit.online, settings, memory)
    visit.target.load(xi).net.train()

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        logits = net(batch.x)
        supervised = gce(logits, batch.y, method.exponent).mean()
        visit.note(supervised=supervised)
        if method.regulariser == "none" or method.strength == 0:
            return supervised
        return supervised + method.strength * visit.contrast(
            cast(Online, net), batch, logits.detach().softmax(1)
        )

    start = visit.layout.join(theta, sigma)
    w = fit(
        owning(client, data),
        start,
        loss=loss,
        training=settings,
        after_step=visit.follow,
        update=update,
    )
    theta, sigma = visit.layout.split(w)
    xi = visit.target.dump()
    return Out(
        visit.report(),
        {"w": w, "theta": theta, "sigma": sigma, "xi": xi, "optimiser": update.dump()},
    )


def train_at_client(
    client: Client,
    *,
    theta: Vector,
    method: FedCR,
    sigma: Vector | None = None,
    xi: Vector | None = None,
) -> Out:
    """LocalUpdate of Algorithm 1; xi is discarded unless the whole model travels."""
    sigma, state = gate(client, method, sigma)
    visit, theta = contrast_locally(client, method, theta, sigma, xi)
    if not visit.steps:
        return Out(visit.report(), state=state)
    update = {"theta": theta, "xi": visit.target.dump()} if method.whole_model else {"theta": theta}
    return Out(visit.report(), update, state)


def gate(
    client: Client, method: FedCR, sigma: Vector | None
) -> tuple[Vector | None, dict[str, Any]]:
    """The classifier that gates a client's pairs, and what the client keeps of it."""
    if not method.gated or method.client_classifier != "stale":
        return sigma, {}
    return (client.state["sigma"], {}) if sigma is None else (sigma, {"sigma": sigma})


def contrast_locally(
    client: Client, method: FedCR, theta: Vector, sigma: Vector | None, xi: Vector | None
) -> tuple[Visit, Vector]:
    """Minimise L_cr from theta, with a frozen classifier and the target xi (by default theta's own
    encoder)."""
    visit = Visit.of(method, client.learner)
    layout, passes = visit.layout, client.learner.passes
    start = layout.join(theta, sigma)
    visit.target.load(layout.target(theta) if xi is None else xi).net.train()
    frozen = torch.from_numpy(start[layout.sigma]).to(visit.online.flat.device)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        p = None
        if method.gated:
            with torch.no_grad():
                p = net(batch.x).softmax(1)
        # the loop counts both passes of the weak view, which has no backward one and, without a
        # gate, none at all
        passes.backward -= len(batch.index)
        passes.forward -= 0 if method.gated else len(batch.index)
        return visit.contrast(cast(Online, net), batch, p)

    def after_step(online: Resident) -> None:
        visit.follow(online)
        # a frozen classifier must not decay either
        online.parameters[layout.sigma] = frozen

    return visit, layout.split(fit(client, start, loss=loss, after_step=after_step))[0]


# -- the method ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Global:
    """Theta, xi and sigma; the whole network for tests; the server's optimiser; the classifier that
    was sent once."""

    model: Ref
    theta: Ref
    sigma: Ref
    xi: Ref
    make_optimiser: Ref | None = None
    sent: Ref | None = None


@component
class FedCR(Algorithm):
    """Clients without labels and a server with noisy ones learn contrastively; confident pairs
    attract each other."""

    citation: ClassVar[str] = "Mao et al., Applied Soft Computing"
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    deviations: ClassVar[tuple[str, ...]] = (
        "An image's own two views are a pair however unsure the classifier is (force_diagonal: false is eq. 4).",
        "The loss averages over the pairs of an image, then over the batch: lambda = 50 stems from CTRR's code, which "
        "does so; reduction: sum is eq. 4.",
        "1 - cos counts as at least `delta`: without a guard the loss has no lower bound.",
        "Clients get the newest classifier in each round, as a download; Algorithm 1 sends it once, after the "
        "pre-training (client_classifier: stale, charged at a client's first visit).",
        "The server makes `server_epochs` passes a round; the paper says `several`.",
        "Pre-training is made of rounds of the server's own, which send nothing.",
        "The decay rate of 0.99 is read as that of the target network; the learning rate is constant.",
        "The classifier is one linear layer on the projection.",
        "A client that took no step, having less than a batch, is left out of the average and counted.",
        "Adam's moments persist at the server and are fresh at a client.",
        "`w/o L_cr` is strength 0: the server has no contrastive term, clients keep theirs, as they have no other.",
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

    def network(self, network: nn.Module) -> nn.Module:
        return Online(cast(Network, network), self.projector_hidden, self.projector_out)

    def check(self, fleet: Fleet) -> None:
        alone = -(-self.pretraining // self.server_epochs)
        if alone >= fleet.training.rounds and self.regulariser != "none":
            log.warning(
                "the server pre-trains in the first %d rounds and there are %d: no client will ever train. "
                "Raise training.rounds or lower method.pretraining.",
                alone,
                fleet.training.rounds,
            )

    def init(self, fleet: Fleet, model: Ref) -> Global:
        got = fleet.map(deal, [SERVER], w=model)
        return Global(
            model, **{key: got.mean({SERVER: 1.0}, key) for key in ("theta", "sigma", "xi")}
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        left = self.pretraining - t * self.server_epochs
        fleet.log(**{"server/pretraining": float(left > 0)})
        if left <= 0 and self.regulariser != "none":
            state = replace(state, sent=state.sent or state.sigma)
            state = self.aggregated(state, self.train_clients(state, fleet, t), fleet)
        return self.train_server(
            state, fleet, min(self.server_epochs, left) if left > 0 else self.server_epochs
        )

    def train_clients(self, state: Global, fleet: Fleet, t: int) -> Replies:
        """Lines 4 to 7 of Algorithm 1."""
        cohort = fleet.sample(t)
        whole = {"xi": state.xi} if self.whole_model else {}
        each = self.classifiers(state, fleet, cohort)
        return fleet.map(
            train_at_client, cohort, each=each, theta=state.theta, method=self, **whole
        )

    def classifiers(
        self, state: Global, fleet: Fleet, cohort: list[ClientId]
    ) -> dict[ClientId, dict[str, Any]]:
        """What each client is sent of sigma: the newest one, the first one once, or nothing."""
        if not self.gated:
            return {}
        if self.client_classifier == "stale":
            return {
                client: {"sigma": state.sent}
                for client in cohort
                if fleet.state(client, "sigma") is None
            }
        return {client: {"sigma": state.sigma} for client in cohort}

    def aggregated(self, state: Global, got: Replies, fleet: Fleet) -> Global:
        """The averages by size (eq. 15) over the clients that took a step."""
        weights = {
            client: float(fleet.size(client)) for client, report in got.items() if report["steps"]
        }
        active = [got[client] for client in weights]
        fleet.log(**{"clients/idle": float(len(got) - len(active)), **logged(active, "client_")})
        if not weights:
            return state
        travelling = ("theta", "xi") if self.whole_model else ("theta",)
        return replace(state, **{key: got.mean(weights, key) for key in travelling})

    def train_server(self, state: Global, fleet: Fleet, epochs: int) -> Global:
        """Line 10 of Algorithm 1; the optimiser goes on where it stopped."""
        inputs: dict[str, Any] = {
            "theta": state.theta,
            "sigma": state.sigma,
            "xi": state.xi,
            "memory": state.optimiser,
        }
        got = fleet.map(
            train_at_server,
            [SERVER],
            **inputs,
            data=fleet.data("labelled"),
            method=self,
            epochs=epochs,
        )
        refuse_idle(got)
        fleet.log(**logged([got[SERVER]], ""))
        left = {key: got.mean({SERVER: 1.0}, key) for key in ("theta", "sigma", "xi", "optimiser")}
        return replace(state, model=got.mean({SERVER: 1.0}), **left)

    def model(self, state: Global, client: ClientId | None = None) -> Ref:
        return state.model


def logged(reports: list[Mapping[str, Any]], prefix: str) -> dict[str, float]:
    """The losses as metrics, averaged over places; the spread of unit projections falls to 0 if
    they collapse."""
    names = {
        "_supervised": "loss/{}supervised",
        "_contrast": "loss/{}contrast",
        "_spread": "target/{}spread",
    }
    found = {name: [report[name] for report in reports if name in report] for name in names}
    return {
        names[name].format(prefix): float(np.mean(values))
        for name, values in found.items()
        if values
    }
