"""DivideMix at every client: a draft.

J. Li, R. Socher and S. Hoi: "DivideMix: learning with noisy labels as semi-supervised learning",
ICLR 2020. Two networks divide a client's samples for each other by their losses, and treat the
likely wrong ones as unlabelled (MixMatch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.arrays import Floats
from rayfl.learn.losses.entropy import prior_divergence
from rayfl.learn.losses.soft_cross_entropy import soft_cross_entropy
from rayfl.learn.losses.squared_error import squared_error
from rayfl.methods import (
    Batch,
    Client,
    FedAvg,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    Frozen,
    Global,
    LossMixture,
    Natural,
    NonNegative,
    Out,
    Positive,
    Ref,
    SampleStream,
    Vector,
    average_guesses,
    component,
    divide,
    encode_labels,
    judge,
    mix_rows,
    ramp_linearly,
    refine_labels,
    sharpen,
)
from rayfl.protocol import Model


@dataclass(frozen=True)
class Two(Global):
    """`model` is network A."""

    second: Ref


def warm_up(client: Client, *, a: Vector, b: Vector, method: DivideMix) -> Fitting[Out]:
    first = yield Fit(a, loss=method.loss)
    second = yield Fit(b, loss=method.loss)
    return Out(update={"a": first.weights, "b": second.weights})


def co_train(
    client: Client, *, a: Vector, b: Vector, ramp: float, method: DivideMix
) -> Fitting[Out]:
    """Every local epoch: divide by both, then train each on the other's division."""
    kept = []
    for _ in range(client.learner.training.epochs):
        clean_a = divide(judge(client, a).losses, method.mixture).clean
        clean_b = divide(judge(client, b).losses, method.mixture).clean
        a = yield from mix_match(client, a, b, clean_b, ramp, method)
        b = yield from mix_match(client, b, a, clean_a, ramp, method)
        kept.append(clean_b > method.threshold)
    return Out(update={"a": a, "b": b}, state={"kept": np.stack(kept)})


def mix_match(
    client: Client, w: Vector, peer: Vector, clean: Floats, ramp: float, method: DivideMix
) -> Fitting[Vector]:
    """One epoch over the labelled samples, each batch beside one of the unlabelled."""
    labelled = clean > method.threshold
    once = {"epochs": 1, "steps": None}
    if not labelled.any():
        trained = yield Fit(w, settings=once)
        return cast(Vector, trained.weights)
    other = Frozen(client, peer, "peer")
    unlabelled = SampleStream(client, keep=~labelled)
    augment = client.learner.training.augment
    trust = clean.astype(np.float32)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        views = [batch.x, batch.view(augment)]
        n = len(batch)
        with torch.no_grad():
            guess = average_guesses([net(x) for x in views])
            truth = encode_labels(batch.y, client.classes)
            rows = sharpen(refine_labels(truth, guess, batch.take(trust)), method.temperature)
            targets = [rows, rows]
            more = unlabelled.draw(n)
            if more is not None:
                guessed_views = [more.x, more.view(augment)]
                answers = [ask(x) for ask in (net, other) for x in guessed_views]
                rows = sharpen(average_guesses(answers), method.temperature)
                views += guessed_views
                targets += [rows, rows]
        stacked = torch.cat(views)
        x, mixed = mix_rows(
            stacked, torch.cat(targets), method.alpha, batch.generator, at_least_half=True
        )
        logits = net(x)
        value = soft_cross_entropy(logits[: 2 * n], mixed[: 2 * n]).mean()
        value = value + prior_divergence(logits)
        if more is None:
            return value
        # Averaged over the classes too.
        guessed = squared_error(logits[2 * n :], mixed[2 * n :]).mean() / client.classes
        return value + ramp * method.lambda_u * guessed

    trained = yield Fit(w, loss=loss, keep=labelled, settings=once)
    return cast(Vector, trained.weights)


@component
class DivideMix(FedAvg):
    """Two networks divide a client's samples for each other."""

    citation: ClassVar[str] = "Li et al., ICLR 2020"
    warmup: Natural = 10
    ramp: Positive = 16
    lambda_u: NonNegative = 25.0
    temperature: Positive = 0.5
    alpha: NonNegative = 4.0
    threshold: Fraction = 0.5
    mixture: LossMixture = LossMixture()

    def init(self, fleet: Fleet, model: Ref) -> Two:
        return Two(model, fleet.initial(1))

    def round(self, state: Global, fleet: Fleet, t: int) -> Two:
        cohort = fleet.sample(t)
        a = state.model
        b = cast(Two, state).second
        if t < self.warmup:
            got = fleet.map(warm_up, cohort, a=a, b=b, method=self)
        else:
            ramp = ramp_linearly(t, self.warmup, self.ramp)
            got = fleet.map(co_train, cohort, ramp=ramp, a=a, b=b, method=self)
        weights = self.weighting(got, fleet)
        return Two(got.mean(weights, "a"), got.mean(weights, "b"))

    def further_models(
        self, state: Global, fleet: Fleet, client: int | None = None
    ) -> dict[str, Model]:
        second = cast(Two, state).second
        return {"second": second, "both": (state.model, second)}
