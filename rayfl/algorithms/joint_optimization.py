"""Joint optimisation in federated averaging: networks and labels are fitted in turn.

D. Tanaka, D. Ikami, T. Yamasaki and K. Aizawa: "Joint optimization framework for learning with
noisy labels", CVPR 2018, eq. 3-8 and Algorithm 1, in the federated form of FedRN's comparison (Kim
et al., CIKM 2022). With s the softmax of a batch, p the prior of the classes and y~ the labels so
far

    L   = L_c + alpha L_p + beta L_e
    L_c = -mean_i sum_c y~_ic log s_ic,   L_p = -sum_c p_c log mean_i s_ic,
    L_e = -mean_i sum_c s_ic log s_ic

From round `warmup` on, every local epoch ends with new labels: y~_i becomes the mean of the last q
answers to sample i."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.arrays import Vector
from rayfl.component import Count, Natural, NonNegative, component
from rayfl.learn.answer_history import AnswerHistory
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.entropy import entropy, prior_cross_entropy
from rayfl.learn.relabel import relabel
from rayfl.learn.training import Training
from rayfl.protocol import Client, Fleet, Out


def fit_jointly(
    client: Client, *, w: Vector, renewing: bool, method: JointOptimization
) -> Fitting[Out]:
    """Local SGD on the labels so far, which every epoch's end renews."""
    labels = FittedLabels(client, method, renewing)
    trained = yield Fit(w, loss=labels.fit_network)
    labels.renew()
    return Out(update=trained.weights, state=labels.state)


class FittedLabels:
    """The labels of one client during a visit, and the answers that the next ones are made of.

    Parameters
    ----------
    client
        Whose labels; its state holds those of earlier visits.
    method
        The hyper-parameters.
    renewing
        Whether labels are renewed in this round.
    """

    def __init__(self, client: Client, method: JointOptimization, renewing: bool) -> None:
        self.client = client
        self.method = method
        self.renewing = renewing
        self.answers = AnswerHistory(client.state, len(client), method.queue, client.classes)
        self.rows: Vector | None = client.state.get("soft")
        self.prior = measure_prior(client) if method.prior == "local" else None
        self._epoch = 0

    def fit_network(self, net: nn.Module, batch: Batch) -> Tensor:
        """L on one batch; the answers are kept."""
        if batch.epoch != self._epoch:
            self.renew()
            self._epoch = batch.epoch
        logits = net(batch.x)
        self.answers.record(batch.index, logits.detach().softmax(-1).cpu().numpy())
        # The given labels themselves until they are renewed: FedAvg's loss, bit by bit.
        targets = batch.y if self.rows is None else batch.take(self.rows)
        loss = self.method.loss.mean(logits, targets)
        if self.method.alpha:
            loss = loss + self.method.alpha * prior_cross_entropy(logits, self.prior)
        if self.method.beta:
            loss = loss + self.method.beta * entropy(logits).mean()
        return loss

    def renew(self) -> None:
        """y~ of every sample that was answered to; the others keep theirs."""
        answered = self.answers.counts > 0
        if not self.renewing or not answered.any():
            return
        before = np.eye(self.client.classes)[self.client.y] if self.rows is None else self.rows
        means = average_answers(self.answers, self.method.divisor)
        if self.method.labels_are == "hard":
            means = np.eye(self.client.classes)[means.argmax(axis=1)]
        self.rows = np.where(answered[:, None], means, before).astype(np.float32)

    @property
    def state(self) -> dict[str, Any]:
        """What the client keeps: answers, labels, and for the experiment their likeliest class."""
        if self.rows is None:
            return dict(self.answers.state)
        likeliest = relabel(self.client, self.rows.argmax(axis=1))
        return {**self.answers.state, "soft": self.rows, **likeliest}


def average_answers(answers: AnswerHistory, divisor: Literal["filled", "length"]) -> Vector:
    """The mean of the last answers to each sample.

    Parameters
    ----------
    answers
        The last q of each.
    divisor
        As in `JointOptimization`.
    """
    given = np.full_like(answers.filled, answers.length) if divisor == "length" else answers.filled
    means: Vector = answers.rows.sum(axis=1) / np.maximum(given, 1)[:, None]
    return means


def measure_prior(client: Client) -> Tensor:
    """How often the client was given each class."""
    assert client.labels is not None
    counts = np.bincount(client.labels, minlength=client.classes)
    return torch.from_numpy(counts / counts.sum()).float()


@component
class JointOptimization(FedAvg):
    """Clients fit their labels to their network's answers while they train it on them."""

    citation: ClassVar[str] = "Tanaka et al., CVPR 2018"
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper's second stage, a new network trained on the final labels, is left out, as in "
        "FedRN's code.",
        "A mean is over the answers that there are; FedRN's code divides by q from the first one "
        "on, so that rows sum to less than 1 (divisor: length).",
        "L_c is the cross-entropy of the labels so far, where the paper has KL(y~ || s): the "
        "gradients are the same.",
        "L_p is the cross-entropy of the prior, which is the paper's divergence and a constant.",
        "A class that no sample of a batch is given counts with a probability of 1e-8.",
        "Answers that are not finite are not remembered.",
        "The prior is uniform also at a client that holds few of the classes, as in FedRN's code; "
        "prior: local takes the frequencies of its given labels.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "labels/corrected": "the share of samples whose likeliest class is not the given label",
        "labels/right_after": "the share of samples whose likeliest class is the true one",
    }

    alpha: NonNegative = 1.2
    """Weight of L_p. Paper: 1.2 under symmetric noise (0.8 asymmetric); FedRN: 1.2; neutral: 0."""
    beta: NonNegative = 0.8
    """Weight of L_e. Paper: 0.8 under symmetric noise (0.4 asymmetric); FedRN: 0.8; neutral: 0."""
    queue: Count = 15
    """q, how many answers to a sample are averaged, one a local epoch. Paper: 10; FedRN: 15."""
    warmup: Natural = 100
    """Rounds before the first new labels. Paper: 70 epochs; FedRN: 100 rounds. Neutral: all."""
    labels_are: Literal["soft", "hard"] = "soft"
    """The mean answer, or its likeliest class. Paper: soft is better; FedRN: soft."""
    prior: Literal["uniform", "local"] = "uniform"
    """p. Paper and FedRN: uniform, as their training sets are."""
    divisor: Literal["filled", "length"] = "filled"
    """What a sum of answers is divided by: their number, or q always (FedRN's code)."""

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        yield from warn_of_late_stage(
            "method.warmup",
            self.warmup,
            training.rounds,
            "no label is ever renewed",
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        cohort = fleet.sample(t)
        renewing = t >= self.warmup
        got = fleet.map(fit_jointly, cohort, w=state.model, renewing=renewing, method=self)
        return replace(state, model=self.aggregate(got, fleet))
