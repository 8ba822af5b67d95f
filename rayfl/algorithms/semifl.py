"""SemiFL: labels at the server, guesses at the clients, in turn.

E. Diao, J. Ding and V. Tarokh: "SemiFL: semi-supervised federated learning for unlabeled clients
with alternate training", NeurIPS 2022.

    clients   once a round, by the global model on weak views: y = argmax p, sure where max p >= tau
              D_fix: the sure ones;  D_mix: as many draws with replacement
              L = CE(y_fix, f(strong(x_fix)))
                  + lam CE(y_fix, f(x_mix)) + (1 - lam) CE(y_mix, f(x_mix))
              x_mix = lam weak(x_fix) + (1 - lam) weak(x_mix),  lam ~ Beta(a, a)
    server    v <- beta_g v + (W - mean);  W <- W - v;  then its own epochs on its labels
    both      BatchNorm statistics are measured anew after each round (static BatchNorm)

The weak view is what `training.augment` makes of an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np

from rayfl.algorithms.parts.alternate_training import AlternateTraining, Moving
from rayfl.algorithms.parts.fix_and_mix import fix_and_mix
from rayfl.component import NonNegative, Positive, component, slot
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.strong import Strong
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Vector


def train_on_guesses(client: Client, *, w: Vector, method: SemiFL) -> Fitting[Out]:
    """A client's epochs on what the global model is sure of."""
    judged = judge(client, w, client.learner.training.augment)
    sure = judged.confidence >= method.threshold
    if not sure.any():
        return Out({"sure": 0})
    guessed = client.on(client.x, judged.predicted)
    mixed = sure if method.mixed == "sure" else np.ones_like(sure)
    loss = fix_and_mix(guessed, sure, mixed, method.beta, method.strong)
    trained = yield Fit(
        w,
        loss=loss,
        client=guessed,
        keep=sure,
        clip=method.clip,
        memory=client.state.get("optimiser"),
        remember=method.persist,
    )
    state = {"optimiser": trained.memory} if method.persist else {}
    return Out({"sure": int(sure.sum())}, update=trained.weights, state=state)


@component
class SemiFL(AlternateTraining):
    """Clients train on the labels that the global model guesses, the server on its own, in turn."""

    citation: ClassVar[str] = "Diao et al., NeurIPS 2022"
    metrics: ClassVar[Mapping[str, str]] = {
        **AlternateTraining.metrics,
        "pseudo/valid": "clients that were sure of an image, and count",
        "pseudo/sure": "share of the participants' images whose guess is sure",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "What is mixed in comes from the images that the model is sure of; the released code draws "
        "it from all of them, sure or not (mixed: all).",
        "BatchNorm statistics are those of the server and of the round's clients, whom a round "
        "visits anyway; the code passes over everybody's images (statistics: all).",
        "In a round of the server's own pre-training the statistics are the server's.",
        "Batches are the run's; the code has 10 at clients, and 250 or 10 at the server.",
        "The learning rate is constant; the code anneals it by a cosine over 800 rounds.",
        "D_mix is drawn once a visit, not in every epoch.",
    )
    threshold: NonNegative = 0.95
    """tau. Paper: 0.95; above 1 only the server trains."""
    beta: NonNegative = 0.75
    """a, of the share's distribution. Paper: 0.75; 0 mixes nothing."""
    mixed: Literal["sure", "all"] = "sure"
    """Which images D_mix is drawn from."""
    clip: Positive | None = 1.0
    """Largest norm of a gradient. Code: 1."""
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong(n=2, m=10)
    """The strong view; the weak one is `training.augment`'s."""

    def train_clients(
        self, state: Moving, fleet: Fleet, cohort: list[ClientId]
    ) -> tuple[Ref, Ref | None]:
        """W and v after the clients: those that were sure of something count the same."""
        got = fleet.map(train_on_guesses, cohort, w=state.model, method=self)
        valid = {client: 1.0 for client, report in got.items() if report["sure"]}
        sure = sum(report["sure"] for report in got.values())
        share = sure / sum(fleet.size(client) for client in got)
        fleet.log(**{"pseudo/valid": float(len(valid)), "pseudo/sure": share})
        if not valid:
            return state.model, state.v
        return self.move(fleet, state, got.mean(valid))
