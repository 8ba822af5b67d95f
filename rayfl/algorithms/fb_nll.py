"""FB-NLL: users are clustered, and their labels corrected, by the spectra of features, before any
training.

"FB-NLL: a feature-based approach to tackle noisy labels in personalized federated learning",
Algorithm 1.

Clusters (Procedure 1). User k takes the eigenpairs (lambda_i, v_i) of its uncentred covariance
Sigma_k = Phi_k^T Phi_k / n_k and sends the top q directions, once, to all others. The response of
its own data to a direction of user j, e_i = ||Sigma_k v_i^(j)||, should be near lambda_i if the two
learn the same task:

    r(k, j) = (prod_i min(lambda_i, e_i) / max(lambda_i, e_i))^(1/q)        R_kj = (r(k, j) + r(j, k)) / 2

The server cuts a hierarchy on 1 - R into exactly M clusters. Labels are never read, so their noise
cannot matter.

Labels (Procedure 2). The server owns a few clean samples of every class. The same similarity
compares what a user calls c~ with each clean class: if a single class reaches tau, all of those
samples become that class; otherwise each goes to the class on whose subspace its projection is
longest. Labels never leave the user.

Training. Each cluster averages its own model over its users, all counting the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayfl.algorithms.fedavg import train
from rayfl.component import Count, Fraction, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.estimate import agglomerate, calibrate, cut, nearest_class, spectra, spectral
from rayfl.estimate.subspace import Rank, Spectra, energies, relabel_class, relevance
from rayfl.learn.fit import outputs
from rayfl.models import ENCODERS
from rayfl.models.encoders.base import EncoderSpec
from rayfl.models.encoders.hog import HoG
from rayfl.models.encoders.pretrained import ImageNetResNet18
from rayfl.protocol import (
    SERVER,
    Algorithm,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Replies,
    Shard,
    Vector,
)

Floats = NDArray[np.float64]
Features = NDArray[np.float32]

NULL = 1e-10
"""Eigenvalues below this share of the largest are rounding: a user with few samples has no such
direction."""


@dataclass(frozen=True)
class Clustered:
    """A model for each cluster; from the first round on who is in which, and the similarities
    behind that."""

    models: tuple[Ref, ...]
    clusters: Mapping[ClientId, int] = field(default_factory=dict)
    similarity: Floats | None = None
    merges: Floats | None = None


# -- clustering: what users do (Procedure 1) -------------------------------------------------------------------------


def sketch(client: Client, *, q: int) -> Out:
    """The user's top directions, for all others; its eigenvalues stay with it."""
    own = spectra([client.features["clustering"]], keep=q)
    return Out(update=sent(own)[0], state={"eigenvalues": own.values[0]})


def compare(
    client: Client, *, others: Mapping[ClientId, Vector], rank: Rank, threshold: float
) -> Out:
    """r(k, j) with every other user j: how this user's data respond to the directions of theirs."""
    own, values = covariance(client.features["clustering"])[None], client.state["eigenvalues"]
    along = [energies(own, widened(directions)[None])[0, 0] for directions in others.values()]
    return Out(
        {"relevance": [float(relevance(values, energy, rank, threshold)) for energy in along]}
    )


def sent(own: Spectra) -> Features:
    """Eigenvectors as they travel: zero where the data have no further direction."""
    real = own.values > NULL * own.values[:, :1]
    return np.where(real[:, None], own.vectors, 0.0).astype(np.float32)


def widened(values: Features) -> Floats:
    """What travelled in single precision, ready for double."""
    return values.astype(np.float64)


def covariance(features: Features) -> Floats:
    """Phi^T Phi / n."""
    exact = widened(features)
    return np.asarray(exact.T @ exact / len(exact))


# -- correction: what the server and users do (Procedure 2) ----------------------------------------------------------


def count_clean(server: Client, *, clean: Shard) -> Out:
    """How many clean samples the server holds of each class that the network tells apart."""
    classes = outputs(server.learner, None, clean.x[:1]).shape[1]
    return Out({"held": np.bincount(labels_of(clean), minlength=classes)})


