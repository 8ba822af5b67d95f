"""FOCUS: clients count by how well they and the server agree, measured by two losses.

Y. Chen, X. Yang, X. Qin, H. Yu, P. Chan and Z. Shen: "FOCUS: dealing with label quality disparity
in federated learning", arXiv 2001.11359, 2020. In round t, with participants S_t and clean,
labelled images D_s at the server:

    LS_k = mean cross-entropy of client k's trained model on D_s
    LL_k = mean cross-entropy of the global model theta^t on client k's data
    E_k  = LS_k + LL_k
    C_k  = 1 - exp(alpha E_k) / sum_{i in S_t} exp(alpha E_i)
    W_k  = n_k C_k / sum_{i in S_t} n_i C_i,   theta^{t+1} = sum_k W_k theta_k

Wrong labels raise LL_k, as a good global model disagrees with them, and LS_k, as a model that was
trained on them is wrong on D_s. The credibilities C sum to |S_t| - 1: with ten participants of like
losses each is about 0.9, and only a client that holds nearly all of the softmax is punished."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

import numpy as np

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.server_scoring import score_updates
from rayfl.component import NonNegative, component
from rayfl.estimate.probabilities import softmax
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Replies, Vector


@dataclass(frozen=True)
class Trusted(Global):
    """The global model, and the last credibility of every client that has one."""

    credibility: Mapping[ClientId, float] = field(default_factory=dict)


def train_and_judge(client: Client, *, w: Vector, method: Focus) -> Fitting[Out]:
    """LL of the model as it came, then local SGD."""
    losses = judge(client, w).losses
    trained = yield Fit(w, loss=method.loss)
    return Out({"LL": float(losses.mean())}, update=trained.weights)


def measure_credibility(errors: Mapping[ClientId, float], alpha: float) -> dict[ClientId, float]:
    """C, one minus the softmax of alpha E; 0 where E is not finite, 1 for a client alone.

    Parameters
    ----------
    errors
        E_k = LS_k + LL_k of the round's participants.
    alpha
        How strongly a larger error counts.

    Examples
    --------
    >>> found = measure_credibility({0: 1.1, 1: 1.9, 2: 4.5}, alpha=1.0)
    >>> [round(c, 6) for c in found.values()]
    [0.96987, 0.932945, 0.097185]
    """
    known = [k for k, error in errors.items() if math.isfinite(error)]
    credibility = dict.fromkeys(errors, 0.0)
    if len(known) == 1:
        return credibility | {known[0]: 1.0}
    if known:
        shares = softmax(alpha * np.array([errors[k] for k in known]))
        credibility |= dict(zip(known, (1.0 - shares).tolist(), strict=True))
    return credibility


@component
class Focus(FedAvg):
    """Clients count by their credibility: the less, the larger their model's loss on clean images
    and the global model's loss on their labels."""

    citation: ClassVar[str] = "Chen et al., arXiv 2001.11359"
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"public": "labels"}
    deviations: ClassVar[tuple[str, ...]] = (
        "Credibility is this round's: with a tenth of the clients a round, most participants have "
        "none of the round before. `use_previous: true` takes the last one that a client had; one "
        "without counts as |S| - 1 of |S|, which is the mean.",
        "LL is that of the model that was broadcast; in a public re-implementation it is that of "
        "the model averaged over all clients, which takes another exchange.",
        "A client alone counts fully; one whose losses are not finite counts nothing, and if none "
        "is left the global model stays.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "error/noise_correlation": "Pearson's correlation of E (this round's participants) with "
        "their true share of wrong labels; 1 ranks clients as the truth does",
        "focus/credibility_min": "the least C of the round",
        "focus/credibility_max": "the largest C of the round; (|S| - 1) / |S| where all are alike",
    }

    alpha: NonNegative = 1.0
    """How strongly a larger error lowers credibility (not printed; ours: 1). Neutral: 0, federated
    averaging."""
    use_previous: bool = False
    """Whether a client counts by its credibility of the last round in which it took part (the
    paper's time index)."""

    def init(self, fleet: Fleet, model: Ref) -> Trusted:
        return Trusted(model)

    def round(self, state: Global, fleet: Fleet, t: int) -> Trusted:
        known = cast(Trusted, state)
        got = fleet.map(train_and_judge, fleet.sample(t), w=known.model, method=self)
        errors = add_losses(got, fleet)
        found = measure_credibility(errors, self.alpha)
        fleet.log(**{"focus/credibility_min": min(found.values())})
        fleet.log(**{"focus/credibility_max": max(found.values())})
        used = look_up(known, errors) if self.use_previous else found
        known = replace(known, credibility={**known.credibility, **found})
        if not any(used.values()):
            return known
        weights = weigh_by_credibility(self.weighting(got, fleet), used)
        return replace(known, model=self.aggregation(got, weights, fleet))


def add_losses(got: Replies, fleet: Fleet) -> dict[ClientId, float]:
    """E_k = LS_k + LL_k of the round's participants."""
    scores = score_updates(got, fleet.data("public"))
    errors = {k: scores[k].loss + report["LL"] for k, report in got.items()}
    fleet.estimate("error", {k: e for k, e in errors.items() if math.isfinite(e)})
    return errors


def look_up(state: Trusted, errors: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """What each participant was worth before this round."""
    usual = 1.0 - 1.0 / len(errors) if len(errors) > 1 else 1.0
    # Who has no finite loss now cannot be averaged, whatever it was worth before.
    return {
        k: state.credibility.get(k, usual) if math.isfinite(error) else 0.0
        for k, error in errors.items()
    }


def weigh_by_credibility(
    sizes: Mapping[ClientId, float], credibility: Mapping[ClientId, float]
) -> dict[ClientId, float]:
    """n_k C_k; the sizes themselves where all are worth the same.

    Parameters
    ----------
    sizes
        n of every participant.
    credibility
        C of every participant.

    Examples
    --------
    >>> weigh_by_credibility({0: 100.0, 1: 200.0}, {0: 0.5, 1: 0.5})
    {0: 100.0, 1: 200.0}
    """
    if len(set(credibility.values())) == 1:
        # A common factor changes no share, but it may change a rounding.
        return dict(sizes)
    return {k: size * credibility[k] for k, size in sizes.items()}
