"""FedCorr: noisy clients are found by the dimension of their outputs, their labels corrected in
three stages.

J. Xu, Z. Chen, T. Q. S. Quek and K. F. E. Chong: "FedCorr: multi-stage federated learning for label
noise correction", CVPR 2022, Algorithm 1; code: Xu-Jingyi/FedCorr.

1. Pre-processing, T_1 iterations. In each, the model goes from client to client, once to all.
   Client k trains with

       mixup CE + beta mu_k ||w - w_g||

   and reports LID_k, the mean local intrinsic dimension of its outputs. Then, with sums of LID_k
   over iterations, a mixture of two Gaussians over clients says who is noisy; at a noisy client a
   second one over its samples' losses gives its noise level mu_k, and of the floor(n_k mu_k pi)
   samples of largest loss those get new labels of which the global model is surer than theta.
2. Fine-tuning, T_2 rounds of federated averaging over clients with mu_k <= kappa; then noisy
   clients relabel all of which the global model is surer than theta.
3. Federated averaging over all clients, on what their labels have become.

A method's clients are those of the fleet that it is given: with a fleet of some of them, all stages
are within these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

import numpy as np
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.arrays import Floats, Ints
from rayfl.component import Count, Fraction, Natural, NonNegative, component
from rayfl.errors import ConfigError, broken
from rayfl.estimate.lid import mean_lid
from rayfl.estimate.mixture import LossMixture
from rayfl.learn.batches import Batch
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import BatchLoss, Fit, Fitting, Pull
from rayfl.learn.losses.base import SampleLoss
from rayfl.learn.mixing import mix_batch
from rayfl.learn.relabel import relabel_confident
from rayfl.learn.schedules import StageRound, Stages
from rayfl.learn.training import Training
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Vector

AS_SCIKIT_LEARN = LossMixture(reg_covar=1e-6, tol=1e-3, normalise=False)
"""The authors' mixtures, but for the random start."""


@dataclass(frozen=True)
class Corrected(Global):
    """The global model, and what is known of the clients."""

    found: Mapping[ClientId, float] = field(default_factory=dict)
    """LID_k of the clients that this iteration has visited."""
    lid: Mapping[ClientId, float] = field(default_factory=dict)
    """Sums of LID_k over the iterations that are over."""
    mu: Mapping[ClientId, float] = field(default_factory=dict)
    """Noise levels of the noisy clients; all others are clean."""


# -- local training --------------------------------------------------------------------------------


def choose_loss(method: FedCorr) -> SampleLoss | BatchLoss:
    """The loss of a batch that is mixed with itself; the plain one where nothing is mixed."""
    if not method.alpha:
        return method.loss

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        mixed = mix_batch(batch.x, method.alpha, batch.generator)
        return mixed.blend_losses(method.loss, net(mixed.x), batch.y).mean()

    return loss


class NormPull:
    """The gradient of strength ||w - w_g||, in all batches of an epoch but the first.

    The norm has no gradient where both are equal, as they are in the first batch of a visit; the
    authors' code leaves out the first one of every epoch."""

    def __init__(self, anchor: Tensor, strength: float) -> None:
        self.anchor = anchor
        self.strength = strength
        self.begins = True

    def watch(self, loss: SampleLoss | BatchLoss) -> BatchLoss:
        """The same loss; the epochs' first batches are noticed."""

        def watched(net: nn.Module, batch: Batch) -> Tensor | None:
            self.begins = batch.step_in_epoch == 0
            if isinstance(loss, SampleLoss):
                return loss.mean(net(batch.x), batch.y)
            return loss(net, batch)

        return watched

    def __call__(self, parameters: Tensor, gradient: Tensor) -> None:
        away = parameters - self.anchor
        norm = float(away.norm())
        if not self.begins and norm > 0:
            gradient.add_(away, alpha=self.strength / norm)


def train_near(client: Client, w: Vector, strength: float, method: FedCorr) -> Fitting[Vector]:
    """Local SGD that is held near the model that came; beta mu_k is the strength."""
    loss = choose_loss(method)
    if not strength:
        trained = yield Fit(w, loss=loss)
    elif method.prox == "squared":
        # A Pull is half of its strength times the square.
        trained = yield Fit(w, loss=loss, pull=Pull(w, 2 * strength))
    else:
        pull = NormPull(client.learner.resident(w).parameters.clone(), strength)
        trained = yield Fit(w, loss=pull.watch(loss), adjust=pull)
    return cast(Vector, trained.weights)


