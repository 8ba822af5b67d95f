"""The course of an audit, as its server sees it: a few dozen maps over all clients, and what comes
of them.

1. Clients send moments of their features; the server finds the axes that everybody works on.
2. Heads for all folds are trained on everybody. Whose labels agree best with what heads say that
   never saw them is trusted, and the next best who hold classes that these lack; heads are trained
   on the trusted alone.
3. With these, everybody's mistakes are counted, and heads are trained on everybody again, knowing
   them. Counting and training take turns. Then the clients whose labels look best say how sure
   heads may be, and what they get wrong themselves.
4. Clients vote on each other's samples, classes span subspaces, and every client concludes.

Every step is a mean of what clients send; it is the same as if all samples lay in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfl.arrays import Floats
from rayfl.audit.calibration import (
    CONFIDENCES,
    fade,
    find_floor,
    widen_edges,
    widen_spread,
)
from rayfl.audit.duplicates import Duplicate
from rayfl.audit.features import find_axes, place_samples, send_moments
from rayfl.audit.heads import HeadDescent, Singles
from rayfl.audit.phases import (
    Heard,
    compare_labels,
    conclude,
    count_labels,
    count_settled,
    hear_votes,
    send_slope,
    send_spans,
    train_own_head,
    weigh_sharpness,
)
from rayfl.audit.plan import AuditPlan
from rayfl.audit.selection import choose_best, choose_trusted
from rayfl.audit.transitions import find_pattern, measure_rate, shrink_transition
from rayfl.fleet.base import BaseFleet
from rayfl.protocol import ClientId, Ref, Replies, Report

SHARPNESS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""How much surer heads may be than they say."""

Say = Callable[[str], object]
ById = Mapping[ClientId, float]


@dataclass(frozen=True)
class Sent:
    """What one stage would have sent in a real federation, in bytes over all clients."""

    stage: str
    what: str
    up: int
    down: int


