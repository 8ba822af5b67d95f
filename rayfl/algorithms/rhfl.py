"""RHFL: clients keep models of their own, and teach each other on public images.

X. Fang and M. Ye: "Robust federated learning with noisy and heterogeneous clients", CVPR 2022.
Nothing is averaged. In round t, with Lbar_k the mean of the robust loss on client k's own samples,

    SL    = alpha CE + beta RCE                                   alpha = 0.1, beta = 1
    F_k   = (Lbar_k^(t-1) - Lbar_k^t) / Lbar_k^t                  efficiency times quality
    W     = softmax_k(1 / (K - 1) + eta F_k / sum_j F_j)          1 / (K - 1) until all have F
    for every public batch X0, with P_k = softmax(f_k(X0)) of all clients before any of them moves:
            one step of client k on sum_(j != k) W_j KL(P_j || P_k)
    some epochs of client k on SL, on its own samples

It is slow to start: the gradient of RCE is proportional to p_y, so that a sample teaches little as
long as its label is unlikely. The paper trains 40 epochs on SL before anybody collaborates
(`pretrain_epochs`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rayfl.algorithms.parts.empirical_loss import measure_loss
from rayfl.algorithms.parts.leave_out import leave_out
from rayfl.arrays import Floats
from rayfl.component import Natural, NonNegative, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses import LOSSES
from rayfl.learn.losses.base import SampleLoss
from rayfl.learn.losses.symmetric_ce import SymmetricCrossEntropy
from rayfl.protocol import Algorithm, Client, ClientId, Fleet, Out, Ref, Shard, Vector

BatchRows = NDArray[np.int32]
Answers = Mapping[ClientId, Vector]
"""P_k on one public batch, by client."""

NEARLY_ZERO = 1e-12
"""Below it, a sum of F says nothing of who contributed to it."""


@dataclass(frozen=True)
class Losses:
    """Lbar of each client when it was last measured."""

    before: Mapping[ClientId, float] = field(default_factory=dict)


# -- what clients do -------------------------------------------------------------------------------


def begin_alone(client: Client, *, w: Vector | None) -> Out:
    """The client's first model: the common one, or one of its own, of which nothing is sent."""
    own = client.learner.first_weights(client.id + 1) if w is None else w
    return Out(state={"w": np.array(own)})


def report_loss(client: Client, *, public: Shard, rows: BatchRows, method: RHFL) -> Out:
    """Lbar_k, and P_k on the first public batch."""
    loss = measure_loss(client, client.state["w"], method.loss)
    return Out({"loss": loss, "p": answer_batch(client, client.state["w"], public, rows)})


def distil(
    client: Client,
    *,
    public: Shard,
    rows: BatchRows,
    answers: Answers,
    weights: Mapping[ClientId, float],
    then: BatchRows | None,
) -> Fitting[Out]:
    """One step towards the others' answers to a public batch; P_k on the next one."""
    before = client.state["w"]
    # Cross-entropy with sum_j W_j P_j is the sum of the KL but for a constant.
    targets = np.sum([np.float32(weights[j]) * answers[j] for j in answers], axis=0)
    settings = {"steps": 1, "batch_size": len(rows), "augment": Unchanged(), "drop_last": False}
    batch = client.on(public.x[rows])
    trained = yield Fit(before, client=batch, targets=targets, settings=settings)
    w = trained.weights if np.isfinite(trained.weights).all() else before
    report = {} if then is None else {"p": answer_batch(client, w, public, then)}
    return Out(report, state={"w": w})


def train_alone(client: Client, *, epochs: int | None, method: RHFL) -> Fitting[Out]:
    """Local SGD on SL, from the client's own model; what is not finite is not kept."""
    settings = None if epochs is None else {"epochs": epochs}
    before = client.state["w"]
    trained = yield Fit(before, loss=method.loss, settings=settings)
    finite = bool(np.isfinite(trained.weights).all())
    state = {"w": trained.weights if finite else before}
    return Out({"_diverged": not finite}, state=state)


def answer_batch(client: Client, w: Vector, public: Shard, rows: BatchRows) -> Vector:
    """P_k: class probabilities of one public batch."""
    found: Vector = judge(client.on(public.x[rows]), w).probabilities.astype(np.float32)
    return found


# -- the method ------------------------------------------------------------------------------------


