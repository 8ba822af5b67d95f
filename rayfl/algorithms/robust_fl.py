"""Robust FL: clients and server agree on a centroid of each class, and labels are held against
them.

S. Yang, H. Park, J. Byun and C. Kim: "Robust federated learning with noisy labels", IEEE
Intelligent Systems 2022 (arXiv 2012.01700), Algorithm 1. With phi(x) the features, F_c the global
centroids, f_c those of a client, yhat what the received model answers, and for every mini-batch

    I     the (1 - R_t) b samples of smallest loss
    ytil  argmax_c cos(f_c, phi(x)),   agree = [ytil = y]
    z     y where they agree (and everywhere before round `warmup`), else yhat
    L     = mean_I CE(z) + lambda_cen(t) mean_I agree ||phi(x) - f_y||^2 / d + lambda_e mean_I H(p)
    f_c   <- (1 - s^2) f_c + s^2 fhat_c,   s = cos(f_c, fhat_c),   fhat_c the mean feature of c in I

The server averages models by size, and centroids by how much they are like its own:

    F_c   <- sum_k cos(F_c, f_kc) f_kc / sum_k cos(F_c, f_kc)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.arrays import Floats, Ints, Vector
from rayfl.component import Count, Fraction, NonNegative, component
from rayfl.errors import ConfigError, broken
from rayfl.learn.batches import Batch
from rayfl.learn.fit import compute_outputs
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import BatchLoss, Fit, Fitting
from rayfl.learn.losses.entropy import entropy
from rayfl.learn.losses.small_loss import select_small_losses
from rayfl.learn.schedules import forget_rate
from rayfl.learn.selection import Selection
from rayfl.learn.training import Training
from rayfl.models.network import Network
from rayfl.protocol import REPORT_LIMIT, Blueprint, Client, Fleet, Out, Ref, Report

NOBODY = 1e-8
"""A sum of likenesses below this is no vote."""


def _no_centroids() -> Vector:
    return np.zeros((0, 0), np.float32)


@dataclass(frozen=True)
class Centred(Global):
    """The global model, and F: (C, d), a row of zeros for a class that nobody has held yet; without
    rows before the first round."""

    centroids: Vector = field(default_factory=_no_centroids)


@dataclass(frozen=True)
class RoundSettings:
    """What changes from round to round: R_t, lambda_cen(t), and whether yhat may replace a
    label."""

    forget: float
    pull: float
    guessing: bool


# -- at the client ---------------------------------------------------------------------------------


def train_with_centroids(
    client: Client, *, w: Vector, centroids: Vector, settings: RoundSettings, method: RobustFL
) -> Fitting[Out]:
    """Local SGD on L; the client's centroids follow its features."""
    start = centroids if len(centroids) else average_features(client, w)
    local = LocalCentroids(torch.from_numpy(np.array(start)).to(client.learner.device))
    guesses = judge(client, w).predicted if settings.guessing else client.y
    chosen = Selection(len(client))
    loss = compare_with_centroids(local, guesses, chosen, settings, method)
    trained = yield Fit(w, loss=loss)
    report = {"centroids": local.rows.cpu().numpy(), "held": client.class_counts}
    return Out(report, update=trained.weights, state=chosen.state)


def average_features(client: Client, w: Vector) -> Vector:
    """The mean feature of every class by the given labels, (C, d); zeros for classes that the
    client does not hold."""
    features = compute_outputs(client.learner, w, client.x, read=read_features)
    sums = np.zeros((client.classes, features.shape[1]))
    np.add.at(sums, client.y, features)
    means: Vector = (sums / np.maximum(client.class_counts, 1)[:, None]).astype(np.float32)
    return means


def read_features(net: nn.Module, x: Tensor) -> Tensor:
    """phi."""
    return cast(Network, net).features(x)


