"""DivideMix in federated averaging: two networks divide a client's samples for each other, and
learn from the likely wrong ones as if they had no label.

J. Li, R. Socher and S. C. H. Hoi: "DivideMix: learning with noisy labels as semi-supervised
learning", ICLR 2020, Algorithm 1 and eq. 2-12, in the federated form of FedRN's comparison (Kim et
al., CIKM 2022). After a warm-up, in every local epoch and for each network:

    w_i   the posterior of the smaller mean, of a mixture on the *other* network's losses
    L     the samples with w_i > threshold, U the rest; batches of both, two views of each image
    y^    sharpen(w y + (1 - w) mean of this network's answers)           on L    (refinement)
    q     sharpen(mean of both networks' answers to both views)           on U    (guess)
    x'    lambda x1 + (1 - lambda) x2, targets alike, lambda ~ Beta(a, a), at least 1/2   (MixMatch)
    loss  = CE on L's rows + lambda_u(t) squared error on U's rows + KL(prior || mean answer)"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.algorithms.fedavg import Global
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.algorithms.parts.two_networks import TwoGlobals, TwoNetworks
from rayfl.arrays import Bools, Floats, Vector
from rayfl.component import Fraction, Natural, NonNegative, Positive, component
from rayfl.errors import ConfigError, broken
from rayfl.estimate.mixture import LossMixture
from rayfl.learn.batches import Batch
from rayfl.learn.copies import Frozen
from rayfl.learn.divide import divide
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.entropy import negative_entropy, prior_divergence
from rayfl.learn.losses.soft_cross_entropy import soft_cross_entropy
from rayfl.learn.losses.squared_error import squared_error
from rayfl.learn.mixing import average_guesses, encode_labels, mix_rows, refine_labels, sharpen
from rayfl.learn.sample_stream import SampleStream
from rayfl.learn.schedules import ramp_linearly
from rayfl.learn.training import Training
from rayfl.protocol import Client, Fleet, Out

Networks = Mapping[str, nn.Module]
ONCE = {"epochs": 1, "steps": None}
"""Settings of one local epoch."""


# -- at the client ---------------------------------------------------------------------------------


def warm_up(client: Client, *, a: Vector, b: Vector, method: DivideMix) -> Fitting[Out]:
    """A round of the warm-up: local SGD of both networks on all samples."""
    trained = yield Fit({"a": a, "b": b}, loss=method.learn_apart)
    return Out(update=trained.weights, state={"kept": np.ones(len(client), dtype=np.bool_)})


def co_train(client: Client, *, a: Vector, b: Vector, t: int, method: DivideMix) -> Fitting[Out]:
    """Every local epoch: divide by both, then train each on the other's division."""
    kept = []
    undivided = 0
    for _ in range(client.learner.training.epochs):
        of_a = co_divide(client, a, method)
        of_b = co_divide(client, b, method)
        a = yield from train_divided(client, a, b, of_b, t, method)
        b = yield from train_divided(client, b, a, of_a, t, method)
        kept.append(of_b.labelled)
        undivided += of_a.whole + of_b.whole
    state = {"kept": np.stack(kept)} if kept else {}
    return Out({"undivided": undivided}, update={"a": a, "b": b}, state=state)


@dataclass(frozen=True)
class Trust:
    """w, and which samples keep their label; all of them, without a doubt, where the losses bear no
    division."""

    weights: Floats
    labelled: Bools
    whole: bool


def co_divide(client: Client, w: Vector, method: DivideMix) -> Trust:
    """How far each label is to be trusted by the losses of one network."""
    found = divide(judge(client, w).losses, method.mixture, method.threshold)
    labelled = found.clean > method.threshold
    if len(client) < 2 or not found.usable or not found.separated or not labelled.any():
        everything = np.ones(len(client), dtype=np.bool_)
        return Trust(everything.astype(np.float64), everything, whole=True)
    return Trust(found.clean, labelled, whole=False)


