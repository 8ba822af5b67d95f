"""FedRN: clients judge their labels together with k reliable neighbours, and train on what is
likely clean.

S. Kim, W. Shin, S. Jang, H. Song, S.-Y. Yun: "FedRN: exploiting k-reliable neighbors towards robust
federated learning", CIKM 2022, Algorithm 1.

After a warm-up by federated averaging, the server ranks for each participant c all other clients j
by

    R(c, j) = alpha Exp(j) + (1 - alpha) Sim(c, j)                                          (Eq. 3)

Exp: accuracy of j's last local model on its own data, min-max scaled (Eq. 4); Sim: cosine of the
outputs of both last local models on one random input, min-max scaled (Eq. 5). The last local models
of the k best travel to c. There each model splits the losses of c's samples by a mixture of two
Gaussians; the clean posteriors, averaged with the weights R (Eq. 7), say which samples c trains on
(Eq. 8). Before that, the heads of the neighbours are fitted for one epoch to the samples that c's
own last model finds clean (Eq. 9)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.arrays import Bools, Floats
from rayfl.component import Count, Fraction, Natural, component, neutral
from rayfl.estimate.mixture import LossMixture
from rayfl.estimate.neighbours import (
    average_posteriors,
    choose_neighbours,
    compare_by_cosine,
    draw_neighbours,
    scale_expertise,
    scale_similarity,
    score_reliability,
)
from rayfl.estimate.probabilities import softmax
from rayfl.learn.batches import Batch
from rayfl.learn.divide import Division, divide, keep_some
from rayfl.learn.judge import judge
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Adjust, Fit, Fitting
from rayfl.learn.training import Training
from rayfl.models.network import Network, Shape
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Replies, Vector

PROBE_SEED = 20221017


Profile = tuple[float, Vector]
"""What the server knows of a client that took part: its training accuracy, and its answer (logits)
to the probe."""


@dataclass(frozen=True)
class Profiled(Global):
    """The global model, and the profile of every client that has taken part."""

    profile: Mapping[ClientId, Profile] = field(default_factory=dict)


# -- at the client ---------------------------------------------------------------------------------


def warm_up(client: Client, *, w: Vector, method: FedRN) -> Fitting[Out]:
    """A round of the warm-up: local SGD on all samples."""
    everything = np.ones(len(client), dtype=np.bool_)
    return (yield from train_on(client, w, everything, method))


def train_on_clean(
    client: Client,
    *,
    w: Vector,
    peers: Sequence[Vector],
    trust: Sequence[float],
    method: FedRN,
) -> Fitting[Out]:
    """Local SGD on the samples that the client's last model and its peers, weighted by trust, find
    clean."""
    own = divide_by_own(client, w, method)
    opinions = [own]
    for peer in peers:
        model = (yield from tune_head(client, peer, own.kept)) if method.fine_tune else peer
        opinions.append(divide_by(client, model, method))
    clean = average_posteriors([each.clean for each in opinions], trust)  # Eq. 7
    counts = {
        "unseparated": sum(not each.separated for each in opinions),
        "inverted": sum(each.inverted for each in opinions),
        "dropped": sum(not each.usable for each in opinions),
    }
    kept = keep_some(clean > method.threshold)  # Eq. 8
    return (yield from train_on(client, w, kept, method, **counts))


def train_on(client: Client, w: Vector, kept: Bools, method: FedRN, **counts: int) -> Fitting[Out]:
    """Train on the kept samples; report the accuracy on all of them and the answer to the probe."""
    trained = yield Fit(w, loss=method.loss, keep=kept)
    local = trained.weights
    accuracy = judge(client, local, batch_size=method.judging_batch).accuracy
    answer = answer_to_probe(client.learner, local, client.x.shape[1:])
    report = {"acc": accuracy, "q": answer, **counts}
    return Out(report, update=local, state={"w": local, "kept": kept})


def divide_by_own(client: Client, w: Vector, method: FedRN) -> Division:
    """By the client's last local model; by the global one where there is none, or none that
    works."""
    for model in (client.state.get("w", w), w):
        found = divide_by(client, model, method)
        if found.usable:
            return found
    # Training from such a global model diverges, and the round then leaves this client out.
    everything = np.ones(len(client), dtype=np.bool_)
    return Division(everything.astype(np.float64), everything, separated=True, inverted=0)


def divide_by(client: Client, model: Vector, method: FedRN) -> Division:
    """The mixture of this model's losses on all samples of the client, without augmentation."""
    judged = judge(client, model, batch_size=method.judging_batch)
    return divide(judged.losses, method.mixture, method.threshold)