def summarise(
    server: Client,  # noqa: ARG001
    *,
    clean: Shard,
    class_rank: int,
    sample_rank: int | None,
    tau: float | None,
) -> Out:
    """Every clean class's eigenvectors Q^c for the users; threshold and rank from the same samples
    if not given."""
    classes = by_class(clean)
    found = calibrate(classes, class_rank)
    rank = found.sample_rank if sample_rank is None else sample_rank
    known = spectra(list(classes.values()), keep=max(class_rank, rank))
    chosen = {"tau": found.tau if tau is None else tau, "sample_rank": rank}
    return Out(chosen, update=known.vectors.astype(np.float32), state={"eigenvalues": known.values})


def ask(client: Client, *, bases: Features, class_rank: int) -> Out:
    """For each label that the user holds: its directions for the server, its own r(c~, c) for
    itself."""
    features, subspaces = client.features["correction"], widened(bases[:, :, :class_rank])
    directions, toward = [], []
    for label in np.unique(client.y):
        own = spectra([features[client.y == label]], keep=class_rank)
        directions.append(sent(own)[0])
        toward.append(relevance(own.values, energies(own.covariances, subspaces)[0]))
    return Out(update=np.stack(directions), state={"toward": np.stack(toward)})


def answer(server: Client, *, asked: Features, clean: Shard, values: Floats) -> Out:  # noqa: ARG001
    """The server's r(c, c~) of one user's classes (rows) to every clean class (columns)."""
    directions, rank = widened(asked), asked.shape[2]
    along = [
        energies(covariance(features)[None], directions)[0] for features in by_class(clean).values()
    ]
    relevances = [relevance(own[:rank], energy) for own, energy in zip(values, along, strict=True)]
    return Out({"relevance": np.stack(relevances, axis=1)})


def relabel(
    client: Client, *, answered: Floats, bases: Features, tau: float, sample_rank: int
) -> Out:
    """Whole classes that are like exactly one clean class move to it; the others go sample by
    sample."""
    given, features, subspaces = (
        client.y,
        client.features["correction"],
        widened(bases[:, :, :sample_rank]),
    )
    corrected, whole = given.copy(), 0
    # Membership is read from the labels as they were: a sample moved once must not be moved again.
    for label, similar in zip(
        np.unique(given), (client.state["toward"] + answered) / 2, strict=True
    ):
        members, moved = given == label, relabel_class(similar, tau)
        corrected[members] = nearest_class(features[members], subspaces) if moved is None else moved
        whole += moved is not None
    changed = int((corrected != given).sum())
    return Out(
        {"_changed": changed, "_classes": len(answered), "_whole": whole}, state={"y": corrected}
    )


def by_class(clean: Shard) -> dict[int, Features]:
    """The clean features of each class, in the order of classes."""
    labels = labels_of(clean)
    return {int(c): clean.features["correction"][labels == c] for c in np.unique(labels)}


def labels_of(clean: Shard) -> NDArray[np.int64]:
    assert clean.y is not None, "the method declares that it reads the labels of the validation set"
    return clean.y


# -- the methods -----------------------------------------------------------------------------------------------------


