"""FB-NLL: users are clustered, and their labels corrected, by the spectra of features, before any
training.

"FB-NLL: a feature-based approach to tackle noisy labels in personalized federated learning",
Algorithm 1.

Clusters (Procedure 1). User k takes the eigenpairs (lambda_i, v_i) of its uncentred covariance
Sigma_k = Phi_k^T Phi_k / n_k and sends the top q directions, once, to all others. The response of
its own data to a direction of user j, e_i = ||Sigma_k v_i^(j)||, should be near lambda_i if the two
learn the same task:

    r(k, j) = (prod_i min(lambda_i, e_i) / max(lambda_i, e_i))^(1/q)
    R_kj = (r(k, j) + r(j, k)) / 2

The server cuts a hierarchy on 1 - R into exactly M clusters. Labels, and so noise, are never read.

Labels (Procedure 2). The server owns a few clean samples of every class. The same similarity
compares what a user calls c~ with each clean class: if a single class reaches tau, all of those
samples become that class; otherwise each goes to the class on whose subspace its projection is
longest. Labels never leave the user.

Training. Each cluster averages its own model over its users, all counting the same; or any other
method, the host, is played within each cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayfl.algorithms import METHODS
from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.algorithms.parts.leave_out import leave_out
from rayfl.algorithms.parts.weighting import Equal
from rayfl.algorithms.parts.within_clusters import WithinClusters
from rayfl.arrays import Features, Floats
from rayfl.component import Count, Fraction, Natural, component, neutral, slot
from rayfl.errors import ConfigError, broken
from rayfl.estimate import (
    Criterion,
    agglomerate,
    calibrate_correction,
    cluster_spectrally,
    cut_hierarchy,
    decompose_features,
    find_nearest_class,
)
from rayfl.estimate.clustering import measure_separation
from rayfl.estimate.label_correction import RANKS, relabel_class
from rayfl.estimate.subspace import Rank, measure_energies, measure_relevance
from rayfl.learn.losses import LOSSES
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss
from rayfl.learn.training import Training
from rayfl.models import ENCODERS
from rayfl.models.encoders.base import EncoderSpec
from rayfl.models.encoders.hog import HoG
from rayfl.models.encoders.pretrained import ImageNetResNet18
from rayfl.protocol import (
    SERVER,
    Algorithm,
    Blueprint,
    Client,
    ClientId,
    Fleet,
    Model,
    Out,
    Ref,
    Shard,
    State,
    Vector,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Clustered:
    """The first weights; from the first round on who is in which cluster, the host's state in each,
    and the similarities behind that."""

    first: Ref
    clusters: Mapping[ClientId, int] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    similarity: Floats | None = None
    merges: Floats | None = None
    corrected: bool = False


# -- clustering: what users do (Procedure 1) -------------------------------------------------------


def sketch(client: Client, *, q: int) -> Out:
    """The user's top directions, for all others; its eigenvalues stay with it."""
    own = decompose_features([client.features["clustering"]], keep=q)
    return Out(update=narrow(own.vectors[0]), state={"eigenvalues": own.values[0]})


def compare(client: Client, *, others: Mapping[ClientId, Vector], method: FbNllMinus) -> Out:
    """r(k, j) with every other user j: how this user's data respond to the directions of theirs."""
    own = measure_covariance(client.features["clustering"])[None]
    values = client.state["eigenvalues"]
    relevances = {}
    for j, directions in others.items():
        energy = measure_energies(own, widen(directions)[None])[0, 0]
        relevances[j] = float(measure_relevance(values, energy, method.criterion))
    return Out({"relevance": relevances})


def narrow(vectors: Floats) -> Features:
    """Eigenvectors as they travel: in single precision."""
    return vectors.astype(np.float32)


def widen(values: Features) -> Floats:
    """What travelled in single precision, ready for double."""
    return values.astype(np.float64)


def measure_covariance(features: Features) -> Floats:
    """Phi^T Phi / n."""
    exact = widen(features)
    return np.asarray(exact.T @ exact / len(exact))


# -- correction: what the server and users do (Procedure 2) ----------------------------------------


