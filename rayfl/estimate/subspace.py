"""Second-order statistics of features: which users are alike, and which labels are wrong.

The relevance of one user's data to another's follows M. M. Amiri, F. Berdoz and R. Raskar,
"Fundamentals of task-agnostic data valuation", AAAI 2023; its use for clustering users and
correcting labels is "FB-NLL: a feature-based approach to tackle noisy labels in personalized
federated learning" (Eqs. 2-6 and Procedure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rayfl.errors import DataError, broken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rank = Literal["shared", "fixed"]

FLOOR = 1e-300


class Spectra(NamedTuple):
    """Uncentred covariances of many users (users, d, d), their eigenvalues (users, m), largest
    first, and the eigenvectors as columns (users, d, m)."""

    covariances: Floats
    values: Floats
    vectors: Floats


def spectra(features: Sequence[ArrayLike], keep: int | None = None) -> Spectra:
    """Sigma_k = Phi_k^T Phi_k / n_k of every user's features (n_k, d), with its eigenpairs in
    descending order.

    `keep` holds on to that many leading eigenpairs only, which saves memory for many users.

    >>> spectra([[[2, 0], [0, 1]]]).values.tolist()
    [[2.0, 0.5]]
    """
    users = [checked_features(one, position) for position, one in enumerate(features)]
    if len({user.shape[1] for user in users}) != 1:
        raise DataError(
            broken(
                "all users' features have one dimension", sorted({user.shape[1] for user in users})
            )
        )
    covariances = np.stack([user.T @ user / len(user) for user in users])
    values, vectors = zip(
        *(leading_pairs(covariance, keep) for covariance in covariances), strict=True
    )
    return Spectra(covariances, np.stack(values), np.stack(vectors))


def leading_pairs(covariance: Floats, keep: int | None) -> tuple[Floats, Floats]:
    """Eigenvalues, largest first, and their eigenvectors as columns; rounding below zero is
    removed."""
    ascending, vectors = np.linalg.eigh(covariance)
    return np.maximum(ascending[::-1][:keep], 0.0), vectors[:, ::-1][:, :keep].copy()


def energies(covariances: Floats, directions: Floats) -> Floats:
    """e[k, j, i] = || Sigma_k v_i^(j) ||_2 for all pairs: covariances (K, d, d), directions (J, d,
    q) -> (K, J, q).

    >>> energies(np.diag([2.0, 0.5])[None], np.eye(2)[None]).tolist()
    [[[2.0, 0.5]]]
    """
    others, dimension, kept = directions.shape
    side_by_side = directions.transpose(1, 0, 2).reshape(dimension, others * kept)
    # One matrix product a user: all pairs in a single one would hold (users, d, users * q) at once.
    norms = [np.linalg.norm(covariance @ side_by_side, axis=0) for covariance in covariances]
    return np.stack(norms).reshape(len(covariances), others, kept)


def relevance(
    values: Floats, energy: Floats, rank: Rank = "shared", threshold: float = 1e-3
) -> Floats:
    """r(k, j) from user k's eigenvalues (..., q) and its energies along user j's directions (...,
    q).

    With s_i = min(lambda_i, e_i) / max(lambda_i, e_i), r = (s_1 ... s_q)^(1/q), the geometric mean.
    `rank="shared"` uses the first min(#{lambda > t}, #{e > t}) directions, with t = threshold *
    lambda_1, so units do not matter. `rank="fixed"` uses all that are given, except those where
    both numbers are below t. No direction at all: r = 0.

    >>> float(relevance(np.array([2.0, 0.5]), np.array([1.457738, 1.457738])).round(6))
    0.5
    """
    # Relative to the user's own scale: an absolute threshold would depend on the features' unit.
    limit = threshold * values[..., :1]
    strong, reached = values > limit, energy > limit
    if rank == "shared":
        shared = np.minimum(strong.sum(axis=-1), reached.sum(axis=-1))
        used = np.arange(values.shape[-1]) < shared[..., None]
    else:
        # 0/0 says nothing about the pair; 0 against something says that they differ.
        used = strong | reached
    ratio = np.minimum(values, energy) / np.maximum(np.maximum(values, energy), FLOOR)
    logs = np.where(used, np.log(np.maximum(ratio, FLOOR)), 0.0).sum(axis=-1)
    count = used.sum(axis=-1)
    # A factor of zero must stay zero: the floor under the logarithm would leave 1e-300^(1/q).
    nonzero = (count > 0) & ~(used & (ratio == 0)).any(axis=-1)
    return np.asarray(np.where(nonzero, np.exp(logs / np.maximum(count, 1)), 0.0))


def cross_relevance(left: Spectra, right: Spectra, q: int, rank: Rank, threshold: float) -> Floats:
    """r(k, j) of every user k on the left along the top q directions of every user j on the
    right."""
    along = energies(left.covariances, right.vectors[:, :, :q])
    values = np.broadcast_to(left.values[:, None, : along.shape[2]], along.shape)
    return relevance(values, along, rank, threshold)


def pairwise_relevance(
    users: Spectra, q: int = 10, rank: Rank = "shared", threshold: float = 1e-3
) -> Floats:
    """The asymmetric matrix r(k, j) over all pairs of users, with ones on the diagonal.

    >>> pairwise_relevance(spectra([[[2, 0], [0, 1]], [[3, 1], [1, 1], [0, 1]]])).round(6).tolist()
    [[1.0, 0.696884], [0.46479, 1.0]]
    """
    # One's own directions give one up to rounding; the diagonal is made exact.
    matrix = cross_relevance(users, users, q, rank, threshold)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def similarity_matrix(
    users: Spectra, q: int = 10, rank: Rank = "shared", threshold: float = 1e-3
) -> Floats:
    """R_kj = (r(k, j) + r(j, k)) / 2, symmetric with ones on the diagonal.

    >>> similarity_matrix(spectra([[[2, 0], [0, 1]], [[0, 2], [1, 0]]])).round(6).tolist()
    [[1.0, 0.25], [0.25, 1.0]]
    """
    matrix = pairwise_relevance(users, q, rank, threshold)
    return np.asarray((matrix + matrix.T) / 2)


def similarity_between(
    left: Spectra, right: Spectra, q: int, rank: Rank = "shared", threshold: float = 1e-3
) -> Floats:
    """The symmetric similarity of every spectrum on the left (rows) to every one on the right
    (columns).

    >>> a, b = spectra([[[2, 0], [0, 1]]]), spectra([[[0, 2], [1, 0]]])
    >>> similarity_between(a, b, q=2).round(6).tolist()
    [[0.25]]
    """
    there = cross_relevance(left, right, q, rank, threshold)
    return np.asarray((there + cross_relevance(right, left, q, rank, threshold).T) / 2)


def relabel_class(similarities: Floats, tau: float) -> int | None:
    """Phase 1: the only class whose similarity reaches `tau`, or None when none or several do.

    >>> relabel_class(np.array([0.07, 0.99]), 0.5), relabel_class(np.array([0.6, 0.99]), 0.5)
    (1, None)
    """
    passing = np.flatnonzero(similarities >= tau)
    return int(passing[0]) if len(passing) == 1 else None


def projection_norms(features: ArrayLike, bases: Floats) -> Floats:
    """|| Q_c Q_c^T z ||_2 = || Q_c^T z ||_2 of every sample (n, d) on every class basis (classes,
    d, l): (n, classes).

    >>> projection_norms([[0.6, 0.5, 0.5]], np.eye(3)[:, :, None]).round(6).tolist()
    [[0.6, 0.5, 0.5]]
    """
    return np.asarray(
        np.linalg.norm(np.einsum("nd,cdl->ncl", np.asarray(features, np.float64), bases), axis=2)
    )


def nearest_class(features: ArrayLike, bases: Floats) -> Ints:
    """Phase 2: the class on whose subspace each sample's projection is longest; ties go to the
    lowest class.

    >>> nearest_class([[0.6, 0.5, 0.5]], np.eye(3)[:, :, None]).tolist()
    [0]
    """
    return np.asarray(projection_norms(features, bases).argmax(axis=1), dtype=np.int64)


class Correction(NamedTuple):
    """New labels, and for each given label the class that phase 1 moved it to (None: its samples
    went to phase 2)."""

    labels: Ints
    decided: dict[int, int | None]


def correct_labels(
    features: ArrayLike,
    labels: ArrayLike,
    clean: Spectra,
    tau: float,
    class_rank: int = 5,
    sample_rank: int = 20,
) -> Correction:
    """Procedure 2 of FB-NLL on one user's data, with a clean spectrum for each of all the classes.

    For each label value that the user holds (as it was before any change): if exactly one class is
    similar to those samples (`tau`, top `class_rank` directions), all of them become that class;
    otherwise each goes to the class on whose top `sample_rank` directions its projection is
    longest.

    >>> clean = spectra([[[3, 0, 0], [3, 0.3, 0]], [[0, 3, 0], [0, 3, 0.3]]])
    >>> correct_labels([[0.1, 3, 0], [0, 2.8, 0.2]], [0, 0], clean, tau=0.5, class_rank=1).labels.tolist()
    [1, 1]
    """
    samples, given = checked_features(features, 0), np.asarray(labels, dtype=np.int64)
    if given.shape != (len(samples),):
        raise DataError(broken(f"one label a sample ({len(samples)})", given.shape))
    # One rank for every class: a larger subspace would win projections by its size.
    bases = clean.vectors[:, :, :sample_rank]
    corrected, decided = given.copy(), {}
    # Reading `given`, never `corrected`: else a sample moved once could be moved again.
    for label in np.unique(given).tolist():
        members = given == label
        own = spectra([samples[members]])
        decided[label] = relabel_class(similarity_between(own, clean, class_rank)[0], tau)
        moved = decided[label]
        corrected[members] = nearest_class(samples[members], bases) if moved is None else moved
    return Correction(corrected, decided)


class Calibration(NamedTuple):
    """What the server's clean samples say: the threshold of phase 1, the rank of phase 2, and what
    they rest on."""

    tau: float
    sample_rank: int
    lowest_within: float
    highest_between: float
    accuracy: float


def calibrate(
    clean: Mapping[int, ArrayLike], class_rank: int = 5, ranks: Sequence[int] = (5, 10, 20, 40)
) -> Calibration:
    """Choose `tau` and `sample_rank` from the server's clean features by class, each split into two
    halves.

    `tau` is midway between the lowest similarity within a class and the highest between classes;
    where these overlap, the 99th percentile of the similarities between classes. `sample_rank` is
    the smallest of `ranks` that classifies each half best by the other half's subspaces.

    >>> rng = np.random.default_rng(0)
    >>> clean = {c: rng.normal(size=(40, 6)) * (0.1 + 3 * (np.arange(6) // 3 == c)) for c in (0, 1)}
    >>> found = calibrate(clean, class_rank=2, ranks=(1, 3))
    >>> found.highest_between < found.tau < found.lowest_within, found.sample_rank, found.accuracy
    (True, 3, 1.0)
    """
    # Every other sample: files are often sorted, and halves must look alike.
    halves = [[checked_features(clean[c], c)[side::2] for c in sorted(clean)] for side in (0, 1)]
    if len(clean) < 2 or any(len(half) == 0 for half in halves[1]):
        sizes = {c: len(np.asarray(part)) for c, part in clean.items()}
        raise DataError(broken("calibration needs two classes with two clean samples each", sizes))
    first, second = spectra(halves[0]), spectra(halves[1])
    within, between = split_similarities(first, second, class_rank)
    separable = within.min() > between.max()
    tau = (within.min() + between.max()) / 2 if separable else np.percentile(between, 99)
    accuracy = [projection_accuracy(halves, (first, second), rank) for rank in ranks]
    best = int(np.argmax(accuracy))
    return Calibration(
        float(tau), ranks[best], float(within.min()), float(between.max()), accuracy[best]
    )


def split_similarities(first: Spectra, second: Spectra, q: int) -> tuple[Floats, Floats]:
    """Similarities of the two halves of each class, and of halves of different classes."""
    crossed = similarity_between(first, second, q)
    different = ~np.eye(len(crossed), dtype=bool)
    same_side = [similarity_between(half, half, q)[different] for half in (first, second)]
    return np.diagonal(crossed), np.concatenate([crossed[different], *same_side])


def projection_accuracy(
    halves: Sequence[Sequence[Floats]], fitted: tuple[Spectra, Spectra], rank: int
) -> float:
    """Share of samples that the other half's rank-`rank` subspaces put into their own class."""
    right = [
        nearest_class(samples, other.vectors[:, :, :rank]) == position
        for half, other in zip(halves, fitted[::-1], strict=True)
        for position, samples in enumerate(half)
    ]
    return float(np.concatenate(right).mean())


def checked_features(features: ArrayLike, user: int) -> Floats:
    """One user's features as a finite, non-empty (samples, d) float64 array, or a refusal."""
    values = np.asarray(features, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise DataError(
            broken(
                "features are a non-empty (samples, dimension) array",
                f"{values.shape} (user {user})",
            )
        )
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise DataError(
            broken("features are finite", f"{wrong} (user {user})", "Check the feature extractor.")
        )
    return values