@component
class FbNllMinus(Algorithm):
    """Users are clustered by the spectra of their features; each cluster trains a model. Labels
    stay as they are."""

    citation: ClassVar[str] = "FB-NLL, Algorithm 1 without line 20"
    personal: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper names no linkage: average on 1 - R, ties to the users with the smallest numbers.",
        "The geometric mean takes min(#{lambda > t}, #{e > t}) directions, at most q, with t = threshold * lambda_1; "
        "the paper always takes q (rank: fixed) and leaves weak directions open.",
        "Directions in which a user has no variance at all (fewer samples than q) are sent as zeros.",
        "The clusters begin with one and the same random model; the paper leaves open whether they differ.",
        "Users that a round's draw leaves out do not train; the paper's rounds have everybody (training.fraction).",
        "Clusters are found at the beginning of the first round, so that their cost is in the books.",
    )

    models: Count = 2
    """M, the clusters, each with a model of its own. Paper: 2, 3 or 5, the number of tasks; 1 is
    `single_global`."""
    clustering: Literal["average", "single", "complete", "spectral"] = "average"
    """Linkage of the hierarchy on 1 - R, or spectral clustering of R. Paper: hierarchical, linkage
    not given."""
    q: Count = 10
    """Directions that a user sends. Paper: 10."""
    rank: Rank = "shared"
    """Directions that count: those with variance on both sides (`shared`), or all q (`fixed`, the
    paper's equation)."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1e-3
    """What counts as variance, as a share of the largest eigenvalue. Paper: not given."""
    clustering_encoder: Annotated[EncoderSpec, slot(ENCODERS)] = HoG()
    """Phi. Paper: HoG on CIFAR-10, ResNet-18 of ImageNet on SVHN."""

    def encoders(self) -> Mapping[str, EncoderSpec]:
        return {"clustering": self.clustering_encoder}

    def check(self, fleet: Fleet) -> None:
        if self.models > len(fleet.clients):
            rule = (
                f"method.models is at most the number of clients with data ({len(fleet.clients)})"
            )
            raise ConfigError(
                broken(rule, self.models, "Ask for fewer clusters or bring more clients.")
            )

    def init(self, fleet: Fleet, model: Ref) -> Clustered:
        return Clustered((model,) * self.models)

    def round(self, state: Clustered, fleet: Fleet, t: int) -> Clustered:
        state = state if state.clusters else self.prepare(state, fleet, t)
        cohort = fleet.sample(t)
        got = fleet.map(
            train, cohort, each={k: {"w": state.models[state.clusters[k]]} for k in cohort}
        )
        return replace(state, models=cluster_means(got, state))

    def model(self, state: Clustered, client: ClientId | None = None) -> Ref:
        return state.models[0 if client is None else state.clusters.get(client, 0)]

    def clusters(self, state: Clustered) -> Mapping[ClientId, int]:
        return state.clusters

    def prepare(self, state: Clustered, fleet: Fleet, t: int) -> Clustered:
        """Everything that happens once, before training."""
        similarity = self.similarities(fleet)
        labels, merges = self.grouped(similarity, fleet, t)
        fleet.leave("similarity", similarity)
        if merges is not None and len(merges):
            fleet.leave("dendrogram", merges)
        fleet.log(**separation(similarity, labels))
        clusters = dict(zip(sorted(fleet.clients), labels.tolist(), strict=True))
        return replace(state, clusters=clusters, similarity=similarity, merges=merges)

    def similarities(self, fleet: Fleet) -> Floats:
        """R, from one exchange of directions and one of relevances."""
        directions = relayed(fleet.map(sketch, fleet.clients, q=self.q))
        each = {k: {"others": {j: v for j, v in directions.items() if j != k}} for k in directions}
        got = fleet.map(compare, directions, each=each, rank=self.rank, threshold=self.threshold)
        r = np.eye(len(directions))
        r[r == 0] = np.concatenate([got[k]["relevance"] for k in directions])
        return np.asarray((r + r.T) / 2)

    def grouped(
        self, similarity: Floats, fleet: Fleet, t: int
    ) -> tuple[NDArray[np.int64], Floats | None]:
        """The cluster of each user, and the merge history where there is one."""
        if self.clustering == "spectral":
            return spectral(similarity, self.models, fleet.rng(t, "clustering")), None
        merges = agglomerate(1 - similarity, self.clustering)
        return cut(merges, self.models), merges


@component
class FbNll(FbNllMinus):
    """Users are clustered, and their labels corrected against a few clean samples, by the spectra
    of their features."""

    citation: ClassVar[str] = "FB-NLL, Algorithm 1"
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"validation": "labels"}
    deviations: ClassVar[tuple[str, ...]] = (
        *FbNllMinus.deviations,
        "tau, l and the rank of the sample-wise phase are not printed: tau and the rank are calibrated on the halves "
        "of the server's clean samples, l is 5.",
        "One rank serves all classes in the sample-wise phase: a larger subspace would win by its size.",
        "All classes are candidates, and all local labels are checked, whatever the user's task.",
        "Labels are relabelled from one snapshot; the paper's loop might move a sample twice.",
    )

    tau: Fraction | None = None
    """tau_sim, what a class must reach to be recognised as a whole; calibrated if not given. Paper:
    not given."""
    class_rank: Count = 5
    """l, directions of a class that are compared. Paper: not given."""
    sample_rank: Count | None = None
    """Dimension of the subspaces that samples are projected on; calibrated if not given. Paper: not
    given."""
    correction_encoder: Annotated[EncoderSpec, slot(ENCODERS)] = ImageNetResNet18()
    """Phi of the correction. Paper: ResNet-18 of ImageNet (its weights must be at hand; `hog` needs
    none)."""

    def encoders(self) -> Mapping[str, EncoderSpec]:
        return {**super().encoders(), "correction": self.correction_encoder}

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        held = fleet.map(count_clean, [SERVER], clean=fleet.data("validation"))[SERVER]["held"]
        if held.min() < 2:
            rule = "split.validation holds two samples or more of every class"
            raise ConfigError(
                broken(
                    rule, f"{held.min()} of class {held.argmin()}", "Use {per_class: 2} or more."
                )
            )

    def prepare(self, state: Clustered, fleet: Fleet, t: int) -> Clustered:
        clustered = super().prepare(state, fleet, t)
        self.correct(fleet)
        return clustered

    def correct(self, fleet: Fleet) -> None:
        """Procedure 2 with all users at once."""
        clean = fleet.data("validation")
        settings: Mapping[str, Any] = {
            "class_rank": self.class_rank,
            "sample_rank": self.sample_rank,
            "tau": self.tau,
        }
        known = fleet.map(summarise, [SERVER], clean=clean, **settings)
        bases, chosen = known.mean({SERVER: 1.0}), known[SERVER]
        asked = relayed(fleet.map(ask, fleet.clients, bases=bases, class_rank=self.class_rank))
        each = {SERVER - i: {"asked": directions} for i, directions in enumerate(asked.values())}
        told = fleet.map(
            answer, each, each=each, clean=clean, values=fleet.state(SERVER, "eigenvalues")
        )
        answers = {k: {"answered": told[SERVER - i]["relevance"]} for i, k in enumerate(asked)}
        got = fleet.map(relabel, answers, each=answers, bases=bases, **chosen)
        total = {
            key: sum(report[key] for report in got.values())
            for key in ("_changed", "_classes", "_whole")
        }
        fleet.log(**{f"correction/{name}": float(value) for name, value in chosen.items()})
        fleet.log(**{"correction/whole_classes": total["_whole"] / total["_classes"]})
        fleet.log(**{"correction/changed": total["_changed"] / sum(map(fleet.size, fleet.clients))})


def relayed(got: Replies) -> dict[ClientId, Ref]:
    """What each user uploaded, by reference, as the server passes it on."""
    return {client: got.mean({client: 1.0}) for client in got}


def cluster_means(got: Replies, state: Clustered) -> tuple[Ref, ...]:
    """The unweighted mean of each cluster; one of whose users none replied keeps its model."""
    teams = [[k for k in got if state.clusters[k] == m] for m in range(len(state.models))]
    return tuple(
        got.mean(dict.fromkeys(team, 1.0)) if team else model
        for team, model in zip(teams, state.models, strict=True)
    )


def separation(similarity: Floats, labels: NDArray[np.int64]) -> dict[str, float]:
    """How well the clusters stand apart: the least similar pair inside one, the most similar pair
    across two."""
    together = labels[:, None] == labels
    inside = similarity[together & ~np.eye(len(labels), dtype=bool)].min(initial=np.inf)
    across = similarity[~together].max(initial=-np.inf)
    return {"clusters/lowest_within": float(inside), "clusters/highest_across": float(across)}