def count_clean(server: Client, *, clean: Shard) -> Out:
    """How many clean samples the server holds of each class that the network tells apart."""
    return Out({"held": server.on(clean).class_counts})


def summarise(server: Client, *, clean: Shard, method: FbNll) -> Out:
    """Every clean class's eigenvectors Q^c for the users; threshold and rank from the same samples
    if not given, and how well this rank does on them."""
    classes = features_by_class(clean)
    ranks = RANKS if method.sample_rank is None else (method.sample_rank,)
    found = calibrate_correction(classes, method.class_criterion, ranks)
    rank = found.sample_rank
    tau = found.tau if method.tau is None else method.tau
    known = decompose_features(list(classes.values()), keep=max(method.class_rank, rank))
    report = {"tau": tau, "sample_rank": rank, "projection_accuracy": found.accuracy}
    return Out(report, narrow(known.vectors), state={"eigenvalues": known.values})


def ask(client: Client, *, bases: Features, method: FbNll) -> Out:
    """For each label that the user holds: its directions for the server, its own r(c~, c) for
    itself."""
    features = client.features["correction"]
    subspaces = widen(bases[:, :, : method.class_rank])
    directions = []
    toward = []
    for label in np.unique(client.y):
        own = decompose_features([features[client.y == label]], keep=method.class_rank)
        directions.append(narrow(own.vectors[0]))
        energy = measure_energies(own.covariances, subspaces)[0]
        toward.append(measure_relevance(own.values, energy, method.class_criterion))
    return Out(update=np.stack(directions), state={"toward": np.stack(toward)})


def answer(server: Client, *, asked: Features, clean: Shard, values: Floats, method: FbNll) -> Out:
    """The server's r(c, c~) of one user's classes (rows) to every clean class (columns)."""
    directions = widen(asked)
    rank = asked.shape[2]
    relevances = []
    for own, features in zip(values, features_by_class(clean).values(), strict=True):
        energy = measure_energies(measure_covariance(features)[None], directions)[0]
        relevances.append(measure_relevance(own[:rank], energy, method.class_criterion))
    return Out({"relevance": np.stack(relevances, axis=1)})


def relabel(
    client: Client, *, answered: Floats, bases: Features, tau: float, sample_rank: int
) -> Out:
    """Whole classes that are like exactly one clean class move to it; the others go sample by
    sample."""
    given = client.y
    features = client.features["correction"]
    subspaces = widen(bases[:, :, :sample_rank])
    corrected = given.copy()
    whole = 0
    similarities = (client.state["toward"] + answered) / 2
    # Membership is read from the labels as they were: a sample moved once must not be moved again.
    for label, similar in zip(np.unique(given), similarities, strict=True):
        members = given == label
        moved = relabel_class(similar, tau)
        corrected[members] = (
            find_nearest_class(features[members], subspaces) if moved is None else moved
        )
        whole += moved is not None
    changed = int((corrected != given).sum())
    report = {"_changed": changed, "_classes": len(answered), "_whole": whole}
    return Out(report, state={"y": corrected})


def features_by_class(clean: Shard) -> dict[int, Features]:
    """The clean features of each class, in the order of classes."""
    labels = labels_of(clean)
    return {int(c): clean.features["correction"][labels == c] for c in np.unique(labels)}


def labels_of(clean: Shard) -> NDArray[np.int64]:
    assert clean.y is not None, "the method declares that it reads the labels of the validation set"
    return clean.y


# -- the methods -----------------------------------------------------------------------------------


