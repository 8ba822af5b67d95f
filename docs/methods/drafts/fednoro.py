"""FedNoRo: a draft.

N. Wu et al.: "FedNoRo: towards noise-robust federated learning by addressing class imbalance and
label noise heterogeneity", IJCAI 2023. Stage 1: logit adjustment; mixture of clients by their mean
losses per class. Stage 2: noisy clients are also taught by the global model, and count by their
distance from the clean ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
from torch import Tensor, nn

from rayfl.algorithms.parts.distance_weighting import dampen_by_largest, find_distances
from rayfl.estimate.scaling import average_by_class, fill_and_scale
from rayfl.learn.losses.logit_adjustment import adjust_logits, log_prior
from rayfl.methods import (
    Batch,
    Client,
    ClientId,
    Count,
    FedAvg,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    Frozen,
    GaussianMixture,
    Global,
    Natural,
    Out,
    Ref,
    Replies,
    Vector,
    component,
    judge,
    kl_divergence,
    ramp_exponentially,
    soften,
)


@dataclass(frozen=True)
class Sorted(Global):
    """The global model, and from stage 2 on the clients found to be noisy."""

    noisy: tuple[ClientId, ...] | None = None


def train_adjusted(
    client: Client, *, w: Vector, method: FedNoRo, teach: float = 0.0
) -> Fitting[Out]:
    """Logit adjustment; noisy clients are also held to the global model's answers."""
    prior = log_prior(client.class_counts)
    teacher = Frozen(client, w, "teacher") if teach else None

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        logits = adjust_logits(net(batch.x), prior)
        own = method.loss.mean(logits, batch.y)
        if teacher is None:
            return own
        taught = kl_divergence(soften(teacher(batch.x), 0.8), logits).mean()
        return teach * taught + (1 - teach) * own

    trained = yield Fit(w, loss=loss)
    return Out(update=trained.weights)


def average_losses(client: Client, *, w: Vector) -> Out:
    """The mean loss of each class."""
    losses = judge(client, w).losses
    return Out({"losses": average_by_class(losses, client.y, client.classes)})


@component
class FedNoRo(FedAvg):
    """Warm-up with logit adjustment; then noisy clients are taught, and count by distance."""

    citation: ClassVar[str] = "Wu et al., IJCAI 2023"
    warmup: Count = 10
    begin: Natural = 10
    end: Natural = 49
    a: Fraction = 0.8

    def init(self, fleet: Fleet, model: Ref) -> Sorted:
        return Sorted(model)

    def round(self, state: Global, fleet: Fleet, t: int) -> Sorted:
        known = cast(Sorted, state)
        cohort = fleet.sample(t)
        if t < self.warmup:
            got = fleet.map(train_adjusted, cohort, w=known.model, method=self)
            return replace(known, model=self.aggregate(got, fleet))
        if known.noisy is None:
            known = replace(known, noisy=self.detect_noisy(known, fleet, t))
        noisy = known.noisy or ()
        teach = self.a * ramp_exponentially(t, self.begin, self.end)
        each = {k: {"teach": teach} for k in cohort if k in noisy}
        got = fleet.map(train_adjusted, cohort, each=each, w=known.model, method=self)
        weights = self.weigh_by_distance(got, noisy, fleet)
        return replace(known, model=self.aggregation(got, weights, fleet))

    def detect_noisy(self, state: Sorted, fleet: Fleet, t: int) -> tuple[ClientId, ...]:
        """What most of nine mixtures call noisy: the component of the larger losses."""
        got = fleet.map(average_losses, fleet.clients, w=state.model)
        rows = fill_and_scale(np.stack([report["losses"] for report in got.values()]))
        rng = fleet.rng(t, "mixtures")
        votes = [GaussianMixture().fit(rows, rng).labels.tolist() for _ in range(9)]
        labels = max(votes, key=votes.count)
        fleet.estimate("noisy", dict(zip(got, map(float, labels), strict=True)))
        return tuple(k for k, label in zip(got, labels, strict=True) if label)

    def weigh_by_distance(
        self, got: Replies, noisy: tuple[ClientId, ...], fleet: Fleet
    ) -> dict[ClientId, float]:
        """n_k exp(-d_k / max d), d_k the distance to the nearest clean client."""
        sizes = dict(self.weighting(got, fleet))
        clean = [got.ref(k) for k in got if k not in noisy]
        if not clean:
            return sizes
        far = find_distances(got, clean, [k for k in got if k in noisy])
        distances = {k: float(far[k].min()) if k in far else 0.0 for k in got}
        return dampen_by_largest(sizes, distances)