class LocalCentroids:
    """f, the centroids of one client while it trains.

    Parameters
    ----------
    rows
        (C, d); zeros for classes without a centroid.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @torch.no_grad()
    def find_nearest(self, features: Tensor) -> Tensor:
        """ytil, the class of the most similar centroid, (N,); -1 where there is none at all."""
        likeness = functional.cosine_similarity(features[:, None], self.rows[None], dim=-1)
        known = self.rows.any(dim=1)
        nearest = likeness.masked_fill(~known, -torch.inf).argmax(dim=1)
        return nearest if known.any() else torch.full_like(nearest, -1)

    @torch.no_grad()
    def follow(self, features: Tensor, y: Tensor) -> None:
        """f_c <- (1 - s^2) f_c + s^2 fhat_c for the classes that occur; a class without a centroid
        gets fhat_c."""
        held = functional.one_hot(y, len(self.rows)).to(features)
        counts = held.sum(0)
        means = held.T @ features / counts.clamp(min=1)[:, None]
        share = functional.cosine_similarity(self.rows, means, dim=1).square()
        # The cosine with a row of zeros is 0: left to the formula, it would stay zeros for ever.
        share = torch.where(self.rows.any(dim=1), share, 1.0)[:, None]
        moved = (1 - share) * self.rows + share * means
        self.rows = torch.where(counts[:, None] > 0, moved, self.rows)


def compare_with_centroids(
    local: LocalCentroids,
    guesses: Ints,
    chosen: Selection,
    settings: RoundSettings,
    method: RobustFL,
) -> BatchLoss:
    """L of a batch; afterwards the centroids follow its features."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        network = cast(Network, net)
        every = network.features(batch.x)
        answers = network.head(every)
        small = select_small_losses(method.loss(answers, batch.y), 1 - settings.forget)
        # In the order of the batch: where nothing is left out, this is FedAvg's mean, bit by bit.
        easy = small.sort().values
        chosen.note(batch, easy)
        features, logits, y = every[easy], answers[easy], batch.y[easy]
        agree = local.find_nearest(features.detach()) == y
        value = method.loss.mean(logits, torch.where(agree, y, batch.take(guesses)[easy]))
        if settings.pull:
            value = value + settings.pull * method.measure_distance(features, local.rows[y], agree)
        if method.lambda_e:
            value = value + method.lambda_e * entropy(logits).mean()
        local.follow(features.detach(), y)
        return value

    return loss


# -- at the server ---------------------------------------------------------------------------------


def merge_centroids(before: Vector, reports: Iterable[Report]) -> Vector:
    """F from the centroids of the participants that hold each class.

    Parameters
    ----------
    before
        F so far, (C, d); zeros for classes that nobody has held, or no rows at all.
    reports
        `centroids` (C, d) and `held` (C,) of each participant.
    """
    reported = list(reports)
    local: Floats = np.stack([report["centroids"] for report in reported]).astype(np.float64)
    held = np.stack([report["held"] for report in reported])
    known = before.astype(np.float64) if len(before) else np.zeros(local.shape[1:])
    votes = np.isfinite(local).all(axis=2) & (held > 0)
    local[~votes] = 0.0
    # Of a class that the server does not know, every sample has the same say.
    likeness = np.where(known.any(axis=1), np.maximum(_compare(known, local), 0.0), held) * votes
    total = likeness.sum(axis=0)[:, None]
    means = (likeness[:, :, None] * local).sum(axis=0) / np.maximum(total, NOBODY)
    return np.where(total < NOBODY, known, means).astype(np.float32)


def _compare(known: Floats, local: Floats) -> Floats:
    """cos(F_c, f_kc), (K, C); 0 for a row of zeros."""
    lengths = np.linalg.norm(known, axis=1) * np.linalg.norm(local, axis=2)
    products = (known * local).sum(axis=2)
    cosines: Floats = products / np.where(lengths > 0, lengths, 1.0)
    return cosines