# -- the phases ------------------------------------------------------------------------------------


def visit(client: Client, *, w: Vector, mu: float, method: FedCorr) -> Fitting[Out]:
    """Stage 1: train near w; report how the local model's answers spread, remember its losses."""
    local = yield from train_near(client, w, method.beta * mu, method)
    judged = judge(client, local)
    losses = judged.losses
    if not method.proper_ce:
        losses = soften_losses(judged.probabilities, client.y)
    report = {"lid": mean_lid(judged.probabilities, method.k)}
    return Out(report, update=local, state={"losses": losses})


def correct(client: Client, *, w: Vector, method: FedCorr) -> Out:
    """mu_k from the losses of the last visit, then new labels for the worst of which w is sure."""
    losses = client.state.get("losses")
    if losses is None or not np.isfinite(losses).all():
        # Its only visits diverged: there is nothing to tell its samples apart by.
        return Out({"mu": 0.0})
    mu = estimate_level(losses)
    worst = find_worst(losses, mu, method.share)
    p = judge(client, w).probabilities
    return Out({"mu": mu}, state=relabel_confident(client, p, method.confidence, among=worst))


def relabel_all(client: Client, *, w: Vector, method: FedCorr) -> Out:
    """After stage 2: everything of which the global model is sure."""
    p = judge(client, w).probabilities
    return Out(state=relabel_confident(client, p, method.confidence))


def train_mixed(client: Client, *, w: Vector, method: FedCorr) -> Fitting[Out]:
    """Stages 2 and 3: local SGD."""
    trained = yield Fit(w, loss=choose_loss(method))
    return Out(update=trained.weights)


# -- numbers ---------------------------------------------------------------------------------------


def soften_losses(p: Floats, y: Ints) -> Floats:
    """-P_y + log sum_c e^{P_c}: cross-entropy of probabilities that are taken for logits.

    The authors' code has these losses, which lie in [log(e + C - 1) - 1, log(e + C - 1)]; where
    rows are not peaked their order is another one than that of cross-entropy.

    Parameters
    ----------
    p
        Class probabilities, (N, C).
    y
        Labels, (N,).

    Examples
    --------
    >>> soften_losses(np.array([[0.7, 0.2, 0.1]] * 3), np.arange(3)).round(6).tolist()
    [0.76795, 1.26795, 1.36795]
    """
    return np.asarray(np.log(np.exp(p).sum(axis=1)) - p[np.arange(len(y)), y])


def estimate_level(losses: Floats) -> float:
    """mu, the share of samples in the component of larger losses; 0 where there are no two groups.

    Parameters
    ----------
    losses
        One a sample, finite.

    Examples
    --------
    >>> estimate_level(np.array([0.10, 0.20, 0.15, 0.90, 1.00]))
    0.4
    """
    split = AS_SCIKIT_LEARN.fit(losses)
    return float((split.clean < 0.5).mean()) if split.separated else 0.0


def find_worst(losses: Floats, mu: float, share: float) -> Ints:
    """Positions of the floor(n mu pi) samples of largest loss.

    Parameters
    ----------
    losses
        One a sample, (n,).
    mu
        The noise level.
    share
        pi, the part of the samples that are taken for noisy.

    Examples
    --------
    >>> find_worst(np.array([0.1, 0.9, 0.5, 0.8]), mu=1.0, share=0.5).tolist()
    [1, 3]
    """
    worst = np.argsort(-losses, kind="stable")[: int(len(losses) * mu * share)]
    return worst.astype(np.int64)


def add_dimensions(
    sums: Mapping[ClientId, float], found: Mapping[ClientId, float]
) -> dict[ClientId, float]:
    """Sums of LID with one more iteration; a client without one gets the median of the others.

    Parameters
    ----------
    sums
        Over the iterations before.
    found
        LID_k of this one; nan where there is none.

    Examples
    --------
    >>> add_dimensions({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5, 2: float("nan")})
    {0: 1.5, 1: 3.5, 2: 1.0}
    """
    known = [value for value in found.values() if math.isfinite(value)]
    typical = float(np.median(known)) if known else 0.0
    return {
        k: sums.get(k, 0.0) + (value if math.isfinite(value) else typical)
        for k, value in found.items()
    }