@component
class FbNllMinus(Algorithm):
    """Users are clustered by the spectra of their features; each cluster trains a model. Labels
    stay as they are."""

    citation: ClassVar[str] = "FB-NLL, Algorithm 1 without line 20"
    personal: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper names no linkage: average on 1 - R, ties to the users with the smallest "
        "numbers.",
        "q = 10, the number of the paper's Fig. 5, and not its Rank Selection, which takes as many "
        "directions of each dataset as exceed a small threshold, not printed (rank: adaptive, with "
        "q at least as large). On CIFAR-10 with all images, 97-104 of HoG's 324 exceed 1e-3: R is "
        ".93-.95 within and .47-.49 across two tasks, in place of .99 and .53-.59 at q = 10. The "
        "clusters were the same wherever both were computed.",
        "Of these, the first min(#{lambda > t}, #{e > t}) count, t = threshold * lambda_1, so that "
        "a user with few samples is compared along the directions that it has. Where none is "
        "weak, as with HoG on CIFAR-10 at q = 10, that is all of them: eqs. (4)-(5), which rank: "
        "fixed with threshold: 0 takes always.",
        "Directions in which a user or a clean class has no variance (fewer samples than q) are "
        "zeros: which vectors span them is the eigen-solver's choice.",
        "HoG's parameters are not printed: 9 orientations in cells of 8x8 pixels, 324 numbers.",
        "A user's score is the accuracy of all ten outputs on clean test images of its task's "
        "classes, after the last round; the paper does not say how many outputs count.",
        "The clusters begin with one and the same random model; the paper leaves open whether "
        "they differ.",
        "Users that a round's draw leaves out do not train; the paper's rounds have everybody "
        "(training.fraction).",
        "Clusters are found at the beginning of the first round, so that their cost is in the "
        "books.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "clusters/lowest_within": "the similarity of the least similar pair inside a cluster",
        "clusters/highest_across": "the similarity of the most similar pair across two",
    }

    models: Count = 2
    """M, the clusters, each with a model of its own. Paper: 2, 3 or 5, the number of tasks; 1 is
    `single_global`."""
    clustering: Literal["average", "single", "complete", "spectral"] = "average"
    """Linkage of the hierarchy on 1 - R, or spectral clustering of R. Paper: hierarchical, linkage
    not given."""
    q: Count = 10
    """Directions that a user sends. Paper: 10 (Fig. 5), or as many as its Rank Selection finds."""
    rank: Rank = "shared"
    """Directions that count: those with variance on both sides (`shared`, which also suits users
    with few samples), those whose own eigenvalue exceeds the threshold (`adaptive`, the paper's
    Rank Selection, if q leaves room), or all q but those weak on both sides (`fixed`; with
    threshold 0 the paper's equations)."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1e-3
    """What counts as variance, as a share of the largest eigenvalue. Paper: one a dataset, not
    given."""
    clustering_encoder: Annotated[EncoderSpec, slot(ENCODERS)] = HoG()
    """Phi. Paper: HoG on CIFAR-10, ResNet-18 of ImageNet on SVHN."""
    loss: Annotated[SampleLoss, slot(LOSSES), neutral("ce")] = CROSS_ENTROPY
    """The users' loss, in the place of the host's: `ce` (the paper's) leaves the host its own."""
    host: Annotated[Algorithm, slot(METHODS), neutral({"name": "fedavg", "weighting": "equal"})] = (
        FedAvg(weighting=Equal())
    )
    """What is played within each cluster. Paper: federated averaging with equal weights; in Tables
    IX-XI also FedCorr, ClipFL and RHFL."""

    @property
    def criterion(self) -> Criterion:
        """How users are compared."""
        return Criterion(self.q, self.rank, self.threshold)

    # What a host asks of the experiment, and what it makes of the network, stands.

    @property
    def needs(self) -> Mapping[str, Literal["images", "labels"]]:  # type: ignore[override]
        return self.host.needs

    @property
    def client_labels(self) -> bool:  # type: ignore[override]
        return self.host.client_labels

    @property
    def labels(self) -> Literal["given", "clean", "true"]:  # type: ignore[override]
        return self.host.labels

    def network(self, blueprint: Blueprint) -> nn.Module:
        return self.host.network(blueprint)

    def encoders(self) -> Mapping[str, Any]:
        return {**self.host.encoders(), "clustering": self.clustering_encoder}

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        for said in self.host.list_warnings(training, clients):
            yield said.replace("method.", "method.host.")

    def check(self, fleet: Fleet) -> None:
        self.check_host(fleet)
        if self.models > len(fleet.clients):
            rule = (
                f"method.models is at most the number of clients with data ({len(fleet.clients)})"
            )
            raise ConfigError(
                broken(rule, self.models, "Ask for fewer clusters or bring more clients.")
            )

    def check_host(self, fleet: Fleet) -> None:
        """Refuse a host that cannot work here, or that would cluster its clients once more."""
        name = type(self.host).__name__
        if isinstance(self.host, FbNllMinus):
            rule = "method.host trains within the clusters that FB-NLL found"
            remedy = "Choose the method that is to train, such as fedavg."
            raise ConfigError(broken(rule, f"{name}, which looks for clusters itself", remedy))
        if self.loss != CROSS_ENTROPY and not hasattr(self.host, "loss"):
            rule = "method.loss stands in the place of the host's loss"
            raise ConfigError(broken(rule, f"{name}, which has no such setting", "Leave it out."))
        self.within({}).host.check(fleet)

    def within(self, clusters: Mapping[ClientId, int]) -> WithinClusters:
        """The host within these clusters."""
        own = self.loss == CROSS_ENTROPY
        host = self.host if own else replace(self.host, loss=self.loss)  # type: ignore[type-var]
        return WithinClusters(host, clusters)

    def init(self, fleet: Fleet, model: Ref) -> Clustered:
        return Clustered(model)

    def round(self, state: Clustered, fleet: Fleet, t: int) -> Clustered:
        state = state if state.clusters else self.prepare(state, fleet, t)
        within = self.within(state.clusters)
        states = state.states or within.init(fleet, state.first)
        return replace(state, states=within.round(states, fleet, t))

    def model(self, state: Clustered, fleet: Fleet, client: ClientId | None = None) -> Ref:
        if not state.states:
            return state.first
        chosen = fleet.clients[0] if client is None else client
        return self.within(state.clusters).model(state.states, fleet, chosen)

    def further_models(
        self, state: Clustered, fleet: Fleet, client: ClientId | None = None
    ) -> Mapping[str, Model]:
        if not state.states or client is None:
            return {}
        return self.within(state.clusters).further_models(state.states, fleet, client)

    def clusters(self, state: Clustered) -> Mapping[ClientId, int]:
        return state.clusters

    def prepare(self, state: Clustered, fleet: Fleet, t: int) -> Clustered:
        """Everything that happens once, before training."""
        similarity = self.measure_similarities(fleet)
        labels, merges = self.find_clusters(similarity, fleet, t)
        fleet.leave("similarity", similarity)
        if merges is not None and len(merges):
            fleet.leave("dendrogram", merges)
        fleet.log(**measure_separation(similarity, labels))
        clusters = dict(zip(sorted(fleet.clients), labels.tolist(), strict=True))
        return replace(state, clusters=clusters, similarity=similarity, merges=merges)

    def measure_similarities(self, fleet: Fleet) -> Floats:
        """R, from one exchange of directions and one of relevances."""
        sketches = fleet.map(sketch, fleet.clients, q=self.q)
        # The server passes on what each user uploaded.
        directions = {k: sketches.ref(k) for k in sketches}
        each = {k: {"others": leave_out(k, directions)} for k in directions}
        got = fleet.map(compare, directions, each=each, method=self)
        place = {k: i for i, k in enumerate(directions)}
        r = np.eye(len(directions))
        for k in directions:
            for j, relevance_kj in got[k]["relevance"].items():
                r[place[k], place[j]] = relevance_kj
        return np.asarray((r + r.T) / 2)

    def find_clusters(
        self, similarity: Floats, fleet: Fleet, t: int
    ) -> tuple[NDArray[np.int64], Floats | None]:
        """The cluster of each user, and the merge history where there is one."""
        if self.clustering == "spectral":
            return cluster_spectrally(similarity, self.models, fleet.rng(t, "clustering")), None
        merges = agglomerate(1 - similarity, self.clustering)
        return cut_hierarchy(merges, self.models), merges


@component
class FbNll(FbNllMinus):
    """Users are clustered, and their labels corrected against a few clean samples, by the spectra
    of their features."""

    citation: ClassVar[str] = "FB-NLL, Algorithm 1"
    deviations: ClassVar[tuple[str, ...]] = (
        *FbNllMinus.deviations,
        "tau, l and the rank of the sample-wise phase are not printed: tau and the rank are "
        "calibrated on the halves of the server's clean samples, l is 5.",
        "One rank serves all classes in the sample-wise phase: a larger subspace would win by its "
        "size. A class with fewer clean samples than that has fewer directions.",
        "Labels are relabelled from one snapshot; the paper's loop might move a sample twice.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        **FbNllMinus.metrics,
        "correction/tau": "tau_sim, given or calibrated",
        "correction/sample_rank": "the dimension of the subspaces that samples are projected on",
        "correction/projection_accuracy": "the share of the server's clean samples that the "
        "projection puts into their own class, each half by the other's subspaces: what the "
        "sample-wise phase can reach. Below the share of right labels, features are too weak and "
        "the correction does harm (HoG on CIFAR-10 with 25 % noise: right labels fall from .751 to "
        ".29-.42 at tau .9)",
        "correction/whole_classes": "the share of users' classes that were recognised as a whole",
        "correction/changed": "the share of labels that are another one than before",
    }

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
    correct_after: Annotated[Natural, neutral(0)] = 0
    """Rounds of the host after which labels are corrected. Paper: 0, before training; FedCorr: the
    rounds of its first stage; ClipFL: ours, the rounds before its pruning."""

    @property
    def class_criterion(self) -> Criterion:
        """How classes are compared: as users are, along l directions."""
        return Criterion(self.class_rank, self.rank, self.threshold)

    @property
    def needs(self) -> Mapping[str, Literal["images", "labels"]]:  # type: ignore[override]
        return {**super().needs, "validation": "labels"}

    def encoders(self) -> Mapping[str, Any]:
        return {**super().encoders(), "correction": self.correction_encoder}

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        nothing = "no label is ever corrected"
        last = self.correct_after - 1
        yield from warn_of_late_stage("method.correct_after", last, training.rounds, nothing)

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        held = fleet.serve(count_clean, clean=fleet.data("validation")).report["held"]
        if held.min() < 2:
            rule = "split.validation holds two samples or more of every class"
            got = f"{held.min()} of class {held.argmin()}"
            raise ConfigError(broken(rule, got, "Use {per_class: 2} or more."))

    def prepare(self, state: Clustered, fleet: Fleet, t: int) -> Clustered:
        clustered = super().prepare(state, fleet, t)
        return clustered if self.correct_after else self.correct_once(clustered, fleet)

    def round(self, state: Clustered, fleet: Fleet, t: int) -> Clustered:
        state = super().round(state, fleet, t)
        # At a round's end, where no visit of the host's comes after it: what it does not change
        # stays as it was, bit by bit.
        due = t + 1 >= self.correct_after and not state.corrected
        return self.correct_once(state, fleet) if due else state

    def correct_once(self, state: Clustered, fleet: Fleet) -> Clustered:
        self.correct(fleet)
        return replace(state, corrected=True)

    def correct(self, fleet: Fleet) -> None:
        """Procedure 2 with all users at once."""
        clean = fleet.data("validation")
        known = fleet.serve(summarise, clean=clean, method=self)
        bases = known["w"]
        found = known.report
        chosen = {name: found[name] for name in ("tau", "sample_rank")}
        asked = fleet.map(ask, fleet.clients, bases=bases, method=self)
        # The server's i-th task answers the i-th user.
        tasks = {k: SERVER - i for i, k in enumerate(asked)}
        each = {task: {"asked": asked.ref(k)} for k, task in tasks.items()}
        values = fleet.state(SERVER, "eigenvalues")
        answers = fleet.map(answer, each, each=each, clean=clean, values=values, method=self)
        told = {k: {"answered": answers[task]["relevance"]} for k, task in tasks.items()}
        got = fleet.map(relabel, told, each=told, bases=bases, **chosen)
        changed = sum(report["_changed"] for report in got.values())
        whole = sum(report["_whole"] for report in got.values())
        classes = sum(report["_classes"] for report in got.values())
        fleet.log(**{f"correction/{name}": float(value) for name, value in found.items()})
        fleet.log(**{"correction/whole_classes": whole / classes})
        fleet.log(**{"correction/changed": changed / sum(map(fleet.size, fleet.clients))})
