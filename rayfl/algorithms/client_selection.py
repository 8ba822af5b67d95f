"""Client Selection: the server averages the models that look right on clean images.

M. Yang, H. Qian, X. Wang, Y. Zhou and H. Zhu: "Client selection for federated learning with label
noise", IEEE Transactions on Vehicular Technology 71(2), 2022; reconstructed from what FedDS says of
it (Dong et al., Information Sciences 2026, Table 5), as neither text nor code could be read.

The server owns clean, labelled images. A model that reproduces the wrong labels of its client is
wrong there as often as they are:

    acc_k = accuracy of client k's trained model on the public set,   rho_k = 1 - acc_k
    keep  = the m participants of largest acc_k
    theta = sum_{k in keep} n_k theta_k / sum_{k in keep} n_k

Only the order of the accuracies counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

from rayfl.algorithms.fedavg import FedAvg, Global, train
from rayfl.algorithms.parts.server_scoring import (
    count_share,
    fill_unknown,
    rank_by_accuracy,
    score_updates,
)
from rayfl.component import Fraction, Natural, component
from rayfl.protocol import ClientId, Fleet, Ref


@dataclass(frozen=True)
class Scored(Global):
    """The global model, and what was found of every client that was scored."""

    rho: Mapping[ClientId, float] = field(default_factory=dict)
    """Mean of its noise ratios so far."""
    visits: Mapping[ClientId, int] = field(default_factory=dict)
    """How often it was scored."""


@component
class ClientSelection(FedAvg):
    """The models that are most often right on the server's clean images are averaged."""

    citation: ClassVar[str] = "Yang et al., IEEE TVT 2022 (reconstructed)"
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"public": "labels"}
    deviations: ClassVar[tuple[str, ...]] = (
        "Reconstructed: neither the paper's text nor code could be read. That clients are ranked "
        "by their models' accuracy on clean labels is FedDS's description; how many are kept, and "
        "when, is ours.",
        "A model whose answers are not finite is left out and not ranked; if none is left, the "
        "global model stays.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "noise_ratio/noise_correlation": "Pearson's correlation of rho (this round's participants, "
        "their mean so far) with the true share of wrong labels; 1 ranks clients as the truth does",
        "selection/kept": "how many models were averaged",
        "selection/best_accuracy": "of the round's models on the public set",
        "selection/worst_accuracy": "of the round's models on the public set",
    }

    keep: Fraction = 0.5
    """m as a share of the participants, at least one (ours: 0.5). Neutral: 1, federated
    averaging."""
    when: Literal["after", "before"] = "after"
    """`after`: all participants train and the best models are averaged; `before`: who takes part is
    drawn from the clients of least rho so far (`keep` of them), and all models are averaged."""
    patience: Natural = 20
    """R_0: under `before`, rounds after which the draw begins if not all clients were scored
    earlier (ours: 20)."""
    exploration: Fraction = 0.1
    """Under `before`, how often a place in the round goes to any client (ours: 0.1)."""

    def init(self, fleet: Fleet, model: Ref) -> Scored:
        return Scored(model)

    def round(self, state: Global, fleet: Fleet, t: int) -> Scored:
        known = cast(Scored, state)
        cohort = self.choose_cohort(known, fleet, t)
        got = fleet.map(train, cohort, w=known.model, method=self)
        scores = score_updates(got, fleet.data("public"))
        accuracies = {k: s.accuracy for k, s in scores.items() if math.isfinite(s.accuracy)}
        known = remember(known, accuracies)
        m = len(cohort) if self.when == "before" else count_share(self.keep, len(cohort))
        kept = rank_by_accuracy(accuracies)[: max(m, 1)]
        fleet.estimate("noise_ratio", {k: known.rho[k] for k in accuracies})
        fleet.log(**{"selection/kept": float(len(kept))})
        if not kept:
            return known
        fleet.log(**{"selection/best_accuracy": max(accuracies.values())})
        fleet.log(**{"selection/worst_accuracy": min(accuracies.values())})
        sizes = self.weighting(got, fleet)
        weights = {k: sizes[k] for k in kept}
        return replace(known, model=self.aggregation(got, weights, fleet))

    def choose_cohort(self, state: Scored, fleet: Fleet, t: int) -> list[ClientId]:
        """Who trains: a uniform draw, or mostly clients of little noise so far."""
        drawn = fleet.sample(t)
        unknown = set(fleet.clients) - set(state.rho)
        if self.when == "after" or (unknown and t < self.patience):
            return drawn
        rho = fill_unknown(state.rho, fleet.clients)
        most = max(count_share(self.keep, len(rho)), 1)
        trusted = sorted(rho, key=lambda k: (rho[k], k))[:most]
        rng = fleet.rng(t, "selection")
        exploring = [k for k in drawn if rng.random() < self.exploration]
        pool = sorted(set(trusted) - set(exploring))
        places = min(len(drawn) - len(exploring), len(pool))
        chosen = rng.choice(len(pool), size=places, replace=False).tolist() if places else []
        return sorted([*exploring, *(pool[i] for i in chosen)])


def remember(state: Scored, accuracies: Mapping[ClientId, float]) -> Scored:
    """The running means with this round's noise ratios, rho_k = 1 - acc_k."""
    rho = dict(state.rho)
    visits = dict(state.visits)
    for k, accuracy in accuracies.items():
        visits[k] = visits.get(k, 0) + 1
        before = rho.get(k, 0.0)
        rho[k] = before + (1.0 - accuracy - before) / visits[k]
    return replace(state, rho=rho, visits=visits)
