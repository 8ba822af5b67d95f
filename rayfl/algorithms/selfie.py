"""SELFIE in federated averaging: samples of small loss are trained on, and so are those whose
answers have been the same for long, under that answer as their label.

H. Song, M. Kim and J.-G. Lee: "SELFIE: refurbishing unclean samples for robust deep learning", ICML
2019, Algorithm 1, in the federated form of FedRN's comparison (Kim et al., CIKM 2022). After a
warm-up, for every mini-batch B

    clean          the ceil((1 - tau) |B|) samples of smallest loss by their given labels
    F(i)           -1/log C sum_c f_c log f_c,   f the frequencies of i's last q answers
    refurbishable  F(i) <= eps; the label becomes the commonest answer, for good

and the loss is that of the clean and the refurbished ones; the others are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import xlogy
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.arrays import Floats, Ints, Vector
from rayfl.component import Count, Fraction, Natural, NonNegative, component
from rayfl.learn.answer_history import AnswerHistory
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.small_loss import select_small_losses
from rayfl.learn.relabel import relabel
from rayfl.learn.selection import Selection
from rayfl.learn.training import Training
from rayfl.protocol import Client, Fleet, Out

NOT_YET = -1
"""In the place of a label: this sample was never refurbished."""


def train_and_watch(client: Client, *, w: Vector, method: Selfie) -> Fitting[Out]:
    """A round of the warm-up: local SGD on all samples, whose answers are remembered."""
    visit = Refurbishing(client, method)
    trained = yield Fit(w, loss=visit.train_on_all, targets=client.labels)
    return Out(update=trained.weights, state=visit.state)


def train_on_refurbished(client: Client, *, w: Vector, method: Selfie) -> Fitting[Out]:
    """Local SGD on the clean and the refurbished samples of every batch."""
    visit = Refurbishing(client, method)
    trained = yield Fit(w, loss=visit.train_on_chosen, targets=client.labels)
    assert client.labels is not None
    labels = np.where(visit.refurbished == NOT_YET, client.labels, visit.refurbished)
    state = {**visit.state, **visit.chosen.state, **relabel(client, labels)}
    return Out(update=trained.weights, state=state)


class Refurbishing:
    """What is known of the labels of one client during a visit.

    Parameters
    ----------
    client
        Whose; its state holds what earlier visits found.
    method
        The hyper-parameters.
    """

    def __init__(self, client: Client, method: Selfie) -> None:
        self.client = client
        self.method = method
        self.answers = AnswerHistory(client.state, len(client), method.queue)
        never = np.full(len(client), NOT_YET)
        self.refurbished: Ints = np.array(client.state.get("refurbished", never))
        self.chosen = Selection(len(client))

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """What the client keeps until its next visit."""
        return {**self.answers.state, "refurbished": self.refurbished}

    def train_on_all(self, net: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch in the warm-up."""
        logits = net(batch.x)
        self._remember(batch, logits)
        return self.method.loss.mean(logits, batch.y)

    def train_on_chosen(self, net: nn.Module, batch: Batch) -> Tensor | None:
        """The loss of the clean and the refurbished samples of a batch."""
        with torch.no_grad():
            logits = net(batch.x)
        # This answer counts already, as in FedRN's code.
        self._remember(batch, logits)
        losses = self.method.loss(logits, batch.y)
        clean = select_small_losses(losses, 1 - self.method.tau, "up")
        self._refurbish(batch.index)
        labels = batch.take(self.refurbished)
        kept = labels != NOT_YET
        kept[clean] = True
        at = kept.nonzero().ravel()
        if len(at) < self.client.learner.smallest_batch:
            return None
        self.chosen.note(batch, at)
        targets = torch.where(labels == NOT_YET, batch.y, labels)
        # Passed forward once more: with batch statistics, the samples that are left out count too.
        return self.method.loss.mean(net(batch.x[at]), targets[at])

    def _remember(self, batch: Batch, logits: Tensor) -> None:
        self.answers.record(batch.index, logits.detach().argmax(-1).cpu().numpy())

    def _refurbish(self, index: Ints) -> None:
        """New labels for the samples that are answered to in one way."""
        if self.method.eps is None:
            return
        shares = measure_shares(self.answers.rows[index], self.client.classes)
        sure = measure_uncertainty(shares) <= self.method.eps
        if self.method.unfilled == "wait":
            sure &= self.answers.filled[index] == self.method.queue
        self.refurbished[index[sure]] = shares[sure].argmax(axis=1)


def measure_shares(answers: Ints, classes: int) -> Floats:
    """f: how often each class was the answer, (N, C).

    Parameters
    ----------
    answers
        The last q classes of each sample, (N, q).
    classes
        C.
    """
    counts = (answers[:, :, None] == np.arange(classes)).sum(axis=1)
    shares: Floats = counts / answers.shape[1]
    return shares


def measure_uncertainty(shares: Floats) -> Floats:
    """F: the entropy of each row over that of the uniform one, (N,), in [0, 1].

    Parameters
    ----------
    shares
        f, (N, C).
    """
    uncertainty: Floats = -xlogy(shares, shares).sum(axis=1) / np.log(shares.shape[1])
    return uncertainty


@component
class Selfie(FedAvg):
    """Clients train on samples of small loss, and on others under labels that the network has
    given them again and again."""

    citation: ClassVar[str] = "Song et al., ICML 2019"
    deviations: ClassVar[tuple[str, ...]] = (
        "A sample is refurbished after q answers at the earliest; in FedRN's code a history starts "
        "full of answers for class 0 (unfilled: class_0).",
        "The answer of this pass counts in the history that judges it, as in FedRN's code; the "
        "paper's own counts it from the next pass on.",
        "There are no restarts, as in FedRN's code.",
        "tau is one number for all clients, FedRN's way; the paper estimates it.",
        "Of equally common answers the smallest class is the label.",
        "A batch of which fewer samples are left than the network can train on takes no step.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "labels/precision": "of the samples that are trained on, the share whose given label is "
        "right: the mean over a client's local epochs, and over clients",
        "labels/recall": "of the samples whose given label is right, the share trained on",
        "labels/corrected": "the share of samples whose label was replaced",
        "labels/correction_accuracy": "of the replaced labels, the share that is right now",
    }

    tau: Fraction = 0.2
    """The share that is not clean by its loss. Paper: the noise rate; FedRN's code: 0.2; the mean
    rates of FedRN's settings: 0.2 (0.0-0.4) and 0.4 (0.0-0.8). Neutral: 0."""
    eps: NonNegative | None = 0.05
    """Largest uncertainty of a refurbishable sample. Paper and FedRN: 0.05, which with q = 15 means
    one answer only, for up to 134 classes. Neutral: null, nothing is refurbished."""
    queue: Count = 15
    """q, how many answers to a sample are remembered, one a local epoch. Paper and FedRN: 15."""
    warmup: Natural = 100
    """Rounds of federated averaging first. Paper: 25 epochs; FedRN: 100 rounds. Neutral: all."""
    unfilled: Literal["wait", "class_0"] = "wait"
    """What a sample without q answers is: not refurbishable, or answered with class 0 before."""

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        yield from warn_of_late_stage(
            "method.warmup",
            self.warmup,
            training.rounds,
            "no label is ever refurbished",
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        phase = train_and_watch if t < self.warmup else train_on_refurbished
        got = fleet.map(phase, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=self.aggregate(got, fleet))