@component
class RHFL(Algorithm):
    """Personal models under a robust loss, which teach each other on public images, the more the
    better they learn."""

    citation: ClassVar[str] = "Fang and Ye, CVPR 2022"
    personal: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "All clients have the same architecture, and by default the same first weights (`first`); "
        "the paper's four have one each.",
        "Lbar and P are asked in evaluation mode and without augmentation; the authors' code asks "
        "in training mode, which also moves BatchNorm's statistics.",
        "No epochs before collaboration by default, as FB-NLL mentions none; the paper has 40 "
        "(`pretrain_epochs`).",
        "As many private epochs as the run has; the authors' code takes |public| / |private| of "
        "them, at least one (`private_epochs: public`).",
        "Where the F add up to nothing, or one is not finite, all W are 1 / K; where their sum is "
        "negative the formula stands, as published, and who got worse counts more.",
        "W is 1 / (K - 1) for all in every round that a client without an earlier loss takes part "
        "in; the paper's is so in the first round alone.",
        "Lbar^(t-1) is that of a client's last visit, whichever round that was.",
        "Whose answers are not finite teaches nobody, and a step that is not finite is not taken.",
        "A client that no other one takes part with trains alone. Users that a round's draw leaves "
        "out neither teach nor learn (training.fraction); the paper's rounds have everybody.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "confidence/noise_correlation": "Pearson's correlation of W with the true share of wrong "
        "labels",
        "rhfl/private_loss": "mean of Lbar over the round's clients",
        "rhfl/collaboration": "mean of sum_(j != k) W_j KL(P_j || P_k) over clients and public "
        "batches",
        "rhfl/sum_of_f": "sum of F; below 0 W favours who got worse",
        "rhfl/diverged": "how many clients' private training was not finite and not kept",
    }

    loss: Annotated[SampleLoss, slot(LOSSES)] = SymmetricCrossEntropy(alpha=0.1, beta=1.0)
    """The robust loss of private samples. Paper: symce with alpha 0.1 and beta 1."""
    eta: NonNegative = 0.5
    """How much F counts. Paper: 0.5; 0 lets all clients teach alike after the first round."""
    public: Literal["public", "validation", "labelled"] = "public"
    """Whose images clients answer; labels are not read. Paper: 5000 of CIFAR-100 beside CIFAR-10;
    FB-NLL: the server's clean set, `validation`."""
    pretrain_epochs: Natural = 0
    """Epochs on SL before collaboration. Paper: 40; FB-NLL: not mentioned."""
    private_epochs: Literal["run", "public"] = "run"
    """Epochs of a round on own samples: the run's (FB-NLL: 2), or max(|public| // |private|, 1), as
    in the authors' code."""
    first: Literal["same", "own"] = "same"
    """Whether all clients begin with the same weights. Paper: networks of their own."""

    @property
    def needs(self) -> Mapping[str, Literal["images", "labels"]]:  # type: ignore[override]
        return {self.public: "images"}

    def check(self, fleet: Fleet) -> None:
        if len(fleet.clients) < 2:
            rule = "clients of RHFL teach each other, so that there are at least two with data"
            raise ConfigError(broken(rule, len(fleet.clients), "Bring more clients."))
        if not list(self.cut_batches(np.arange(fleet.size(self.public)), fleet)):
            rule = f"split.{self.public} fills a batch, where training.drop_last leaves out others"
            got = f"{fleet.size(self.public)} images for batches of {fleet.training.batch_size}"
            remedy = "Enlarge the set, or reduce training.batch_size."
            raise ConfigError(broken(rule, got, remedy))

    def init(self, fleet: Fleet, model: Ref) -> Losses:
        fleet.map(begin_alone, fleet.clients, w=model if self.first == "same" else None)
        return Losses()

    def round(self, state: Losses, fleet: Fleet, t: int) -> Losses:
        if t == 0 and self.pretrain_epochs:
            fleet.map(train_alone, fleet.clients, epochs=self.pretrain_epochs, method=self)
        cohort = fleet.sample(t)
        order = fleet.rng(t, "public").permutation(fleet.size(self.public))
        batches = list(self.cut_batches(order, fleet))
        public = fleet.data(self.public)
        told = fleet.map(report_loss, cohort, public=public, rows=batches[0], method=self)
        now = {k: told[k]["loss"] for k in cohort}
        if len(cohort) > 1:
            weights = self.weigh(state.before, now, fleet)
            answers = {k: told[k]["p"] for k in cohort}
            self.collaborate(fleet, cohort, batches, answers, weights)
        self.train_private(fleet, cohort)
        return Losses({**state.before, **now})

    def model(self, state: Losses, fleet: Fleet, client: ClientId | None = None) -> Ref:
        found = fleet.state(fleet.clients[0] if client is None else client, "w")
        assert found is not None, "every client has kept its first weights"
        return found

    def cut_batches(self, order: NDArray[np.int64], fleet: Fleet) -> Iterator[BatchRows]:
        """The public batches of a round."""
        size = fleet.training.batch_size
        stop = len(order) - len(order) % size if fleet.training.drop_last else len(order)
        for start in range(0, stop, size):
            yield np.sort(order[start : start + size]).astype(np.int32)

    def weigh(
        self, before: Mapping[ClientId, float], now: Mapping[ClientId, float], fleet: Fleet
    ) -> dict[ClientId, float]:
        """W of the round's clients."""
        losses = np.array(list(now.values()))
        fleet.log(**{"rhfl/private_loss": float(losses.mean())})
        if not set(now) <= set(before):
            weights = np.full(len(now), 1 / (len(now) - 1))
        else:
            f = measure_contributions(np.array([before[k] for k in now]), losses)
            fleet.log(**{"rhfl/sum_of_f": float(f.sum())})
            weights = weigh_teachers(f, self.eta)
        found = dict(zip(now, weights.tolist(), strict=True))
        fleet.estimate("confidence", found)
        return found

    def collaborate(
        self,
        fleet: Fleet,
        cohort: list[ClientId],
        batches: list[BatchRows],
        answers: Answers,
        weights: Mapping[ClientId, float],
    ) -> None:
        """One step of everybody on each public batch. Each visit ends with the answers to the next
        batch, so that a batch costs one exchange."""
        public = fleet.data(self.public)
        losses = []
        for rows, then in zip(batches, [*batches[1:], None], strict=True):
            known = {k: p for k, p in answers.items() if np.isfinite(p).all()}
            losses.append(measure_collaboration(known, weights))
            others = {k: leave_out(k, known) for k in cohort}
            each: dict[ClientId, dict[str, Any]] = {
                k: {"answers": taught} for k, taught in others.items() if taught
            }
            if not each:
                break
            got = fleet.map(
                distil, each, each=each, public=public, rows=rows, weights=weights, then=then
            )
            answers = {k: got[k]["p"] for k in got} if then is not None else {}
        fleet.log(**{"rhfl/collaboration": float(np.mean(losses))})

    def train_private(self, fleet: Fleet, cohort: list[ClientId]) -> None:
        """Everybody on its own samples."""
        each: dict[ClientId, dict[str, Any]] = {k: {"epochs": None} for k in cohort}
        if self.private_epochs == "public":
            public = fleet.size(self.public)
            each = {k: {"epochs": max(public // fleet.size(k), 1)} for k in cohort}
        got = fleet.map(train_alone, cohort, each=each, method=self)
        lost = sum(report["_diverged"] for report in got.values())
        fleet.log(**{"rhfl/diverged": float(lost)})


# -- confidence and collaboration ------------------------------------------------------------------


def measure_contributions(before: Floats, now: Floats) -> Floats:
    """F, how much each client's loss fell, over what it is now.

    Examples
    --------
    >>> measure_contributions(np.ones(3), np.array([0.5, 0.8, 0.9])).round(6).tolist()
    [1.0, 0.25, 0.111111]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((before - now) / now)


def weigh_teachers(f: Floats, eta: float) -> Floats:
    """W = softmax(1 / (K - 1) + eta F / sum F).

    Parameters
    ----------
    f
        F of two clients or more.
    eta
        How much it counts.

    Examples
    --------
    >>> weigh_teachers(np.array([1, 1 / 4, 1 / 9]), eta=0.5).round(6).tolist()
    [0.403127, 0.306048, 0.290825]
    """
    total = f.sum()
    known = np.isfinite(f).all() and abs(total) >= NEARLY_ZERO
    a = 1 / (len(f) - 1) + (eta * f / total if known else np.zeros(len(f)))
    # Shifted, which a softmax does not see: shares of a small sum are large.
    w = np.exp(a - a.max())
    return np.asarray(w / w.sum())


def measure_collaboration(answers: Answers, weights: Mapping[ClientId, float]) -> float:
    """The mean over students k of sum_(j != k) W_j KL(P_j || P_k); nan for fewer than two.

    Parameters
    ----------
    answers
        P of each client, (N, C).
    weights
        W of each client.
    """
    p = {k: np.maximum(rows.astype(np.float64), 1e-38) for k, rows in answers.items()}
    if len(p) < 2:
        return float("nan")
    losses = []
    for k in p:
        gaps = {j: measure_divergence(rows, p[k]) for j, rows in leave_out(k, p).items()}
        losses.append(sum(weights[j] * gap for j, gap in gaps.items()))
    return float(np.mean(losses))


def measure_divergence(teacher: Floats, student: Floats) -> float:
    """KL(P_j || P_k), summed over classes and averaged over the batch."""
    return float((teacher * np.log(teacher / student)).sum(axis=1).mean())
