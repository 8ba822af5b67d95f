"""Second-order statistics of features: which users are alike.

The relevance of one user's data to another's follows M. M. Amiri, F. Berdoz and R. Raskar,
"Fundamentals of task-agnostic data valuation", AAAI 2023; its use for clustering users is "FB-NLL:
a feature-based approach to tackle noisy labels in personalized federated learning" (Eqs. 2-6 and
Procedure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Bools, Floats
from rayfl.errors import DataError, broken

Rank = Literal["shared", "adaptive", "fixed"]

FLOOR = 1e-300
NULL = 1e-10
"""Eigenvalues below this share of the largest are rounding: the features have no such direction."""


class Spectra(NamedTuple):
    """What the features of many users look like.

    Attributes
    ----------
    covariances
        Uncentred, (users, d, d).
    values
        Their eigenvalues, largest first, (users, m).
    vectors
        The eigenvectors as columns, (users, d, m); zeros beyond the rank of the features.
    """

    covariances: Floats
    values: Floats
    vectors: Floats


def decompose_features(features: Sequence[ArrayLike], keep: int | None = None) -> Spectra:
    """Sigma_k = Phi_k^T Phi_k / n_k of every user, with its eigenpairs in descending order.

    Where the features have no further direction (fewer samples than dimensions, for instance),
    eigenvalue and eigenvector are zeros.

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
    users = [check_features(one, position) for position, one in enumerate(features)]
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
    values = ascending[::-1][:keep]
    leading = vectors[:, ::-1][:, :keep]
    # Which vectors span a null space is LAPACK's choice: they must decide nothing.
    real = values > NULL * ascending[-1]
    return np.where(real, values, 0.0), np.where(real, leading, 0.0)


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


@dataclass(frozen=True)
class Criterion:
    """Procedure 1 of FB-NLL, the similarity criterion: which directions count.

    A direction is weak for user k below t = threshold * lambda_1.

    Attributes
    ----------
    q
        How many directions are looked at, largest eigenvalues first.
    rank
        `fixed`: all q, except those that are weak in both numbers; at threshold 0 eqs. (4) and (5)
        themselves. `adaptive`: those with lambda > t. `shared`: the first min(#{lambda > t},
        #{e > t}), so that a user with fewer directions is compared along those that it has.
    threshold
        The part of the largest eigenvalue that a direction needs to count: an absolute one would
        depend on the features' unit.

    Examples
    --------
    >>> literal = Criterion(q=2, rank="fixed", threshold=0.0)
    >>> one, other = np.array([4.0, 1.0]), np.array([2.0, 0.001])
    >>> [float(measure_relevance(one, other, how).round(6)) for how in (literal, Criterion())]
    [0.022361, 0.5]
    """

    q: int = 10
    rank: Rank = "shared"
    threshold: float = 1e-3

    def mark_used(self, values: Floats, energy: Floats) -> Bools:
        """Which directions count, (..., q)."""
        limit = self.threshold * values[..., :1]
        strong = values > limit
        reached = energy > limit
        if self.rank == "adaptive":
            return strong
        if self.rank == "fixed":
            # 0/0 says nothing about the pair; 0 against something says that they differ.
            return np.asarray(strong | reached)
        shared = np.minimum(strong.sum(axis=-1), reached.sum(axis=-1))
        return np.asarray(np.arange(values.shape[-1]) < shared[..., None])


USUAL = Criterion()


def measure_relevance(values: Floats, energy: Floats, criterion: Criterion = USUAL) -> Floats:
    """r(k, j) = (s_1 ... s_q)^(1/q), the geometric mean of s_i = min(lambda_i, e_i) / max(lambda_i,
    e_i) over the directions that count; 0 without any.

    Parameters
    ----------
    values
        User k's eigenvalues lambda, (..., q).
    energy
        User k's energies e along user j's directions, (..., q).
    criterion
        Which directions count.

    Examples
    --------
    >>> float(measure_relevance(np.array([2.0, 0.5]), np.array([1.457738, 1.457738])).round(6))
    0.5
    """
    used = criterion.mark_used(values, energy)
    larger = np.maximum(np.maximum(values, energy), FLOOR)
    ratio = np.minimum(values, energy) / larger
    logs = np.where(used, np.log(np.maximum(ratio, FLOOR)), 0.0).sum(axis=-1)
    count = used.sum(axis=-1)
    # A factor of zero must stay zero: the floor under the logarithm would leave 1e-300^(1/q).
    hollow = (used & (ratio == 0)).any(axis=-1)
    mean = np.exp(logs / np.maximum(count, 1))
    return np.asarray(np.where((count > 0) & ~hollow, mean, 0.0))


def _compare_across(left: Spectra, right: Spectra, criterion: Criterion) -> Floats:
    """r(k, j) of every user k on the left along the top directions of every user j on the right."""
    along = measure_energies(left.covariances, right.vectors[:, :, : criterion.q])
    leading = left.values[:, None, : along.shape[2]]
    values = np.broadcast_to(leading, along.shape)
    return measure_relevance(values, along, criterion)


def pairwise_relevance(users: Spectra, criterion: Criterion = USUAL) -> Floats:
    """The asymmetric matrix r(k, j) over all pairs of users, with ones on the diagonal.

    Parameters
    ----------
    users
        What `decompose_features` found.
    criterion
        Which directions count.

    Examples
    --------
    >>> users = decompose_features([[[2, 0], [0, 1]], [[3, 1], [1, 1], [0, 1]]])
    >>> pairwise_relevance(users).round(6).tolist()
    [[1.0, 0.696884], [0.46479, 1.0]]
    """
    # One's own directions give one up to rounding; the diagonal is made exact.
    matrix = _compare_across(users, users, criterion)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def similarity_matrix(users: Spectra, criterion: Criterion = USUAL) -> Floats:
    """R_kj = (r(k, j) + r(j, k)) / 2, symmetric with ones on the diagonal.

    Parameters
    ----------
    users, criterion
        As for `pairwise_relevance`, whose matrix is made symmetric.

    Examples
    --------
    >>> users = decompose_features([[[2, 0], [0, 1]], [[0, 2], [1, 0]]])
    >>> similarity_matrix(users).round(6).tolist()
    [[1.0, 0.25], [0.25, 1.0]]
    """
    matrix = pairwise_relevance(users, criterion)
    return np.asarray((matrix + matrix.T) / 2)


def similarity_between(left: Spectra, right: Spectra, criterion: Criterion = USUAL) -> Floats:
    """The symmetric similarity of every spectrum on the left (rows) to every one on the right
    (columns).

    >>> a, b = decompose_features([[[2, 0], [0, 1]]]), decompose_features([[[0, 2], [1, 0]]])
    >>> similarity_between(a, b).round(6).tolist()
    [[0.25]]
    """
    there = _compare_across(left, right, criterion)
    back = _compare_across(right, left, criterion)
    return np.asarray((there + back.T) / 2)


def check_features(features: ArrayLike, user: int) -> Floats:
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