def tune_head(client: Client, model: Vector, samples: Bools) -> Fitting[Vector]:
    """The model after one epoch on these samples in which nothing but its head moves (Eq. 9)."""
    # A copy of the stream: every neighbour sees the same batches, and the client's own training is
    # not disturbed.
    visitor = replace(client, rng=copy.deepcopy(client.rng))
    trained = yield Fit(
        model,
        loss=head_loss,
        adjust=decay_head(client.learner),
        keep=samples,
        client=visitor,
        settings={"epochs": 1, "steps": None, "weight_decay": 0.0},
    )
    return cast(Vector, trained.weights)


def decay_head(learner: Learner) -> Adjust:
    """Weight decay of the head alone, where the optimiser would apply it to the whole vector."""
    resident = learner.shape_of()
    spans = resident.span(cast(Network, resident.net).head)
    strength = learner.training.weight_decay

    def decay(parameters: Tensor, gradient: Tensor) -> None:
        for span in spans:
            gradient[span].add_(parameters[span], alpha=strength)

    return decay


def head_loss(net: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy whose gradient ends at the head; in evaluation mode the body keeps its
    BatchNorm statistics."""
    network = cast(Network, net)
    network.trunk.eval()
    with torch.no_grad():
        features = network.features(batch.x)
    return functional.cross_entropy(network.head(features), batch.y)


@torch.no_grad()
def answer_to_probe(learner: Learner, w: Vector, shape: Shape) -> Vector:
    """Logits for one image of standard normal noise (as network input), the same image for
    everybody."""
    height, width, channels = shape
    rng = np.random.default_rng(PROBE_SEED)
    noise = rng.standard_normal((1, channels, height, width), dtype=np.float32)
    net = learner.resident(w).net.eval()
    answer: Vector = net(torch.from_numpy(noise).to(learner.device))[0].float().cpu().numpy()
    return answer


# -- at the server ---------------------------------------------------------------------------------


class Roster(NamedTuple):
    """The profiles of all clients in ascending order of their ids; nan for those that are not
    `known`."""

    ids: list[ClientId]
    accuracies: Floats
    answers: Floats
    known: Bools

    @classmethod
    def of(cls, ids: Sequence[ClientId], profile: Mapping[ClientId, Profile]) -> Roster:
        classes = len(next(iter(profile.values()))[1]) if profile else 1
        unknown = (np.nan, np.full(classes, np.nan))
        accuracies, answers = zip(*(profile.get(client, unknown) for client in ids), strict=True)
        stacked = np.array(answers, dtype=np.float64)
        return cls(
            list(ids), np.array(accuracies), stacked, np.asarray(np.isfinite(stacked).all(axis=1))
        )


@component
class FedRN(FedAvg):
    """Clients train on samples that they and their k most reliable neighbours judge clean by their
    losses."""

    citation: ClassVar[str] = "Kim et al., CIKM 2022"
    metrics: ClassVar[Mapping[str, str]] = {
        "expertise/noise_correlation": "how the accuracy of clients on their own labels goes with "
        "their share of wrong ones (Pearson)",
        "mixtures/unseparated": "mixtures of this round, over all participants and models, whose "
        "losses do not hold two groups",
        "mixtures/inverted": "samples that count as wrong although every clean one has a larger "
        "loss",
        "mixtures/dropped": "models without a say, because some loss of theirs is not finite",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "Only clients that have taken part can be neighbours or count in a minimum or maximum; "
        "the authors' code gives the others a random network and a random answer to the probe.",
        "A client that first takes part after the warm-up judges by the global model, with "
        "expertise 0.5 and similarity 0 to everybody else.",
        "Models, accuracies and answers are those at the start of the round; in the authors' code "
        "later participants see the results of earlier ones.",
        "Losses for the mixture and the accuracy of Eq. 4 are taken without augmentation, in "
        "batches of `judging_batch` whose order follows from the images; the released code takes "
        "both with the training's augmentation, in shuffled batches of its local batch size, 50. "
        "Where BatchNorm has only its batch's statistics (cnn4), a batch of 128 in place of 50 "
        "changes 1.8 % of the selections, augmentation and batch together 2.6 to 3.6 %, and label "
        "precision by less than .006.",
        "The mixture starts from 2-means instead of random points, so it is deterministic.",
        "Where accuracies do not differ, expertise is 0.5; where similarities do not, they are 1; "
        "where all trust in an ensemble is 0, its models count equally.",
        "An empty clean or auxiliary set is replaced by all samples of the client.",
        "A neighbour whose losses are not finite is left out; an own model of that kind is "
        "replaced by the global one.",
        "While heads are fine-tuned, bodies run in evaluation mode: no dropout, and no change of "
        "BatchNorm statistics.",
        "Clients send logits for the probe; the server takes the softmax.",
    )

    k: Natural = 2
    """Neighbours of a participant. Paper: 1 and 2. Neutral: 0, a filter by the client's own
    model."""
    alpha: Fraction = 0.6
    """Share of expertise in the reliability, the rest is similarity. Paper: 0.6."""
    warmup: Natural = 100
    """Rounds of federated averaging before the first selection. Paper: 100 of 500 or 1000. Neutral:
    all rounds."""
    threshold: Fraction = 0.5
    """Clean probability above which a sample is kept. Paper: 0.5."""
    fine_tune: bool = True
    """Whether neighbours' heads are fitted to the client's data first. Paper: true, false in its
    Table 5."""
    neighbours: Literal["reliable", "random"] = "reliable"
    """`random` draws them uniformly and trusts everybody equally (the paper's Table 9)."""
    similarity_on: Literal["softmax", "logits"] = "softmax"
    """What answers are compared on. Paper: softmax; the authors' code compares logits."""
    judging_batch: Annotated[Count | None, neutral(None)] = None
    """Images in a batch when a model is asked about a client's samples, which decides what is kept
    where BatchNorm has only its batch's statistics. Released code: 50. Neutral: null, the run's
    `evaluation.batch_size`."""
    mixture: LossMixture = LossMixture()
    """Fit of the two Gaussians. The defaults are those of the authors' code, its loose tolerance
    included."""

    def init(self, fleet: Fleet, model: Ref) -> Profiled:
        return Profiled(model)

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        yield from warn_of_late_stage(
            "method.warmup",
            self.warmup,
            training.rounds,
            "no sample is ever judged, and every round is federated averaging",
        )

    def round(self, state: Global, fleet: Fleet, t: int) -> Profiled:
        known = cast(Profiled, state).profile
        cohort = fleet.sample(t)
        if t < self.warmup:
            got = fleet.map(warm_up, cohort, w=state.model, method=self)
        else:
            each = self.neighbourhoods(cohort, Roster.of(fleet.clients, known), fleet, t)
            got = fleet.map(train_on_clean, cohort, each=each, w=state.model, method=self)
            log_mixtures(got, fleet)
        news = {client: (report["acc"], report["q"]) for client, report in got.items()}
        profile = {**known, **news}
        self.leave_diagnostics(profile, fleet)
        return Profiled(self.aggregate(got, fleet), profile)

    def neighbourhoods(
        self, cohort: Sequence[ClientId], roster: Roster, fleet: Fleet, t: int
    ) -> dict[ClientId, dict[str, Any]]:
        """For each participant its neighbours' last local models, and R of itself and of them."""
        scores = self.scores(roster)
        rng = fleet.rng(t, "neighbours")
        each: dict[ClientId, dict[str, Any]] = {}
        for client in cohort:
            target = roster.ids.index(client)
            if self.neighbours == "random":
                best = draw_neighbours(target, len(roster.ids), self.k, rng, roster.known)
            else:
                best = choose_neighbours(scores[target], target, self.k, roster.known)
            peers = [fleet.state(roster.ids[n], "w") for n in best]
            each[client] = {"peers": peers, "trust": scores[target, [target, *best]].tolist()}
        return each

    def scores(self, roster: Roster) -> Floats:
        """R(c, j) of all pairs."""
        if self.neighbours == "random":
            return np.ones((len(roster.ids), len(roster.ids)))
        expert = scale_expertise(roster.accuracies, roster.known)
        return score_reliability(
            expert, scale_similarity(roster.answers, self.similarity_on, roster.known), self.alpha
        )

    def leave_diagnostics(self, profile: Mapping[ClientId, Profile], fleet: Fleet) -> None:
        """Accuracies, to be held against true noise rates, and the cosines of all answers."""
        roster = Roster.of(fleet.clients, profile)
        fleet.estimate("expertise", {client: accuracy for client, (accuracy, _) in profile.items()})
        answers = np.where(roster.known[:, None], roster.answers, 0.0)
        cosines = compare_by_cosine(
            softmax(answers) if self.similarity_on == "softmax" else answers
        )
        fleet.leave("similarity", np.where(roster.known[:, None] & roster.known, cosines, np.nan))


def log_mixtures(got: Replies, fleet: Fleet) -> None:
    """How often the mixtures of this round were not what the method hopes for, over all
    participants and models."""
    for name in ("unseparated", "inverted", "dropped"):
        fleet.log(**{f"mixtures/{name}": float(sum(report[name] for report in got.values()))})
