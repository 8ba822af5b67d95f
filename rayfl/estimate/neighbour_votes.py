"""What a sample's nearest neighbours in feature space say of its label.

The k-nearest-neighbours rule of T. Cover and P. Hart (IEEE Transactions on Information Theory 13,
1967), as FedLN takes it to find clients with noisy labels (Tsouvalas et al., ACM TIST 2024):

    yhat_i = the commonest label among the k points nearest to i,   nu = mean_i [ yhat_i != y_i ]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Floats, Ints
from rayfl.errors import DataError, broken

BLOCK = 1024
"""Points whose distances to all others are held at a time."""


def vote_labels(
    features: ArrayLike,
    labels: ArrayLike,
    k: int = 10,
    itself: bool = True,
) -> Ints:
    """yhat, the label that the k nearest points give each point; ties go to the smaller label.

    Distances are Euclidean; of equally distant points the first in order is nearer. Fewer than k
    points vote with all that there are; a point alone, without itself, keeps its label.

    Parameters
    ----------
    features
        One row a point, (n, d).
    labels
        Labels of the points, (n,), not negative.
    k
        How many neighbours vote. FedLN: 10.
    itself
        Whether a point is its own nearest neighbour, as where a classifier is asked of the points
        that it was fitted to (FedLN); this biases towards the given label.

    Examples
    --------
    >>> vote_labels([[0], [1], [2], [10], [11], [12]], [0, 0, 1, 1, 1, 0], k=3).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    points, given = _check_points(features, labels, k)
    voters = min(k, len(points) - (not itself))
    if voters < 1:
        return np.array(given)
    near = _find_nearest(points, voters, itself)
    votes = np.zeros((len(points), int(given.max()) + 1), dtype=np.int64)
    rows = np.arange(len(points))[:, None]
    np.add.at(votes, (rows, given[near]), 1)
    return np.asarray(votes.argmax(axis=1), dtype=np.int64)


def measure_disagreement(
    features: ArrayLike,
    labels: ArrayLike,
    k: int = 10,
    itself: bool = True,
) -> float:
    """nu, the share of points whose neighbours give them another label; 0 without points.

    Parameters
    ----------
    features
        One row a point, (n, d).
    labels
        Labels of the points, (n,).
    k
        How many neighbours vote.
    itself
        Whether a point is its own nearest neighbour.

    Examples
    --------
    >>> points, labels = [[0], [1], [2], [10], [11], [12]], [0, 0, 1, 1, 1, 0]
    >>> round(measure_disagreement(points, labels, k=3), 6)
    0.333333
    """
    given = np.asarray(labels)
    if not given.size:
        return 0.0
    return float(
        (
            vote_labels(
                features,
                labels,
                k,
                itself,
            )
            != given
        ).mean()
    )


def _find_nearest(points: Floats, k: int, itself: bool) -> Ints:
    """Positions (n, k) of the nearest points, nearest first."""
    from scipy.spatial.distance import cdist

    found = np.empty((len(points), k), dtype=np.int64)
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        gaps = cdist(block, points)
        own = np.arange(len(block))
        # A point that lies at the same place must come neither before nor in place of the point.
        gaps[own, start + own] = -1.0 if itself else np.inf
        order = gaps.argsort(axis=1, kind="stable")
        found[start : start + BLOCK] = order[:, :k]
    return found


def _check_points(features: ArrayLike, labels: ArrayLike, k: int) -> tuple[Floats, Ints]:
    points = np.asarray(features, dtype=np.float64)
    given = np.asarray(labels, dtype=np.int64)
    if points.ndim != 2 or given.shape != (len(points),):
        rule = "features are (n, d), with one label for each of the n points"
        raise DataError(broken(rule, f"{points.shape} and {given.shape}"))
    if k < 1:
        raise DataError(broken("at least one neighbour votes", f"k={k}"))
    if given.min(initial=0) < 0:
        raise DataError(broken("labels are not negative", int(given.min())))
    if not np.isfinite(points).all():
        raise DataError(broken("features are finite", points[~np.isfinite(points)][0]))
    return points, given
