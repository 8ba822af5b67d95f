"""FedCorr: a draft.

J. Xu et al.: "FedCorr: multi-stage federated learning for label noise correction", CVPR 2022.
Stage 1: clients in turn, noise levels by LID and losses, correction; 2: fine-tuning on clean
clients, correction; 3: federated averaging.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np
from torch import Tensor, nn

from rayfl.methods import (
    Batch,
    BatchLoss,
    Client,
    ClientId,
    Count,
    FedAvg,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    Global,
    LossMixture,
    Natural,
    NonNegative,
    Out,
    Ref,
    Stages,
    Vector,
    component,
    compute_losses,
    judge,
    mean_lid,
    mix_batch,
    relabel_confident,
)

AS_SCIKIT_LEARN = LossMixture(reg_covar=1e-6, tol=1e-3, normalise=False)


@dataclass(frozen=True)
class Corrected(Global):
    """The global model, accumulated LID scores, and estimated noise of the noisy clients."""

    lid: Mapping[ClientId, float] = field(default_factory=dict)
    mu: Mapping[ClientId, float] = field(default_factory=dict)


def mix_up(method: FedCorr) -> BatchLoss:
    """The loss of a batch mixed with itself."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        mixed = mix_batch(batch.x, method.alpha, batch.generator)
        return mixed.blend_losses(method.loss, net(mixed.x), batch.y).mean()

    return loss


def train_mixed(client: Client, *, w: Vector, method: FedCorr) -> Fitting[Out]:
    trained = yield Fit(w, loss=mix_up(method))
    return Out(update=trained.weights)


def visit(client: Client, *, w: Vector, mu: float, method: FedCorr) -> Fitting[Out]:
    """Stage 1: train near w, then say how the local model's answers spread."""
    anchor = client.learner.resident(w).parameters.clone()
    steps = -(-len(client) // client.learner.training.batch_size)
    taken = itertools.count()

    def pull(parameters: Tensor, gradient: Tensor) -> None:
        away = parameters - anchor
        norm = float(away.norm())
        # Not in the first batch of an epoch, as in the code.
        if next(taken) % steps and norm > 0:
            gradient.add_(away, alpha=method.beta * mu / norm)

    trained = yield Fit(w, loss=mix_up(method), adjust=pull if method.beta * mu else None)
    judged = judge(client, trained.weights)
    # The code gives softmax outputs to cross-entropy once more.
    losses = compute_losses(judged.probabilities.astype(np.float32), client.y)
    report = {"lid": mean_lid(judged.probabilities, method.k)}
    return Out(report, update=trained.weights, state={"losses": losses})


def correct(client: Client, *, w: Vector, method: FedCorr) -> Out:
    """The noise level from the losses, then new labels for the worst that w is sure of."""
    losses = client.state["losses"]
    split = AS_SCIKIT_LEARN.fit(losses)
    mu = float((split.clean < 0.5).mean()) if split.separated else 0.0
    worst = np.argsort(-losses, kind="stable")[: int(len(client) * mu * method.share)]
    p = judge(client, w).probabilities
    return Out({"mu": mu}, state=relabel_confident(client, p, method.confidence, among=worst))


def relabel_all(client: Client, *, w: Vector, method: FedCorr) -> Out:
    """After stage 2: everything that the global model is sure of."""
    p = judge(client, w).probabilities
    return Out(state=relabel_confident(client, p, method.confidence))


@component
class FedCorr(FedAvg):
    """Pre-processing one client after another, fine-tuning on clean clients, usual training."""

    citation: ClassVar[str] = "Xu et al., CVPR 2022"
    iterations: Natural = 5
    finetuning: Natural = 5
    alpha: NonNegative = 1.0
    beta: NonNegative = 5.0
    k: Count = 20
    share: Fraction = 0.5
    confidence: Fraction = 0.5
    kappa: Fraction = 0.1

    def init(self, fleet: Fleet, model: Ref) -> Corrected:
        return Corrected(model)

    def round(self, state: Global, fleet: Fleet, t: int) -> Corrected:
        known = cast(Corrected, state)
        portions = -(-len(fleet.clients) // fleet.cohort)  # rounds of an iteration
        first = self.iterations * portions
        stage = Stages({"visit": first, "finetune": self.finetuning, "usual": None}).at(t)
        if stage.name == "visit":
            iteration, portion = divmod(stage.index, portions)
            order = fleet.rng(iteration, "order").permutation(fleet.clients).tolist()
            turn = order[portion * fleet.cohort :][: fleet.cohort]
            known = self.visit_in_turn(known, turn, fleet)
            return self.correct_noisy(known, fleet) if portion == portions - 1 else known
        clean = [k for k in fleet.clients if known.mu.get(k, 0.0) <= self.kappa]
        cleanest = min(fleet.clients, key=lambda k: known.mu.get(k, 0.0))
        among = (clean or [cleanest]) if stage.name == "finetune" else None
        got = fleet.map(train_mixed, fleet.sample(t, among), w=known.model, method=self)
        known = replace(known, model=self.aggregate(got, fleet))
        if stage.name == "finetune" and stage.last:
            fleet.map(relabel_all, fleet.clients, w=known.model, method=self)
        return known

    def visit_in_turn(self, state: Corrected, order: list[ClientId], fleet: Fleet) -> Corrected:
        each = {k: {"mu": state.mu.get(k, 0.0)} for k in order}
        got = fleet.chain(visit, order, w=state.model, each=each, method=self)
        scores = {k: r["lid"] for k, r in got.items() if np.isfinite(r["lid"])}
        lid = {**state.lid, **{k: state.lid.get(k, 0.0) + score for k, score in scores.items()}}
        return replace(state, model=got.last, lid=lid)

    def correct_noisy(self, state: Corrected, fleet: Fleet) -> Corrected:
        ids = sorted(state.lid)
        split = AS_SCIKIT_LEARN.fit([state.lid[k] for k in ids])
        noisy = [k for k, clean in zip(ids, split.clean, strict=True) if clean < 0.5]
        got = fleet.map(correct, noisy if split.separated else [], w=state.model, method=self)
        mu = {k: report["mu"] for k, report in got.items()}
        fleet.estimate("lid", state.lid)
        fleet.estimate("noise", {k: mu.get(k, 0.0) for k in ids})
        return replace(state, mu=mu)
