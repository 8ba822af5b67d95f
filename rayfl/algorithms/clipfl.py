"""ClipFL: clients whose models are often among the worst on clean images are removed, once.

M. Morafah, H. Chang, C. Chen and B. Lin: "Federated learning client pruning for noisy labels", ACM
TOMPECS 10(2), 2025. Noise candidacy scores (NCS) count how often a client was among the worst:

    t < R:   acc_k on the server's clean set for k in S_t
             B_t = the m participants of least acc_k;   NCS_k += 1 for k in B_t
             w = mean over S_t without B_t
    t = R:   the floor(p K) clients of largest NCS are removed
    t > R:   federated averaging among the others

Its repository has no code. Two papers measured themselves against it: FedDS (Dong et al.,
Information Sciences 2026, Table 5) with one global model and a tenth of the clients a round, which
is `clipfl`; FB-NLL (Tables IX to XI) with everybody in every round and users that have tasks of
their own, which is `clipfl_personal`.

A method's clients are those of the fleet that it is given: with a fleet of some of them, a round is
one within these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, cast

from rayfl.algorithms.fedavg import FedAvg, Global, train
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.algorithms.parts.server_scoring import (
    count_share,
    fill_unknown,
    rank_by_accuracy,
    score_updates,
)
from rayfl.algorithms.parts.weighting import WEIGHTINGS, Equal, Weighting
from rayfl.component import Fraction, Natural, component, slot
from rayfl.learn.training import Training
from rayfl.protocol import ClientId, Fleet, Ref


@dataclass(frozen=True)
class Candidates(Global):
    """The global model, what was counted of every client, and who is left after the pruning."""

    ncs: Mapping[ClientId, int] = field(default_factory=dict)
    """How often a client was among the worst of its round."""
    visits: Mapping[ClientId, int] = field(default_factory=dict)
    accuracy: Mapping[ClientId, float] = field(default_factory=dict)
    """Mean of its models' accuracies; a model without one counts as 0."""
    active: tuple[ClientId, ...] | None = None
    """Who takes part from now on; None before the pruning."""


