"""Local intrinsic dimensionality: how fast the number of neighbours grows with the radius.

Maximum-likelihood (Hill) estimator of L. Amsaleg et al., "Estimating local intrinsic
dimensionality", KDD 2015; taken as a sign of noisy labels by X. Ma et al., "Dimensionality-driven
learning with noisy labels", ICML 2018, and on clients by J. Xu et al., "FedCorr: multi-stage
federated learning for label noise correction", CVPR 2022."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Floats
from rayfl.errors import DataError, broken

GUARD = 1e-6
SMALLEST = 1e-12
"""A distance between equal points, so that its logarithm exists."""


def lid_of_distances(distances: ArrayLike) -> Floats:
    """LID = -k / (sum_i log(r_i / (r_k + 1e-6)) + 1e-6).

    0 where r_k = 0 (all neighbours coincide with the point); nan where there are no neighbours.

    Parameters
    ----------
    distances
        Ascending distances r_1..r_k to other points, on the last axis.

    Examples
    --------
    >>> round(float(lid_of_distances([1.0, 2.0, 4.0])), 4)
    1.4427
    """
    radii = np.asarray(distances, dtype=np.float64)
    k = radii.shape[-1]
    if k == 0:
        return np.full(radii.shape[:-1], np.nan)
    farthest = radii[..., -1]
    ratios = np.maximum(radii, SMALLEST) / (farthest[..., None] + GUARD)
    total = np.log(ratios).sum(axis=-1)
    return np.asarray(np.where(farthest > 0, -k / (total + GUARD), 0.0))


def local_intrinsic_dimensionality(points: ArrayLike, k: int = 20) -> Floats:
    """LID of every point from its k nearest others in the same batch: (..., n, d) -> (..., n).

    Distances are Euclidean.

    Parameters
    ----------
    points
        Batches of points, (..., n, d).
    k
        How many neighbours; a batch of n points has at most n - 1, and k shrinks to that.

    Examples
    --------
    >>> line = np.linspace(0, 1, 101)[:, None]
    >>> float(local_intrinsic_dimensionality(line, k=20)[0].round(2))
    1.14
    """
    batches = np.asarray(points, dtype=np.float64)
    if batches.ndim < 2 or k < 1:
        rule = "points are (..., n, dimension) and k is at least 1"
        raise DataError(broken(rule, f"{batches.shape}, k={k}"))
    flat = batches.reshape(-1, *batches.shape[-2:])
    distances = [_find_nearest_distances(batch, k) for batch in flat]
    found = [lid_of_distances(each) for each in distances]
    return np.array(found).reshape(batches.shape[:-1])


def client_lids(clients: Sequence[ArrayLike], k: int = 20) -> Floats:
    """The mean LID of every client's outputs; a client with fewer than two samples gets the others'
    median.

    Parameters
    ----------
    clients
        Each client's outputs, (n, d).
    k
        Neighbours of a sample.

    Examples
    --------
    >>> line = np.linspace(0, 1, 30)[:, None]
    >>> one, alone = client_lids([line, line[:1]], k=5)
    >>> bool(one == alone)
    True
    """
    means = np.array([mean_lid(outputs, k) for outputs in clients], dtype=np.float64)
    known = np.isfinite(means)
    # The median keeps a client that says nothing out of either extreme.
    typical = np.median(means[known]) if known.any() else 0.0
    return np.where(known, means, typical)


def mean_lid(outputs: ArrayLike, k: int = 20) -> float:
    """The mean LID of one client's outputs; nan for fewer than two samples.

    Parameters
    ----------
    outputs
        One row a sample, (n, d): commonly class probabilities.
    k
        Neighbours of a sample. FedCorr: 20.

    Examples
    --------
    >>> round(mean_lid(np.linspace(0, 1, 30)[:, None], k=5), 4)
    1.6316
    """
    points = np.asarray(outputs, dtype=np.float64)
    if len(points) < 2:
        return float("nan")
    return float(local_intrinsic_dimensionality(points, k).mean())


def _find_nearest_distances(points: Floats, k: int) -> Floats:
    """Ascending distances (n, min(k, n - 1)) from each point to its nearest others."""
    from scipy.spatial.distance import cdist

    kept = min(k, len(points) - 1)
    if kept < 1:
        return np.empty((len(points), 0))
    gaps = cdist(points, points)
    # The point itself is masked, not dropped as the first column: a duplicate may be just as near.
    np.fill_diagonal(gaps, np.inf)
    nearest = np.partition(gaps, kept - 1, axis=1)[:, :kept]
    return np.sort(nearest, axis=1)