def find_noisy(lid: Mapping[ClientId, float]) -> list[ClientId]:
    """Clients of the component of larger sums; nobody where there are no two groups.

    Parameters
    ----------
    lid
        Sums of LID by client.

    Examples
    --------
    >>> find_noisy({0: 0.10, 1: 0.20, 2: 0.15, 3: 0.90, 4: 1.00})
    [3, 4]
    """
    split = AS_SCIKIT_LEARN.fit(list(lid.values()))
    if not split.separated:
        return []
    return [k for k, clean in zip(lid, split.clean, strict=True) if clean < 0.5]


# -- the method ------------------------------------------------------------------------------------


@component
class FedCorr(FedAvg):
    """Noisy clients are found client after client, the model is tuned on clean ones, and labels are
    corrected by it before and after."""

    citation: ClassVar[str] = "Xu et al., CVPR 2022"
    deviations: ClassVar[tuple[str, ...]] = (
        "A round of stage 1 visits as many clients as another round has (`visits`), so that an "
        "iteration takes N / |S| rounds; local K-similarity counts it so, the paper counts "
        "clients.",
        "By default the proximal term is the authors' code's, beta mu ||w - w_g|| without the "
        "first batch of each epoch; `prox: squared` is the paper's.",
        "By default losses are the code's, which takes the softmax twice; `proper_ce: true` is "
        "cross-entropy. Losses are not summed over iterations, as in the code.",
        "Outputs for LID, losses and new labels are those of the images as they are; the code "
        "augments them.",
        "A client of n <= k samples has n - 1 neighbours, with n - 1 in the numerator, and one of "
        "a single sample, or whose model diverged, the median LID of the others. Distances of 0 "
        "count as 1e-12.",
        "Mixtures start from the smallest and the largest value, not at random. Where they find no "
        "two groups nobody, and no sample, is noisy.",
        "If no client is clean, the one of least mu is tuned on; the code divides by 0.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "lid/noise_correlation": "Pearson's correlation of the sums of LID with clients' true "
        "share of wrong labels (as given); at the end of an iteration",
        "level/noise_correlation": "the same of mu, 0 for clean clients",
        "fedcorr/noisy": "how many clients are noisy; at the end of an iteration",
        "fedcorr/eligible": "how many clients stage 2 draws from",
    }

    iterations: Natural = 5
    """T_1. Paper: 5 on CIFAR-10, 10 on CIFAR-100; FB-NLL: 2. 0 leaves stage 1 out."""
    finetuning: Natural = 500
    """T_2, rounds of stage 2. Paper: 500 on CIFAR-10, 450 on CIFAR-100; FB-NLL: 10."""
    visits: Count | None = None
    """How many clients a round of stage 1 visits; null: as many as another round has. FB-NLL: 1."""
    alpha: NonNegative = 1.0
    """mixup's, in all stages. Paper: 1; 0 mixes nothing. Neutral: 0, with `iterations: 0` and
    `finetuning: 0`."""
    beta: NonNegative = 5.0
    """Strength of the proximal term. Paper: 5."""
    prox: Literal["norm", "squared"] = "norm"
    """The norm of w - w_g, as in the authors' code, or its square, as in the paper."""
    k: Count = 20
    """Neighbours of a sample for its LID. Paper: 20."""
    share: Fraction = 0.5
    """pi, which part of the samples that are taken for noisy may get new labels. Paper: 0.5."""
    confidence: Fraction = 0.5
    """theta, above which the global model's answer becomes a label. Paper: 0.5."""
    kappa: Fraction = 0.1
    """Largest mu of a client in stage 2. Paper: 0.1."""
    proper_ce: bool = False
    """Whether samples are told apart by their cross-entropy; false: by the code's losses."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        if not self.iterations:
            return
        if len(fleet.clients) < 2 or fleet.classes < 2:
            rule = "mixtures of clients and of outputs take two clients and two classes or more"
            got = f"{len(fleet.clients)} and {fleet.classes}"
            raise ConfigError(broken(rule, got, "Or set method.iterations to 0."))
        largest = max(map(fleet.size, fleet.clients))
        if largest <= self.k:
            rule = f"LID takes more samples than method.k = {self.k} at one client at least"
            raise ConfigError(broken(rule, f"{largest} at the largest", "Lower method.k."))

    def init(self, fleet: Fleet, model: Ref) -> Corrected:
        return Corrected(model)

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        cohort = training.cohort(clients)
        visits = cohort if self.visits is None else min(self.visits, clients)
        first = self.iterations * -(-clients // visits)
        if first >= training.rounds:
            nothing = "stage 1 is not over, and no client is ever found clean"
            yield from warn_of_late_stage("method.iterations", first, training.rounds, nothing)
        elif self.finetuning:
            last = first + self.finetuning
            nothing = "stage 2 is not over, and the usual stage is never reached"
            yield from warn_of_late_stage("method.finetuning", last, training.rounds, nothing)

    def round(self, state: Global, fleet: Fleet, t: int) -> Corrected:
        known = cast(Corrected, state)
        portions = -(-len(fleet.clients) // self.count_visits(fleet))
        first = self.iterations * portions
        lengths = {"visit": first, "finetune": self.finetuning, "usual": None}
        stage = Stages(lengths).at(t)
        if stage.name == "visit":
            iteration, portion = divmod(stage.index, portions)
            known = self.visit_in_turn(known, fleet, iteration, portion)
            return self.correct_noisy(known, fleet) if portion == portions - 1 else known
        return self.average(known, fleet, t, stage)

    def count_visits(self, fleet: Fleet) -> int:
        """How many clients a round of stage 1 visits."""
        return fleet.cohort if self.visits is None else min(self.visits, len(fleet.clients))

    def visit_in_turn(
        self, state: Corrected, fleet: Fleet, iteration: int, portion: int
    ) -> Corrected:
        """A portion of an iteration: each client begins with the model of the one before it."""
        order = fleet.rng(iteration, "order").permutation(fleet.clients).tolist()
        size = self.count_visits(fleet)
        turn = order[portion * size :][:size]
        each = {k: {"mu": state.mu.get(k, 0.0)} for k in turn}
        got = fleet.chain(visit, turn, w=state.model, each=each, method=self)
        news = {k: got[k]["lid"] if k in got else math.nan for k in turn}
        return replace(state, model=got.last, found={**state.found, **news})

    def correct_noisy(self, state: Corrected, fleet: Fleet) -> Corrected:
        """The end of an iteration: who is noisy, how much, and which labels become others."""
        lid = add_dimensions(state.lid, dict(sorted(state.found.items())))
        noisy = find_noisy(lid)
        got = fleet.map(correct, noisy, w=state.model, method=self)
        mu = {k: report["mu"] for k, report in got.items()}
        fleet.estimate("lid", lid)
        fleet.estimate("level", {k: mu.get(k, 0.0) for k in lid})
        fleet.log(**{"fedcorr/noisy": float(len(noisy))})
        return replace(state, found={}, lid=lid, mu=mu)

    def average(self, state: Corrected, fleet: Fleet, t: int, stage: StageRound) -> Corrected:
        """A round of stage 2 or 3."""
        among = None
        if stage.name == "finetune":
            among = self.find_clean(state, fleet)
            fleet.log(**{"fedcorr/eligible": float(len(among))})
        got = fleet.map(train_mixed, fleet.sample(t, among), w=state.model, method=self)
        known = replace(state, model=self.aggregate(got, fleet))
        if stage.name == "finetune" and stage.last:
            fleet.map(relabel_all, known.mu, w=known.model, method=self)
        return known

    def find_clean(self, state: Corrected, fleet: Fleet) -> list[ClientId]:
        """Clients of mu <= kappa; the one of least mu where there are none."""
        mu = {k: state.mu.get(k, 0.0) for k in fleet.clients}
        clean = [k for k in mu if mu[k] <= self.kappa]
        return clean or [min(mu, key=lambda k: (mu[k], k))]