@component
class ClipFL(FedAvg):
    """Clients that are often among the worst on the server's clean images are removed, once."""

    citation: ClassVar[str] = "Morafah et al., ACM TOMPECS 2025 (reconstructed)"
    held: ClassVar[str] = "public"
    """The server's clean set."""
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"public": "labels"}
    deviations: ClassVar[tuple[str, ...]] = (
        "Reconstructed from the abstract and from what FedDS and FB-NLL say of it: how many are "
        "flagged a round, how many are pruned, and how long the first stage is, are ours.",
        "Under `ncs: rate`, clipfl's default, candidacy is flags over visits, and a client that "
        "was never visited has the mean of the others: with a tenth of the clients a round, plain "
        "counts call those noisy that were visited often. `ncs: raw`, the default of "
        "clipfl_personal, is the literal reading.",
        "Of equal candidacy, the client of the lower mean accuracy is removed first, then the one "
        "of the higher id. At least one client is left in a round, and after the pruning.",
        "A model that diverged, or whose answers are not finite, counts as the worst and is never "
        "averaged.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "candidacy/noise_correlation": "Pearson's correlation of all clients' candidacy (flags "
        "over visits, or plain counts) with their true share of wrong labels; while models are "
        "scored",
        "clipfl/flagged": "how many models of the round were flagged",
        "clipfl/active": "how many clients are left to draw from",
    }

    warmup: Natural = 20
    """R, rounds that score. Ours: 20 (FB-NLL's, of 80; FedDS ran 100 in all). 0 scores nobody."""
    prune: Fraction = 0.5
    """p, the share of the clients that are removed (ours: 0.5). Neutral: 0 with `warmup: 0`."""
    flag: Fraction | None = None
    """The share of a round's participants that is flagged, m = ceil(flag |S|); null: `prune`."""
    ncs: Literal["rate", "raw"] = "rate"
    """Candidacy: flags over visits, or plain counts."""
    participants: Fraction | None = None
    """After the pruning, the share of the remaining clients that a round has; null: as many as a
    round of the run has. FB-NLL: 0.5."""
    fixed: bool = False
    """Whether `participants` are the best of the remaining clients in every round, and not drawn
    anew."""

    def init(self, fleet: Fleet, model: Ref) -> Candidates:
        return Candidates(model)

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        yield from warn_of_late_stage(
            "method.warmup",
            self.warmup,
            training.rounds,
            "no client is ever removed",
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> Candidates:
        known = cast(Candidates, state)
        if t < self.warmup:
            return self.score_round(known, fleet, t)
        if known.active is None:
            known = replace(known, active=self.find_active(known, fleet))
        cohort = self.choose_cohort(known, fleet, t)
        fleet.log(**{"clipfl/active": float(len(known.active or ()))})
        got = fleet.map(train, cohort, w=known.model, method=self)
        return replace(known, model=self.aggregate(got, fleet))

    def score_round(self, state: Candidates, fleet: Fleet, t: int) -> Candidates:
        """Stage 1: the worst are flagged, the others averaged."""
        cohort = fleet.sample(t)
        got = fleet.map(train, cohort, w=state.model, method=self)
        scores = score_updates(got, fleet.data(self.held))
        # Who diverged is not in the replies: it has no accuracy, and so is the worst.
        accuracies = {k: scores[k].accuracy if k in scores else math.nan for k in cohort}
        flagged = self.find_worst(accuracies)
        known = count_flags(state, accuracies, flagged)
        fleet.estimate("candidacy", self.measure_candidacy(known, fleet.clients))
        fleet.log(**{"clipfl/flagged": float(len(flagged))})
        sizes = self.weighting(got, fleet)
        good = [k for k in got if k not in flagged and not math.isnan(accuracies[k])]
        if not good:
            return known
        return replace(known, model=self.aggregation(got, {k: sizes[k] for k in good}, fleet))

    def find_worst(self, accuracies: Mapping[ClientId, float]) -> list[ClientId]:
        """B, the m participants of least accuracy; the best one is not among them."""
        share = self.prune if self.flag is None else self.flag
        m = min(count_share(share, len(accuracies)), len(accuracies) - 1)
        return rank_by_accuracy(accuracies)[len(accuracies) - m :]

    def measure_candidacy(
        self, state: Candidates, clients: Sequence[ClientId]
    ) -> dict[ClientId, float]:
        """How often each client was flagged, by visit or in all."""
        if self.ncs == "raw":
            return {k: float(state.ncs.get(k, 0)) for k in clients}
        rates = {k: state.ncs[k] / visits for k, visits in state.visits.items()}
        return fill_unknown(rates, clients)

    def rank_clients(self, state: Candidates, clients: Sequence[ClientId]) -> list[ClientId]:
        """All clients, from the one that is kept longest to the one that is removed first."""
        candidacy = self.measure_candidacy(state, clients)
        accuracy = fill_unknown(state.accuracy, clients)
        return sorted(clients, key=lambda k: (candidacy[k], -accuracy[k], k))

    def find_active(self, state: Candidates, fleet: Fleet) -> tuple[ClientId, ...]:
        """The clients without the floor(p K) of largest candidacy."""
        ranked = self.rank_clients(state, fleet.clients)
        # Of 0.3 * 10 = 3, the product says a little less or more.
        removed = min(math.floor(self.prune * len(ranked) + 1e-9), len(ranked) - 1)
        return tuple(sorted(ranked[: len(ranked) - removed]))

    def choose_cohort(self, state: Candidates, fleet: Fleet, t: int) -> list[ClientId]:
        """Stage 2: the round's participants, of those that are left."""
        active = list(state.active or ())
        if self.participants is None:
            return fleet.sample(t, among=active)
        wanted = max(math.floor(self.participants * len(active) + 0.5), 1)
        if self.fixed:
            return sorted(self.rank_clients(state, active)[:wanted])
        drawn = fleet.rng(t, "clean clients").choice(len(active), size=wanted, replace=False)
        return sorted(active[i] for i in drawn)


@component
class ClipFLPersonal(ClipFL):
    """ClipFL as FB-NLL measures it: the validation set scores, everybody takes part and counts the
    same, and the model is tested on every user's own task."""

    citation: ClassVar[str] = "Morafah et al., ACM TOMPECS 2025, as in FB-NLL (reconstructed)"
    held: ClassVar[str] = "validation"
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"validation": "labels"}
    personal: ClassVar[bool] = True

    weighting: Annotated[Weighting, slot(WEIGHTINGS)] = Equal()
    """`equal` (FB-NLL's), `size`, or any other weighting."""
    ncs: Literal["rate", "raw"] = "raw"
    """Candidacy: plain counts, where everybody takes part in every round."""
    participants: Fraction | None = 0.5
    """After the pruning, the share of the remaining clients that a round has. FB-NLL: 0.5."""


def count_flags(
    state: Candidates, accuracies: Mapping[ClientId, float], flagged: Sequence[ClientId]
) -> Candidates:
    """The counts with one more round."""
    ncs = dict(state.ncs)
    visits = dict(state.visits)
    mean = dict(state.accuracy)
    for k, accuracy in accuracies.items():
        visits[k] = visits.get(k, 0) + 1
        ncs[k] = ncs.get(k, 0) + (k in flagged)
        found = 0.0 if math.isnan(accuracy) else accuracy
        before = mean.get(k, 0.0)
        mean[k] = before + (found - before) / visits[k]
    return replace(state, ncs=ncs, visits=visits, accuracy=mean)