@component
class RobustFL(FedAvg):
    """Clients trust labels of small loss that agree with centroids of the classes, which they and
    the server exchange."""

    citation: ClassVar[str] = "Yang et al., IEEE Intelligent Systems 2022"
    deviations: ClassVar[tuple[str, ...]] = (
        "The gradient of the distance to a centroid reaches the network; in all released code, "
        "FedRN's included, features are cut off, and the term moves nothing (detach_features).",
        "The distance is a mean over samples and features, the same weight at any width; released "
        "code takes the sum over both (cen_reduce: sum). Summed over features alone (samples) it "
        "drowned the cross-entropy on small sets: all answers were one class.",
        "The first global centroids are the means of the participants' weighted by samples; "
        "released code draws them at random, and weighs by likeness to that.",
        "A class without a centroid is nobody's nearest, and gets its first mean as it is; in "
        "released code it gets zeros, which no update can leave again.",
        "Participants vote on classes that they hold, for which they report how many samples they "
        "have of each; likenesses below 0 count nothing; without votes a centroid stays.",
        "The answers yhat of a round are asked for in one pass, and only where they are used.",
        "One sample of every batch is kept at least.",
        "T_k, T_pl and the ramp of lambda_cen are one number, as in FedRN's settings.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "robust_fl/forget_rate": "R_t, the share of every batch that is left out",
        "robust_fl/known_classes": "how many classes have a global centroid",
        "labels/precision": "of the samples of small loss, the share labelled right: the mean over "
        "a client's local epochs, and over clients",
        "labels/recall": "of the samples that are labelled right, the share of small loss",
    }

    tau: Fraction = 0.2
    """The share that is left out in the end. Paper: the noise rate; FedRN's code: 0.2; the mean
    rates of FedRN's settings: 0.2 (0.0-0.4) and 0.4 (0.0-0.8). Neutral: 0."""
    warmup: Count = 100
    """T_pl = T_k: rounds until yhat may replace labels; R_t and lambda_cen grow until then. FedRN:
    100 of 500."""
    lambda_cen: NonNegative = 1.0
    """Weight of the distance to the centroid, in the end. Paper and FedRN: 1; neutral: 0."""
    lambda_e: NonNegative = 0.8
    """Weight of the entropy. Paper and FedRN: 0.8; neutral: 0."""
    detach_features: bool = False
    """Cut the gradient of the distance off, as released code does."""
    cen_reduce: Literal["mean", "samples", "sum"] = "mean"
    """Mean of the squares over samples of small loss and features, mean over the samples alone, or
    their sum, as released code has it."""

    def network(self, blueprint: Blueprint) -> nn.Module:
        network = blueprint()
        if not isinstance(network, Network):
            rule = "Robust FL compares features, which a rayfl.models.network.Network has"
            raise ConfigError(broken(rule, type(network).__name__, "Choose another model."))
        size = 4 * blueprint.classes * network.feature_dim
        if size > REPORT_LIMIT // 2:
            rule = f"centroids of all classes take less than {REPORT_LIMIT // 2:,} bytes"
            got = f"{size:,} ({blueprint.classes} classes of {network.feature_dim} features)"
            raise ConfigError(broken(rule, got, "Choose a model with fewer features."))
        return network

    def init(self, fleet: Fleet, model: Ref) -> Centred:
        return Centred(model)

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        yield from warn_of_late_stage(
            "method.warmup",
            self.warmup,
            training.rounds,
            "no label is ever guessed",
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> Centred:
        before = cast(Centred, state).centroids
        settings = self.settings(t)
        got = fleet.map(
            train_with_centroids,
            fleet.sample(t),
            w=state.model,
            centroids=before,
            settings=settings,
            method=self,
        )
        after = merge_centroids(before, got.values())
        known = float(after.any(axis=1).sum())
        fleet.log(**{"robust_fl/forget_rate": settings.forget, "robust_fl/known_classes": known})
        return Centred(self.aggregate(got, fleet), after)

    def settings(self, t: int) -> RoundSettings:
        """What round t is played with."""
        forget = forget_rate(t, self.tau, self.warmup)
        pull = self.lambda_cen * min((t + 1) / self.warmup, 1.0)
        return RoundSettings(forget, pull, guessing=t >= self.warmup)

    def measure_distance(self, features: Tensor, centroids: Tensor, agree: Tensor) -> Tensor:
        """L_cen of the samples of small loss."""
        compared = features.detach() if self.detach_features else features
        squares = (compared - centroids).square() * agree[:, None]
        if self.cen_reduce == "mean":
            return squares.mean()
        distances = squares.sum(1)
        return distances.mean() if self.cen_reduce == "samples" else distances.sum()
