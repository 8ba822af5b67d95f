"""Second-order statistics of features: which users are alike, and which labels are wrong.

The relevance of one user's data to another's follows M. M. Amiri, F. Berdoz and R. Raskar,
"Fundamentals of task-agnostic data valuation", AAAI 2023; its use for clustering users and
correcting labels is "FB-NLL: a feature-based approach to tackle noisy labels in personalized
federated learning" (Eqs. 2-6 and Procedure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Floats, Ints
from rayfl.errors import DataError, broken

Rank = Literal["shared", "fixed"]

FLOOR = 1e-300


class Spectra(NamedTuple):
    """What the features of many users look like.

    Attributes
    ----------
    covariances
        Uncentred, (users, d, d).
    values
        Their eigenvalues, largest first, (users, m).
    vectors
        The eigenvectors as columns, (users, d, m).
    """

    covariances: Floats
    values: Floats
    vectors: Floats


def decompose_features(features: Sequence[ArrayLike], keep: int | None = None) -> Spectra:
    """Sigma_k = Phi_k^T Phi_k / n_k of every user, with its eigenpairs in descending order.

    Parameters
    ----------
    features
        Phi of every user, (n_k, d).
    keep
        Hold on to that many leading eigenpairs only, which saves memory for many users.

    Examples
    --------
    >>> decompose_features([[[2, 0], [0, 1]]]).values.tolist()
    [[2.0, 0.5]]
    """
    users = [_check_features(one, position) for position, one in enumerate(features)]
    dimensions = sorted({user.shape[1] for user in users})
    if len(dimensions) != 1:
        raise DataError(broken("all users' features have one dimension", dimensions))
    covariances = np.stack([user.T @ user / len(user) for user in users])
    pairs = [_find_leading_pairs(covariance, keep) for covariance in covariances]
    values = np.stack([found for found, _ in pairs])
    vectors = np.stack([found for _, found in pairs])
    return Spectra(covariances, values, vectors)


def _find_leading_pairs(covariance: Floats, keep: int | None) -> tuple[Floats, Floats]:
    """Eigenvalues, largest first, and their eigenvectors as columns."""
    ascending, vectors = np.linalg.eigh(covariance)
    # What lies below zero is rounding.
    values = np.maximum(ascending[::-1][:keep], 0.0)
    return values, vectors[:, ::-1][:, :keep].copy()


def measure_energies(covariances: Floats, directions: Floats) -> Floats:
    """e[k, j, i] = || Sigma_k v_i^(j) ||_2 for all pairs, (K, J, q).

    Parameters
    ----------
    covariances
        Sigma of every user k, (K, d, d).
    directions
        v of every user j, as columns, (J, d, q).

    Examples
    --------
    >>> measure_energies(np.diag([2.0, 0.5])[None], np.eye(2)[None]).tolist()
    [[[2.0, 0.5]]]
    """
    others, dimension, kept = directions.shape
    side_by_side = directions.transpose(1, 0, 2).reshape(dimension, others * kept)
    # One matrix product a user: all pairs in a single one would hold (users, d, users * q) at once.
    norms = [np.linalg.norm(covariance @ side_by_side, axis=0) for covariance in covariances]
    return np.stack(norms).reshape(len(covariances), others, kept)


def measure_relevance(
    values: Floats,
    energy: Floats,
    rank: Rank = "shared",
    threshold: float = 1e-3,
) -> Floats:
    """r(k, j) = (s_1 ... s_q)^(1/q), the geometric mean of s_i = min(lambda_i, e_i) / max(lambda_i,
    e_i); 0 without any direction.

    Parameters
    ----------
    values
        User k's eigenvalues lambda, (..., q).
    energy
        User k's energies e along user j's directions, (..., q).
    rank
        `shared` uses the first min(#{lambda > t}, #{e > t}) directions, with t = threshold *
        lambda_1, so units do not matter. `fixed` uses all that are given, except those where both
        numbers are below t.
    threshold
        The part of the largest eigenvalue that a direction needs to count.

    Examples
    --------
    >>> float(measure_relevance(np.array([2.0, 0.5]), np.array([1.457738, 1.457738])).round(6))
    0.5
    """
    # Relative to the user's own scale: an absolute threshold would depend on the features' unit.
    limit = threshold * values[..., :1]
    strong = values > limit
    reached = energy > limit
    if rank == "shared":
        shared = np.minimum(strong.sum(axis=-1), reached.sum(axis=-1))
        used = np.arange(values.shape[-1]) < shared[..., None]
    else:
        # 0/0 says nothing about the pair; 0 against something says that they differ.
        used = strong | reached
    larger = np.maximum(np.maximum(values, energy), FLOOR)
    ratio = np.minimum(values, energy) / larger
    logs = np.where(used, np.log(np.maximum(ratio, FLOOR)), 0.0).sum(axis=-1)
    count = used.sum(axis=-1)
    # A factor of zero must stay zero: the floor under the logarithm would leave 1e-300^(1/q).
    hollow = (used & (ratio == 0)).any(axis=-1)
    mean = np.exp(logs / np.maximum(count, 1))
    return np.asarray(np.where((count > 0) & ~hollow, mean, 0.0))


def _compare_across(
    left: Spectra,
    right: Spectra,
    q: int,
    rank: Rank,
    threshold: float,
) -> Floats:
    """r(k, j) of every user k on the left along the top q directions of every user j on the
    right."""
    along = measure_energies(left.covariances, right.vectors[:, :, :q])
    leading = left.values[:, None, : along.shape[2]]
    values = np.broadcast_to(leading, along.shape)
    return measure_relevance(
        values,
        along,
        rank,
        threshold,
    )


def pairwise_relevance(
    users: Spectra,
    q: int = 10,
    rank: Rank = "shared",
    threshold: float = 1e-3,
) -> Floats:
    """The asymmetric matrix r(k, j) over all pairs of users, with ones on the diagonal.

    Parameters
    ----------
    users
        What `decompose_features` found.
    q
        How many directions of a user are looked at.
    rank, threshold
        As for `measure_relevance`.

    Examples
    --------
    >>> users = decompose_features([[[2, 0], [0, 1]], [[3, 1], [1, 1], [0, 1]]])
    >>> pairwise_relevance(users).round(6).tolist()
    [[1.0, 0.696884], [0.46479, 1.0]]
    """
    # One's own directions give one up to rounding; the diagonal is made exact.
    matrix = _compare_across(
        users,
        users,
        q,
        rank,
        threshold,
    )
    np.fill_diagonal(matrix, 1.0)
    return matrix


def similarity_matrix(
    users: Spectra,
    q: int = 10,
    rank: Rank = "shared",
    threshold: float = 1e-3,
) -> Floats:
    """R_kj = (r(k, j) + r(j, k)) / 2, symmetric with ones on the diagonal.

    Parameters
    ----------
    users
        What `decompose_features` found.
    q
        How many directions of a user are looked at.
    rank, threshold
        As for `measure_relevance`.

    Examples
    --------
    >>> users = decompose_features([[[2, 0], [0, 1]], [[0, 2], [1, 0]]])
    >>> similarity_matrix(users).round(6).tolist()
    [[1.0, 0.25], [0.25, 1.0]]
    """
    matrix = pairwise_relevance(
        users,
        q,
        rank,
        threshold,
    )
    return np.asarray((matrix + matrix.T) / 2)


def similarity_between(
    left: Spectra,
    right: Spectra,
    q: int,
    rank: Rank = "shared",
    threshold: float = 1e-3,
) -> Floats:
    """The symmetric similarity of every spectrum on the left (rows) to every one on the right
    (columns).

    >>> a, b = decompose_features([[[2, 0], [0, 1]]]), decompose_features([[[0, 2], [1, 0]]])
    >>> similarity_between(a, b, q=2).round(6).tolist()
    [[0.25]]
    """
    there = _compare_across(
        left,
        right,
        q,
        rank,
        threshold,
    )
    back = _compare_across(
        right,
        left,
        q,
        rank,
        threshold,
    )
    return np.asarray((there + back.T) / 2)


def relabel_class(similarities: Floats, tau: float) -> int | None:
    """Phase 1: the only class whose similarity reaches `tau`, or None when none or several do.

    Parameters
    ----------
    similarities
        Of the samples of one label to every class, (classes,).
    tau
        The threshold.

    Examples
    --------
    >>> relabel_class(np.array([0.07, 0.99]), 0.5), relabel_class(np.array([0.6, 0.99]), 0.5)
    (1, None)
    """
    passing = np.flatnonzero(similarities >= tau)
    return int(passing[0]) if len(passing) == 1 else None


def measure_projections(features: ArrayLike, bases: Floats) -> Floats:
    """|| Q_c Q_c^T z ||_2 = || Q_c^T z ||_2 of every sample (n, d) on every class basis (classes,
    d, l): (n, classes).

    >>> measure_projections([[0.6, 0.5, 0.5]], np.eye(3)[:, :, None]).round(6).tolist()
    [[0.6, 0.5, 0.5]]
    """
    samples = np.asarray(features, np.float64)
    coordinates = np.einsum("nd,cdl->ncl", samples, bases)
    return np.asarray(np.linalg.norm(coordinates, axis=2))


def find_nearest_class(features: ArrayLike, bases: Floats) -> Ints:
    """Phase 2: the class on whose subspace each sample's projection is longest; ties go to the
    lowest class.

    Parameters
    ----------
    features
        z of the samples, (n, d).
    bases
        Q of every class, (classes, d, l).

    Examples
    --------
    >>> find_nearest_class([[0.6, 0.5, 0.5]], np.eye(3)[:, :, None]).tolist()
    [0]
    """
    norms = measure_projections(features, bases)
    return np.asarray(norms.argmax(axis=1), dtype=np.int64)


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
    """Procedure 2 of FB-NLL on one user's data.

    For each label value that the user holds (as it was before any change): if exactly one class is
    similar to those samples, all of them become that class; otherwise each goes to the class on
    whose directions its projection is longest.

    Parameters
    ----------
    features
        The user's samples, (n, d).
    labels
        Their given labels, (n,).
    clean
        A clean spectrum for each of all the classes.
    tau
        The similarity that a class needs in phase 1.
    class_rank
        How many directions are compared in phase 1.
    sample_rank
        How many are projected on in phase 2.

    Examples
    --------
    >>> clean = decompose_features([[[3, 0, 0], [3, 0.3, 0]], [[0, 3, 0], [0, 3, 0.3]]])
    >>> samples = [[0.1, 3, 0], [0, 2.8, 0.2]]
    >>> correct_labels(samples, [0, 0], clean, tau=0.5, class_rank=1).labels.tolist()
    [1, 1]
    """
    samples = _check_features(features, 0)
    given = np.asarray(labels, dtype=np.int64)
    if given.shape != (len(samples),):
        raise DataError(broken(f"one label a sample ({len(samples)})", given.shape))
    # One rank for every class: a larger subspace would win projections by its size.
    bases = clean.vectors[:, :, :sample_rank]
    corrected = given.copy()
    decided: dict[int, int | None] = {}
    # Reading `given`, never `corrected`: else a sample moved once could be moved again.
    for label in np.unique(given).tolist():
        members = given == label
        own = decompose_features([samples[members]])
        moved = relabel_class(similarity_between(own, clean, class_rank)[0], tau)
        decided[label] = moved
        corrected[members] = find_nearest_class(samples[members], bases) if moved is None else moved
    return Correction(corrected, decided)


class Calibration(NamedTuple):
    """What the server's clean samples say.

    Attributes
    ----------
    tau
        The threshold of phase 1.
    sample_rank
        The rank of phase 2.
    lowest_within, highest_between
        Similarities of halves of one class, and of different classes.
    accuracy
        What phase 2 reaches at this rank.
    """

    tau: float
    sample_rank: int
    lowest_within: float
    highest_between: float
    accuracy: float


def calibrate_correction(
    clean: Mapping[int, ArrayLike],
    class_rank: int = 5,
    ranks: Sequence[int] = (5, 10, 20, 40),
) -> Calibration:
    """Choose `tau` and `sample_rank` from the server's clean samples, each class split into two
    halves.

    `tau` is midway between the lowest similarity within a class and the highest between classes;
    where these overlap, the 99th percentile of the similarities between classes. `sample_rank` is
    the smallest of `ranks` that classifies each half best by the other half's subspaces.

    Parameters
    ----------
    clean
        Features of clean samples by their class.
    class_rank
        How many directions are compared in phase 1.
    ranks
        What phase 2 may choose from.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scales = {c: 0.1 + 3 * (np.arange(6) // 3 == c) for c in (0, 1)}
    >>> clean = {c: rng.normal(size=(40, 6)) * scale for c, scale in scales.items()}
    >>> found = calibrate_correction(clean, class_rank=2, ranks=(1, 3))
    >>> found.highest_between < found.tau < found.lowest_within, found.sample_rank, found.accuracy
    (True, 3, 1.0)
    """
    samples = {c: _check_features(clean[c], c) for c in sorted(clean)}
    # Every other sample: files are often sorted, and halves must look alike.
    halves = [[part[side::2] for part in samples.values()] for side in (0, 1)]
    if len(clean) < 2 or any(len(half) == 0 for half in halves[1]):
        sizes = {c: len(np.asarray(part)) for c, part in clean.items()}
        raise DataError(broken("calibration needs two classes with two clean samples each", sizes))
    first = decompose_features(halves[0])
    second = decompose_features(halves[1])
    within, between = _compare_halves(first, second, class_rank)
    separable = within.min() > between.max()
    tau = (within.min() + between.max()) / 2 if separable else np.percentile(between, 99)
    accuracy = [_classify_halves(halves, (first, second), rank) for rank in ranks]
    best = int(np.argmax(accuracy))
    return Calibration(
        tau=float(tau),
        sample_rank=ranks[best],
        lowest_within=float(within.min()),
        highest_between=float(between.max()),
        accuracy=accuracy[best],
    )


def _compare_halves(first: Spectra, second: Spectra, q: int) -> tuple[Floats, Floats]:
    """Similarities of the two halves of each class, and of halves of different classes."""
    crossed = similarity_between(first, second, q)
    different = ~np.eye(len(crossed), dtype=bool)
    same_side = [similarity_between(half, half, q)[different] for half in (first, second)]
    return np.diagonal(crossed), np.concatenate([crossed[different], *same_side])


def _classify_halves(
    halves: Sequence[Sequence[Floats]], fitted: tuple[Spectra, Spectra], rank: int
) -> float:
    """Share of samples that the other half's rank-`rank` subspaces put into their own class."""
    right = []
    for half, other in zip(halves, fitted[::-1], strict=True):
        bases = other.vectors[:, :, :rank]
        for position, samples in enumerate(half):
            right.append(find_nearest_class(samples, bases) == position)
    return float(np.concatenate(right).mean())


def _check_features(features: ArrayLike, user: int) -> Floats:
    """One user's features as a finite, non-empty (samples, d) float64 array, or a refusal."""
    values = np.asarray(features, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        rule = "features are a non-empty (samples, dimension) array"
        raise DataError(broken(rule, f"{values.shape} (user {user})"))
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        remedy = "Check the feature extractor."
        raise DataError(broken("features are finite", f"{wrong} (user {user})", remedy))
    return values
