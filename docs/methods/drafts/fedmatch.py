"""FedMatch, labels at the server: a draft.

W. Jeong et al.: "Federated semi-supervised learning with inter-client consistency and disjoint
learning", ICLR 2021. theta = sigma + psi, so each side trains theta and takes its own part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from rayfl.arrays import Floats, Images
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.augment.strong import Strong
from rayfl.methods import (
    AUGMENTATIONS,
    Algorithm,
    Augmentation,
    Batch,
    Client,
    ClientId,
    Count,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    Frozen,
    Natural,
    NonNegative,
    Out,
    Ref,
    Shard,
    Vector,
    component,
    for_epochs,
    judge,
    kl_divergence,
    slot,
)


def halve(_: Client, *, w: Vector, factor: float) -> Out:
    """The first sigma and psi."""
    return Out(update={"sigma": w, "psi": np.float32(factor) * w})


def compose(_: Client, *, sigma: Vector, psi: Vector, least: float) -> Out:
    """What is tested: sigma, and psi without its small entries."""
    return Out(update=sigma + np.where(np.abs(psi) > least, psi, np.float32(0)))


def train_sigma(
    server: Client, *, sigma: Vector, psi: Vector, data: Shard, method: FedMatch
) -> Fitting[Out]:
    """The server's part, on labels."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        return method.lambda_s * functional.cross_entropy(net(batch.x), batch.y)

    settings = for_epochs(method.server_epochs)
    trained = yield Fit(sigma + psi, loss=loss, client=server.on(data), settings=settings)
    return Out(update=trained.weights - psi)


def train_psi(
    client: Client,
    *,
    sigma: Vector,
    psi: Vector,
    method: FedMatch,
    helpers: Sequence[Vector] = (),
) -> Fitting[Out]:
    """A client's part, by agreement with its helpers on what it is sure of."""
    others = [Frozen(client, sigma + h, f"helper {i}") for i, h in enumerate(helpers)]
    kept = torch.from_numpy(np.array(sigma)).to(client.learner.device)
    kept = kept[: client.learner.shape_of().n_parameters]

    def loss(net: nn.Module, batch: Batch) -> Tensor | None:
        logits = net(batch.x)
        p = logits.detach().softmax(1)
        chosen = p.amax(1) >= method.confidence
        batch.note(sure=float(chosen.float().mean()))
        if not chosen.any():
            return None
        answers = [helper(batch.x[chosen]).softmax(1) for helper in others]
        y = vote_for_class([p[chosen], *answers])
        strong = batch.view(method.strong)[chosen]
        value = method.lambda_a * functional.cross_entropy(net(strong), y)
        for q in answers:
            consistency = kl_divergence(q, logits[chosen]).mean()
            value = value + method.lambda_i / len(answers) * consistency
        return value

    def regularise(theta: Tensor, gradient: Tensor) -> None:
        own = theta - kept
        gradient.add_(own.sign(), alpha=method.lambda_l1)
        gradient.add_(own - kept, alpha=2 * method.lambda_l2)

    settings = {"augment": Unchanged()}
    trained = yield Fit(sigma + psi, loss=loss, adjust=regularise, settings=settings)
    own = trained.weights - sigma
    return Out({"sure": trained.means.get("sure", 0.0)}, update=own, state={"psi": own})


def vote_for_class(answers: Sequence[Tensor]) -> Tensor:
    """The class with the most votes; of equals the lowest."""
    votes = torch.stack([functional.one_hot(q.argmax(1), q.shape[1]) for q in answers])
    return votes.sum(0).argmax(1)


def embed(server: Client, *, w: Vector, sigma: Vector, noise: Images) -> Out:
    """What a client's model makes of one image of noise."""
    return Out({"v": judge(server.on(noise), sigma + w).probabilities[0]})


@dataclass(frozen=True)
class Disjoint:
    model: Ref
    sigma: Ref
    psi: Ref
    known: Mapping[ClientId, Floats] = field(default_factory=dict)


@component
class FedMatch(Algorithm):
    """Inter-client consistency and disjoint learning."""

    citation: ClassVar[str] = "Jeong et al., ICLR 2021"
    needs: ClassVar = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    helpers: Natural = 2
    interval: Count = 10
    confidence: Fraction = 0.75
    lambda_s: NonNegative = 10.0
    lambda_i: NonNegative = 1e-2
    lambda_a: NonNegative = 1e-2
    lambda_l2: NonNegative = 10.0
    lambda_l1: NonNegative = 1e-5
    least: NonNegative = 1e-5
    psi_factor: NonNegative = 0.2
    server_epochs: Count = 1
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong(n=2, m=5, least=2)

    def init(self, fleet: Fleet, model: Ref) -> Disjoint:
        parts = fleet.serve(halve, w=model, factor=self.psi_factor)
        return Disjoint(model, parts["sigma"], parts["psi"])

    def round(self, state: Disjoint, fleet: Fleet, t: int) -> Disjoint:
        psi = state.psi
        data = fleet.data("labelled")
        served = fleet.serve(train_sigma, sigma=state.sigma, psi=psi, data=data, method=self)
        sigma = served["w"]
        cohort = fleet.sample(t)
        each = {}
        if (t + 1) % self.interval == 0:
            each = {c: {"helpers": self.find_helpers(state, fleet, c)} for c in cohort}
        got = fleet.map(train_psi, cohort, each=each, sigma=sigma, psi=psi, method=self)
        seen = got.examine(embed, sigma=sigma, noise=self.draw_noise(fleet))
        psi = got.mean(dict.fromkeys(got, 1.0))
        fleet.log(**{"pseudo/sure": float(np.mean([report["sure"] for report in got.values()]))})
        model = fleet.serve(compose, sigma=sigma, psi=psi, least=self.least)["w"]
        known = {**state.known, **{client: report["v"] for client, report in seen.items()}}
        return Disjoint(model, sigma, psi, known)

    def find_helpers(self, state: Disjoint, fleet: Fleet, client: ClientId) -> list[Ref]:
        """psi of the H clients whose answers are nearest; none for a client never seen."""
        if client not in state.known:
            return []
        own = state.known[client]
        others = [c for c in state.known if c != client]
        near = sorted(others, key=lambda c: (float(np.linalg.norm(state.known[c] - own)), c))
        found = [fleet.state(c, "psi") for c in near[: self.helpers]]
        return [ref for ref in found if ref is not None]

    def draw_noise(self, fleet: Fleet) -> Images:
        """One image of clipped Gaussian noise, the same in every round."""
        pixels = fleet.rng(0, "noise image").normal(125, 125, (1, *fleet.shape))
        return pixels.clip(0, 255).astype(np.uint8)

    def model(self, state: Disjoint, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