def train_divided(
    client: Client, w: Vector, peer: Vector, trust: Trust, t: int, method: DivideMix
) -> Fitting[Vector]:
    """One epoch over the labelled samples, each batch beside one of the unlabelled."""
    if trust.whole:
        trained = yield Fit(w, loss=method.loss, settings=ONCE)
    else:
        loss = MixMatch(client, Frozen(client, peer, "peer"), trust, t, method)
        trained = yield Fit(w, loss=loss, keep=trust.labelled, settings=ONCE)
    return cast(Vector, trained.weights)


class MixMatch:
    """The loss of a labelled batch and as many unlabelled samples.

    Parameters
    ----------
    client
        Whose samples they are.
    peer
        The other network, which guesses too.
    trust
        How far each label is to be trusted.
    t
        The round.
    method
        The hyper-parameters.
    """

    def __init__(
        self, client: Client, peer: Frozen, trust: Trust, t: int, method: DivideMix
    ) -> None:
        self.peer = peer
        self.t = t
        self.method = method
        self.classes = client.classes
        self.augment = client.learner.training.augment
        self.weights = trust.weights.astype(np.float32)
        self.unlabelled = SampleStream(client, keep=~trust.labelled)
        self.batches = math.ceil(trust.labelled.sum() / client.learner.training.batch_size)
        self.prior = method.measure_prior(client)

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        views, labels = self.refine(net, batch)
        labelled = len(views) * len(batch)
        guessed, guesses = self.guess(net, len(batch))
        mixed, rows = mix_rows(
            torch.cat(views + guessed),
            torch.cat(labels + guesses),
            self.method.alpha,
            batch.generator,
            at_least_half=True,
        )
        logits = net(mixed)
        supervised = soft_cross_entropy(logits[:labelled], rows[:labelled]).mean()
        value = supervised + prior_divergence(logits, self.prior)
        if not guessed:
            return value
        # Averaged over the classes too.
        errors = squared_error(logits[labelled:], rows[labelled:]) / self.classes
        reached = self.t + batch.step_in_epoch / self.batches
        return value + self.method.weigh_guesses(reached) * errors.mean()

    @torch.no_grad()
    def refine(self, net: nn.Module, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Two views of a labelled batch, and its label for each: the given one as far as it is
        trusted."""
        views = [batch.x, batch.view(self.augment)]
        guess = average_guesses([net(x) for x in views])
        truth = encode_labels(batch.y, self.classes)
        refined = refine_labels(truth, guess, batch.take(self.weights))
        return views, [sharpen(refined, self.method.temperature)] * 2

    @torch.no_grad()
    def guess(self, net: nn.Module, size: int) -> tuple[list[Tensor], list[Tensor]]:
        """The same of at most so many unlabelled samples, whose labels both networks guess."""
        # Never a sample twice in a batch: of a few likely wrong ones, repeated, half of every
        # mixture would be made.
        least = min(size, len(self.unlabelled))
        more = self.unlabelled.draw(least) if least else None
        if more is None:
            return [], []
        views = [more.x, more.view(self.augment)]
        guess = average_guesses([ask(x) for ask in (net, self.peer) for x in views])
        return views, [sharpen(guess, self.method.temperature)] * 2


# -- at the server ---------------------------------------------------------------------------------


@component
class DivideMix(TwoNetworks):
    """Two networks divide each client's samples for each other; likely wrong labels are guessed
    anew."""

    citation: ClassVar[str] = "Li et al., ICLR 2020"
    deviations: ClassVar[tuple[str, ...]] = (
        "lambda_u grows with rounds, and the warm-up counts rounds, as in FedRN's code; the "
        "paper's count epochs.",
        "Losses for the mixture are taken without augmentation; the mixture starts from 2-means.",
        "Where the losses bear no division (fewer than two samples, equal or infinite losses, "
        "nobody above the threshold) an epoch is plain training on all samples; FedRN's code "
        "stops with an error.",
        "A batch has at most as many unlabelled samples as there are: none occurs twice in it.",
        "L_U is a mean over the classes too, as in both codes; the paper's eq. 10 sums over them.",
        "A sample is labelled if w > threshold, as in the authors' code; in the paper if w >= tau.",
        "Both networks warm up on the same batches; the authors' code shuffles for each.",
        "Both networks are averaged by size; network a is the answer, b is tested as `second`, the "
        "mean of both as `both`. The paper answers with both.",
        "The prior is uniform also at a client that holds few of the classes, as in FedRN's code; "
        "prior: local takes the frequencies of its given labels.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "dividemix/undivided": "how often a client's losses bore no division, of two a local epoch "
        "and client; from the first round after the warm-up on",
        "dividemix/lambda_u": "the weight of the guessed samples at the beginning of the round",
        "labels/precision": "of the samples that network a takes as labelled, the share labelled "
        "right: the mean over a client's local epochs, and over clients",
        "labels/recall": "of the samples that are labelled right, the share that a takes so",
    }

    warmup: Natural = 100
    """Rounds of plain training first. Paper: 10 epochs (CIFAR-10), 30 (CIFAR-100); FedRN: 100
    rounds. Neutral: all."""
    ramp: Natural = 16
    """Rounds over which lambda_u grows to its full size. Paper: 16 epochs; FedRN: 16 rounds."""
    lambda_u: NonNegative = 25.0
    """Weight of the guessed samples. Paper: one of 0, 25, 50 and 150, by the noise; FedRN: 25. Of
    weak guesses, or with fewer classes than ten (it is divided by their number), so large a weight
    draws all answers to one class: 5 is safer on small sets."""
    temperature: Positive = 0.5
    """T of sharpening. Paper and FedRN: 0.5; neutral: 1."""
    alpha: NonNegative = 4.0
    """a of the beta distribution. Paper and FedRN: 4; neutral: 0, nothing is mixed."""
    threshold: Fraction = 0.5
    """Probability of being clean above which a label is kept. Paper: 0.5 (0.6 at 90 % noise);
    FedRN: 0.5."""
    prior: Literal["uniform", "local"] = "uniform"
    """What the mean answer is drawn to. Paper and FedRN: uniform, as their training sets are."""
    penalty: NonNegative = 0.0
    """Weight of the confidence penalty of the warm-up. Paper: 1 under asymmetric noise, else 0;
    FedRN: 0."""
    mixture: LossMixture = LossMixture()
    """Fit of the two Gaussians. The defaults are those of both codes, but for max_iter: 10 in the
    paper's."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        if fleet.training.steps is not None:
            rule = "DivideMix divides anew in every local epoch, and counts these"
            got = f"training.steps {fleet.training.steps}"
            raise ConfigError(broken(rule, got, "Set training.epochs instead."))

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        yield from warn_of_late_stage(
            "method.warmup",
            self.warmup,
            training.rounds,
            "no sample is ever taken for noisy",
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> TwoGlobals:
        cohort = fleet.sample(t)
        second = cast(TwoGlobals, state).second
        if t < self.warmup:
            got = fleet.map(warm_up, cohort, a=state.model, b=second, method=self)
        else:
            got = fleet.map(co_train, cohort, a=state.model, b=second, t=t, method=self)
            undivided = float(sum(report["undivided"] for report in got.values()))
            weight = self.weigh_guesses(t)
            fleet.log(**{"dividemix/undivided": undivided, "dividemix/lambda_u": weight})
        return self.aggregate_both(got, fleet)

    def weigh_guesses(self, t: float) -> float:
        """lambda_u(t)."""
        return self.lambda_u * ramp_linearly(t, self.warmup, self.ramp)

    def learn_apart(self, nets: Networks, batch: Batch) -> Tensor:
        """The loss of the warm-up: both networks on the same batch."""
        first, second = (nets[name](batch.x) for name in ("a", "b"))
        value = self.loss.mean(first, batch.y) + self.loss.mean(second, batch.y)
        if self.penalty:
            certainty = negative_entropy(first).mean() + negative_entropy(second).mean()
            value = value + self.penalty * certainty
        return value

    def measure_prior(self, client: Client) -> Tensor | None:
        """What the mean answer is drawn to; None for uniform."""
        if self.prior == "uniform":
            return None
        return torch.from_numpy(client.class_counts / len(client)).float()