@dataclass
class Evidence:
    """All that clients have sent, and what was found of single samples, which in a real federation
    would lie with them."""

    clients: list[ClientId]
    counts: dict[ClientId, list[int]] = field(default_factory=dict)
    trusted: list[ClientId] = field(default_factory=list)
    disagreement: dict[ClientId, float] = field(default_factory=dict)
    expertise: dict[ClientId, float] = field(default_factory=dict)
    votes: dict[ClientId, Floats] = field(default_factory=dict)
    reliability: dict[ClientId, float] = field(default_factory=dict)
    transitions: dict[ClientId, Floats] = field(default_factory=dict)
    concluded: dict[ClientId, Report] = field(default_factory=dict)
    opinions: dict[ClientId, Singles] = field(default_factory=dict)
    likely: dict[ClientId, Singles] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class AuditCourse:
    """One audit on one fleet.

    Parameters
    ----------
    fleet
        Whose clients are asked.
    plan
        The settings.
    say
        Told what is being done.
    """

    def __init__(self, fleet: BaseFleet, plan: AuditPlan, say: Say) -> None:
        self.fleet = fleet
        self.plan = plan
        self.say = say
        self.evidence = Evidence(list(fleet.clients))
        self.sizes = {client: fleet.size(client) for client in fleet.clients}
        self.width = 0
        self.sharpness = 1.0

    def run(self) -> Evidence:
        """The whole course."""
        self._place()
        first = self._warm_up()
        trusted = self._choose_trusted(first)
        heads = self._learn_mistakes(trusted)
        self._calibrate(heads)
        self._vote()
        self._conclude(heads, trusted, self._span())
        return self.evidence

    # -- stages ------------------------------------------------------------------------------------

    def _place(self) -> None:
        self._begin("finding axes")
        plan, fleet = self.plan, self.fleet
        got = fleet.map(send_moments, fleet.clients)
        first, second = (got.mean(self.sizes, key) for key in ("first", "second"))
        served = fleet.serve(
            find_axes, first=first, second=second, axes=plan.axes, ridge=plan.ridge
        )
        axes = served.report["axes"]
        placed = fleet.map(
            place_samples, fleet.clients, projection=served["w"], axes=axes, folds=plan.folds
        )
        self.evidence.counts = {client: list(out["counts"]) for client, out in placed.items()}
        self.width = axes + 1
        self._end("axes", "moments of features up, a projection down")

    def _warm_up(self) -> Singles:
        self._begin("training heads on everybody")
        start = np.zeros((self.plan.folds, self.width, self.fleet.classes), np.float32)
        heads = self._descend(start, dict.fromkeys(self.fleet.clients, 1.0), self.plan.warmup)
        self._end("heads", "slopes of heads up, heads down")
        return heads

    def _choose_trusted(self, heads: Singles) -> Singles:
        """Heads of those whose labels agree best with heads that never saw them."""
        self._begin("choosing whom to trust")
        for _ in range(self.plan.choices):
            chosen = choose_trusted(self._compare(heads), self.evidence.counts, self.plan)
            self.evidence.trusted = chosen
            heads = self._descend(heads, dict.fromkeys(chosen, 1.0), self.plan.trusting)
        self._compare(heads)
        self._end("trust", "agreement and slopes of heads up, heads down")
        return heads

    def _compare(self, heads: Singles) -> dict[ClientId, float]:
        got = self.fleet.map(compare_labels, self.fleet.clients, heads=self._put(heads))
        found = {client: float(out["disagreement"]) for client, out in got.items()}
        self.evidence.disagreement = found
        sums = np.sum([out["confidence"] for out in got.values()], axis=0)
        held = np.sum([*self.evidence.counts.values()], axis=0)
        # A class that nobody gave is never reached.
        self.thresholds = np.where(held > 0, sums / np.maximum(held, 1), 2.0)
        return found

    def _learn_mistakes(self, heads: Singles) -> Singles:
        self._begin("learning how labels go wrong")
        plan = self.plan
        everybody = dict.fromkeys(self.fleet.clients, 1.0)
        for _ in range(plan.turns):
            self._count(heads)
            heads = self._descend(heads, everybody, plan.steps)
            self.sharpness = self._sharpen(heads)
        self._count(heads)
        self._end("mistakes", "counts of a client's classes and slopes up, heads down")
        return heads

    def _count(self, heads: Singles) -> None:
        """Everybody's transition matrix, from what heads say now."""
        known = self.evidence.transitions
        each = {client: {"transition": known.get(client)} for client in self.fleet.clients}
        shared = {"heads": self._put(heads), "sharpness": self.sharpness}
        got = self.fleet.map(count_labels, each, each=each, **shared)
        counts = {client: np.asarray(out["counts"], np.float64) for client, out in got.items()}
        self.pattern = find_pattern(np.sum([*counts.values()], axis=0))
        self.evidence.transitions = {
            client: shrink_transition(found, self.pattern, self.plan.strength)
            for client, found in counts.items()
        }

    def _sharpen(self, heads: Singles) -> float:
        """How much surer heads should be, by the likelihood of what was written."""
        likelihood = self._weigh(heads, self.fleet.clients, grid=SHARPNESS, most=1.0)
        return SHARPNESS[int(np.argmax(likelihood))]

    def _weigh(
        self, heads: Singles, among: Sequence[ClientId], grid: Sequence[float], most: float
    ) -> Floats:
        """How likely labels of these clients are for each sharpness of a grid."""
        got = self.fleet.map(
            weigh_sharpness,
            among,
            heads=self._put(heads),
            pattern=self.pattern,
            most=most,
            grid=grid,
        )
        return np.asarray(np.sum([out["likelihood"] for out in got.values()], axis=0))

    def _calibrate(self, heads: Singles) -> None:
        """How sure heads may be, and what they get wrong themselves, from the best clients."""
        self._begin("measuring the heads' own mistakes")
        plan = self.plan
        counts, doubt = self._settle(heads, self.fleet.clients)
        best = choose_best(counts, plan.best, plan.alike)
        rate = measure_rate(np.sum([counts[one] for one in best], axis=0))
        per_class = sum(self.sizes.values()) / self.fleet.classes
        taken = fade(rate, widen_edges(plan.doubtful, doubt, per_class))
        likelihood = self._weigh(heads, best, CONFIDENCES, plan.supposed)
        surest = min(CONFIDENCES[int(np.argmax(likelihood))], self.sharpness)
        self.sharpness *= (surest / self.sharpness) ** taken
        found, _ = self._settle(heads, best)
        whole = np.sum([*found.values()], axis=0)
        self.floor = find_floor(whole, self.pattern, plan.strength, taken)
        self.spread = widen_spread(plan.spread, doubt, per_class)
        self._end("calibration", "counts of a client's classes and likelihoods up, heads down")

    def _settle(
        self, heads: Singles, among: Sequence[ClientId]
    ) -> tuple[dict[ClientId, Floats], float]:
        """How often each class was written as each label at these clients, by settled mistakes; and
        how unsure heads are."""
        known = self.evidence.transitions
        got = self.fleet.map(
            count_settled,
            among,
            each={client: {"transition": known[client]} for client in among},
            heads=self._put(heads),
            pattern=self.pattern,
            strength=self.plan.strength,
            sharpness=self.sharpness,
        )
        counts = {client: np.asarray(out["counts"], np.float64) for client, out in got.items()}
        sizes = [self.sizes[client] for client in got]
        doubt = float(np.average([out["doubt"] for out in got.values()], weights=sizes))
        return counts, doubt

    def _vote(self) -> None:
        self._begin("asking clients about each other")
        plan, fleet = self.plan, self.fleet
        own = fleet.map(train_own_head, fleet.clients, steps=plan.warmup, decay=plan.decay)
        self.evidence.expertise = {client: float(out["expertise"]) for client, out in own.items()}
        peers = {client: self._choose_peers(client, fleet.clients) for client in fleet.clients}
        refs = {client: own.ref(client) for client in fleet.clients}
        each = {
            client: {"peers": {peer: refs[peer] for peer in chosen}}
            for client, chosen in peers.items()
        }
        heard = fleet.map(hear_votes, fleet.clients, each=each)
        self.evidence.votes = {client: out["confusion"] for client, out in heard.items()}
        self.evidence.reliability = average_reliability(heard)
        self._end("votes", "own heads up, others' heads down, confusions up")

    def _choose_peers(self, client: ClientId, among: Sequence[ClientId]) -> list[ClientId]:
        others = [other for other in among if other != client] or [client]
        rng = self.fleet.rng(self.fleet.round, f"peers {client}")
        drawn = rng.permutation(len(others))[: max(self.plan.peers, 1)]
        return sorted(others[place] for place in drawn.tolist())

    def _span(self) -> Floats:
        """Directions of every class, for every fold from the other folds."""
        self._begin("spanning classes")
        plan, fleet = self.plan, self.fleet
        axes = min(plan.span_axes, self.width - 1)
        got = fleet.map(send_spans, self.evidence.trusted, folds=plan.folds, axes=axes)
        weights = {client: self.sizes[client] for client in got}
        moments = np.asarray(fleet.get(got.mean(weights)), np.float64)
        shaped = moments.reshape(plan.folds, fleet.classes, axes, axes)
        others = shaped.sum(axis=0) - shaped
        vectors = np.linalg.eigh(others)[1][..., ::-1]
        self._end("subspaces", "second moments of classes up, directions down")
        return np.ascontiguousarray(vectors[..., : plan.span])

    def _conclude(self, heads: Singles, first: Singles, bases: Floats) -> None:
        self._begin("concluding")
        fleet, found = self.fleet, self.evidence
        each = {
            client: {
                "heard": Heard(
                    found.transitions[client],
                    self.pattern,
                    self.floor,
                    self.sharpness,
                    self.spread,
                    self.thresholds,
                    bases,
                )
            }
            for client in fleet.clients
        }
        got = fleet.map(
            conclude,
            fleet.clients,
            each=each,
            heads=self._put(heads),
            first=self._put(first),
            rules=self.plan,
        )
        found.concluded = {client: dict(out) for client, out in got.items()}
        for client in fleet.clients:
            found.opinions[client] = np.array(self._fetch(client, "opinions"))
            found.likely[client] = np.array(self._fetch(client, "likely"))
        self._end("conclusions", "shares, counts and doubts of a client up")

    # -- what stages share -------------------------------------------------------------------------

    def _descend(self, heads: Singles, weights: ById, steps: int) -> Singles:
        """Steps of all heads on what the weighted clients send."""
        descent = HeadDescent(heads, self.plan.decay)
        classes = self.fleet.classes
        known = self.evidence.transitions
        each = {client: {"transition": known.get(client, np.eye(classes))} for client in weights}
        scaled = {client: weight * self.sizes[client] for client, weight in weights.items()}
        # A head sees all folds but one, and the mean is over all.
        share = (self.plan.folds - 1) / self.plan.folds
        for _ in range(steps):
            shared = {"heads": self._put(descent.ahead), "sharpness": self.sharpness}
            got = self.fleet.map(send_slope, weights, each=each, **shared)
            slope = np.asarray(self.fleet.get(got.mean(scaled))).reshape(heads.shape)
            descent.step(slope / np.float32(share))
        return descent.heads

    def _put(self, heads: Singles) -> Ref:
        return self.fleet.put(np.ascontiguousarray(heads).ravel())

    def _fetch(self, client: ClientId, key: str) -> Any:
        stored = self.fleet.state(client, key)
        assert stored is not None
        return self.fleet.get(stored)

    def _begin(self, what: str) -> None:
        self.say(what)
        # Streams are a round's: each stage has its own.
        self.fleet.round += 1

    def _end(self, stage: str, what: str) -> None:
        taken = self.fleet.costs.take()
        self.evidence.sent.append(Sent(stage, what, taken["up"], taken["down"]))


def average_reliability(heard: Replies | Mapping[ClientId, Report]) -> dict[ClientId, float]:
    """How reliable each client's head is, over all that heard it."""
    told: dict[ClientId, list[float]] = {}
    for report in heard.values():
        for peer, value in report["reliability"].items():
            told.setdefault(peer, []).append(float(value))
    return {client: float(np.mean(values)) for client, values in sorted(told.items())}
