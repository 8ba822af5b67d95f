"""FedNoRo: noisy clients are found by their losses class by class, taught by the global model,
and count by their distance from the clean ones.

N. Wu, L. Yu, X. Jiang, K.-T. Cheng and Z. Yan: "FedNoRo: towards noise-robust federated learning by
addressing class imbalance and label noise heterogeneity", IJCAI 2023; code: wnn2000/FedNoRo.

Stage 1, rounds 0 to T_1 - 1: federated averaging with logit adjustment by the shares of the
client's own labels, pi_k(c) = n_k^c / n_k,

    L_LA = CE(z + log pi_k, y)

Detection, once: M_kc is the mean cross-entropy of the global model on client k's samples of label
c. Gaps are filled by the least value of their column, columns scaled to [0, 1]; of nine mixtures of
two Gaussians on the rows, the split that most of them find counts. Noisy is the component whose
mean has the larger sum.

Stage 2: clean clients go on with L_LA; noisy ones train with

    L = w KL(softmax(z_t / 0.8) || softmax(z + log pi_k)) + (1 - w) L_LA
    w(t) = a exp(-5 (1 - (t - begin) / (end - begin))^2)

where z_t are the logits of the global model that they received. Models are averaged with weights
n_k exp(-d_k / max d), d_k the distance from the round's nearest clean client and 0 for a clean one:
the weighting `distance`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, cast

import numpy as np
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.distance_weighting import ByDistance
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.algorithms.parts.weighting import WEIGHTINGS, Weighting
from rayfl.arrays import Bools, Floats
from rayfl.component import Count, Fraction, Natural, NonNegative, Positive, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.estimate.gaussian_mixture import GaussianMixture
from rayfl.estimate.scaling import average_by_class, fill_and_scale
from rayfl.learn.batches import Batch
from rayfl.learn.copies import Frozen
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.distillation import kl_divergence, soften
from rayfl.learn.losses.logit_adjustment import adjust_logits, log_prior
from rayfl.learn.schedules import ramp_exponentially
from rayfl.learn.training import Training
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Vector

LARGEST = 1e6
"""In the place of a loss that is not finite: its client looks noisy, and the mixture can be
fitted."""


@dataclass(frozen=True)
class Detected(Global):
    """The global model, and from stage 2 on who was found to be noisy."""

    noisy: tuple[ClientId, ...] | None = None


# -- at the client ---------------------------------------------------------------------------------


def train_adjusted(
    client: Client, *, w: Vector, method: FedNoRo, weight: float | None = None
) -> Fitting[Out]:
    """Local SGD with logit adjustment; a noisy client, which is told w(t), is also taught by the
    model that it received."""
    prior = log_prior(client.class_counts)
    teacher = Frozen(client, w, "teacher") if weight else None

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        logits = adjust_logits(net(batch.x), prior, method.tau)
        own = method.loss.mean(logits, batch.y)
        if teacher is None or weight is None:
            return own
        answers = soften(teacher(batch.x), method.temperature)
        return weight * kl_divergence(answers, logits).mean() + (1 - weight) * own

    trained = yield Fit(w, loss=loss)
    return Out({"_noisy": weight is not None}, update=trained.weights)


def average_losses(client: Client, *, w: Vector) -> Out:
    """A row of M: the mean loss of each label that the client has; no logit adjustment here."""
    losses = np.nan_to_num(judge(client, w).losses, nan=LARGEST, posinf=LARGEST)
    return Out({"losses": average_by_class(losses, client.y, client.classes)})


# -- at the server ---------------------------------------------------------------------------------


def find_noisy(table: Floats, rng: np.random.Generator, fits: int = 9) -> Bools:
    """Which rows of M most of the mixtures call noisy; of equals, the split that was found first.

    Parameters
    ----------
    table
        M, one row a client and one column a class; nan where a client lacks the class.
    rng
        What the starts of the mixtures are drawn from.
    fits
        How many mixtures vote.

    Examples
    --------
    >>> losses = np.array([[0.1, 0.2], [1.9, 2.1], [0.2, 0.1], [2.2, np.nan], [0.1, 0.1]])
    >>> find_noisy(losses, np.random.default_rng(0)).tolist()
    [False, True, False, True, False]
    """
    rows = fill_and_scale(table)
    # Components are in the order of their means' sums: the second one is the noisy one.
    votes = [GaussianMixture().fit(rows, rng).labels.tolist() for _ in range(fits)]
    return np.array(max(votes, key=votes.count), dtype=bool)


@component
class FedNoRo(FedAvg):
    """A warm-up with logit adjustment; then noisy clients are found, taught by the global model,
    and count by their distance from clean ones."""

    citation: ClassVar[str] = "Wu et al., IJCAI 2023"
    deviations: ClassVar[tuple[str, ...]] = (
        "The losses for the detection are taken without augmentation, as a client's statistic has "
        "less variance then; the authors' code augments.",
        "Where a round has no clean or no noisy client, clients count by size; the authors' code "
        "divides 0 by 0, and a fork of it, with which local K-similarity's tables were made, adds "
        "1e-4 above and below.",
        "That fork looks up a client's model by its place in the list of noisy (or clean) clients "
        "instead of in the round, so that distances are those of other models, and 0 for all where "
        "no more clients are noisy than clean. `weighting: {name: distance, misplaced: true}` "
        "does the same.",
        "A class that no client has is left out of the detection, a column without spread is 0; "
        "the authors' code divides 0 by 0.",
        "Mixtures start from k-means on streams of the run, in place of the seeds 0 to 8.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "noisy/noise_correlation": "Pearson's correlation of the verdict (1: noisy) with clients' "
        "true share of wrong labels; in the round of the detection",
        "fednoro/noisy": "how many clients were found to be noisy; in the round of the detection",
        "fednoro/teaching": "w(t), the weight of the global model's answers, in stage 2",
        "fednoro/taught": "how many of the round's participants were taught, in stage 2",
    }

    warmup: Natural = 10
    """T_1, rounds of stage 1. Authors' code: 10; local K-similarity: 50."""
    begin: Natural = 10
    """Round, counted from the run's first, at which the ramp of w begins. Authors' code: 10, also
    where T_1 is 50 (local K-similarity): w is a in all of stage 2 then."""
    end: Natural = 49
    """Round from which on w is a. Authors' code: 49."""
    a: Fraction = 0.8
    """Largest weight of the global model's answers. Paper: 0.8; 0 leaves L_LA."""
    temperature: Positive = 0.8
    """Of the global model's answers. Paper: 0.8."""
    tau: NonNegative = 1.0
    """Strength of the logit adjustment. Paper: 1. Neutral: 0, with `warmup` for the whole run."""
    fits: Count = 9
    """Mixtures that vote. Authors' code: 9."""
    weighting: Annotated[Weighting, slot(WEIGHTINGS)] = ByDistance()
    """`distance` (the paper's, DaAgg); `size` leaves distances out."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        if len(fleet.clients) < 2:
            rule = "a mixture of clean and noisy clients takes two clients or more"
            raise ConfigError(broken(rule, len(fleet.clients), "Set clients."))

    def init(self, fleet: Fleet, model: Ref) -> Detected:
        return Detected(model)

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        yield from warn_of_late_stage(
            "method.warmup",
            self.warmup,
            training.rounds,
            "no client is ever looked at for noise",
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> Detected:
        known = cast(Detected, state)
        cohort = fleet.sample(t)
        if t < self.warmup:
            got = fleet.map(train_adjusted, cohort, w=known.model, method=self)
            return replace(known, model=self.aggregate(got, fleet))
        if known.noisy is None:
            known = replace(known, noisy=self.detect_noisy(known, fleet, t))
        weight = self.a * ramp_exponentially(t, self.begin, self.end)
        each = {k: {"weight": weight} for k in cohort if k in (known.noisy or ())}
        fleet.log(**{"fednoro/teaching": weight, "fednoro/taught": float(len(each))})
        got = fleet.map(train_adjusted, cohort, each=each, w=known.model, method=self)
        return replace(known, model=self.aggregate(got, fleet))

    def detect_noisy(self, state: Detected, fleet: Fleet, t: int) -> tuple[ClientId, ...]:
        """All clients send their row of M; the mixtures vote."""
        got = fleet.map(average_losses, fleet.clients, w=state.model)
        table = np.stack([report["losses"] for report in got.values()])
        verdict = dict(
            zip(got, find_noisy(table, fleet.rng(t, "mixtures"), self.fits), strict=True)
        )
        noisy = tuple(k for k, found in verdict.items() if found)
        fleet.estimate("noisy", {k: float(found) for k, found in verdict.items()})
        fleet.log(**{"fednoro/noisy": float(len(noisy))})
        return noisy
