"""Grouping users into exactly M clusters, from a distance or an affinity matrix, and comparing two
groupings.

Agglomerative clustering with the updates of G. N. Lance and W. T. Williams (The Computer Journal 9,
1967); spectral clustering of A. Y. Ng, M. I. Jordan and Y. Weiss (NIPS 2001); adjusted Rand index
of L. Hubert and P. Arabie (Journal of Classification 2, 1985). Clusters are numbered by their
smallest member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rayfl.errors import DataError, broken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Linkage = Literal["average", "single", "complete"]
Update = Callable[[Floats, Floats, float, float], Floats]

UPDATES: dict[Linkage, Update] = {
    "single": lambda a, b, _size_a, _size_b: np.minimum(a, b),
    "complete": lambda a, b, _size_a, _size_b: np.maximum(a, b),
    "average": lambda a, b, size_a, size_b: (size_a * a + size_b * b) / (size_a + size_b),
}


def agglomerate(distances: ArrayLike, linkage: Linkage = "average") -> Floats:
    """Merge the two nearest clusters until one is left; ties go to the pair with the smallest
    members.

    The distance of a cluster to the union of a and b is min(d_a, d_b) (single), max (complete), or
    (n_a d_a + n_b d_b) / (n_a + n_b) (average). Returns the history in the layout of
    `scipy.cluster.hierarchy.linkage`: one row (id, id, height, size) a merge; merge i makes the
    cluster with id users + i.

    >>> agglomerate([[0, 1, 4], [1, 0, 3], [4, 3, 0]]).tolist()
    [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.5, 3.0]]
    """
    gaps = symmetric(distances, "distances")
    users = len(gaps)
    np.fill_diagonal(gaps, np.inf)
    update, sizes, names = UPDATES[linkage], np.ones(users), np.arange(users)
    merges = np.empty((max(users - 1, 0), 4))
    for step in range(users - 1):
        # A cluster lives in the row of its smallest member, so the first minimum is the tie that is
        # wanted.
        low, high = divmod(int(gaps.argmin()), users)
        merges[step] = [
            *sorted((names[low], names[high])),
            gaps[low, high],
            sizes[low] + sizes[high],
        ]
        merged = update(gaps[low], gaps[high], sizes[low], sizes[high])
        merged[[low, high]] = np.inf
        gaps[low], gaps[:, low] = merged, merged
        gaps[high], gaps[:, high] = np.inf, np.inf
        sizes[low] += sizes[high]
        # scipy numbers clusters by merge; rows here keep their smallest member's place.
        names[low] = users + step
    return merges


def cut(merges: Floats, clusters: int) -> Ints:
    """The labels when merging stops at exactly `clusters` clusters, even where heights tie.

    >>> cut(agglomerate([[0, 1, 4], [1, 0, 3], [4, 3, 0]]), 2).tolist()
    [0, 0, 1]
    """
    users = len(merges) + 1
    check_clusters(clusters, users)
    members = {user: [user] for user in range(users)}
    for step, (a, b) in enumerate(merges[: users - clusters, :2].astype(int).tolist()):
        members[users + step] = members.pop(a) + members.pop(b)
    labels = np.empty(users, dtype=np.int64)
    # The dictionary is in order of creation, so the numbers are put right at the end.
    for label, group in enumerate(members.values()):
        labels[group] = label
    return by_first_member(labels)


def agglomerative(distances: ArrayLike, clusters: int, linkage: Linkage = "average") -> Ints:
    """Labels 0..clusters-1 by agglomerative clustering; see `agglomerate` and `cut`.

    >>> agglomerative([[0, 1, 4], [1, 0, 3], [4, 3, 0]], clusters=2, linkage="single").tolist()
    [0, 0, 1]
    """
    return cut(agglomerate(distances, linkage), clusters)


def spectral(
    affinity: ArrayLike, clusters: int, rng: np.random.Generator, restarts: int = 10
) -> Ints:
    """Labels 0..clusters-1 by spectral clustering of a symmetric, non-negative affinity A.

    The rows of the top `clusters` eigenvectors of D^(-1/2) A D^(-1/2), with D the row sums, scaled
    to length one, are grouped by k-means. Every cluster gets a member.

    >>> blocks = np.kron(np.eye(2), np.ones((2, 2)))
    >>> spectral(blocks, 2, np.random.default_rng(0)).tolist()
    [0, 0, 1, 1]
    """
    weights = symmetric(affinity, "affinities")
    if weights.min(initial=0.0) < 0:
        raise DataError(broken("affinities are not negative", weights.min(), "Shift or clip them."))
    check_clusters(clusters, len(weights))
    return by_first_member(k_means(spectral_embedding(weights, clusters), clusters, rng, restarts))


def spectral_embedding(affinity: Floats, dimension: int) -> Floats:
    """Unit rows of the leading eigenvectors of the normalised affinity; each vector's largest entry
    is positive."""
    degree = affinity.sum(axis=1)
    scale = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    _, ascending = np.linalg.eigh(scale[:, None] * affinity * scale)
    leading = ascending[:, ::-1][:, :dimension]
    # LAPACK leaves the sign open; k-means would hardly care, reproducible bits do.
    largest = np.abs(leading).argmax(axis=0)
    leading = leading * np.where(leading[largest, np.arange(dimension)] < 0, -1.0, 1.0)
    length = np.linalg.norm(leading, axis=1, keepdims=True)
    return np.asarray(np.divide(leading, length, out=np.zeros_like(leading), where=length > 0))


def k_means(points: Floats, clusters: int, rng: np.random.Generator, restarts: int = 10) -> Ints:
    """The labels of the lowest sum of squares over `restarts` runs of Lloyd's algorithm from
    k-means++ seeds.

    A cluster that runs empty takes over the point that lies farthest from its centre.

    >>> k_means(np.array([[0.0], [0.1], [5.0], [5.1]]), 2, np.random.default_rng(0)).shape
    (4,)
    """
    check_clusters(clusters, len(points))
    # Seeds are drawn one run after the other, so the generator's stream fixes the result.
    runs = [lloyd(points, plus_plus(points, clusters, rng)) for _ in range(restarts)]
    return min(runs, key=lambda labels: within_sum_of_squares(points, labels))


def lloyd(points: Floats, centres: Floats, steps: int = 300) -> Ints:
    """Alternate nearest centres and means until no label changes."""
    labels = np.full(len(points), -1)
    for _ in range(steps):
        moved = without_empty(squared_distances(points, centres))
        if np.array_equal(moved, labels):
            break
        labels = moved
        centres = np.stack([points[labels == label].mean(axis=0) for label in range(len(centres))])
    return labels


def without_empty(gaps: Floats) -> Ints:
    """The nearest centre of each point, but each centre at least one point."""
    labels = np.asarray(gaps.argmin(axis=1), dtype=np.int64)
    for empty in np.setdiff1d(np.arange(gaps.shape[1]), labels):
        # Taking the only point of another cluster would just move the hole.
        shared = np.bincount(labels, minlength=gaps.shape[1])[labels] > 1
        own = np.where(shared, gaps[np.arange(len(labels)), labels], -np.inf)
        labels[own.argmax()] = empty
    return labels


def plus_plus(points: Floats, clusters: int, rng: np.random.Generator) -> Floats:
    """k-means++ seeds: each next one drawn with probability proportional to its squared distance
    from the seeds."""
    chosen = [int(rng.integers(len(points)))]
    while len(chosen) < clusters:
        gaps = squared_distances(points, points[chosen]).min(axis=1)
        gaps[chosen] = 0.0
        free = np.setdiff1d(np.arange(len(points)), chosen)
        total = gaps.sum()
        # Once every point coincides with a seed there is nothing to draw in proportion to.
        chosen.append(int(rng.choice(len(points), p=gaps / total)) if total > 0 else int(free[0]))
    return points[chosen]


def squared_distances(points: Floats, centres: Floats) -> Floats:
    return np.asarray(((points[:, None] - centres[None]) ** 2).sum(axis=2))


def within_sum_of_squares(points: Floats, labels: Ints) -> float:
    groups = (points[labels == label] for label in np.unique(labels))
    return float(sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups))


def adjusted_rand_index(one: ArrayLike, other: ArrayLike) -> float:
    """Agreement of two groupings, corrected for chance: 1 if equal up to names, about 0 if
    independent.

    With n_ij the counts of the contingency table, a_i and b_j its margins and E = sum C(a_i,2) sum
    C(b_j,2) / C(n,2)::

        ARI = (sum C(n_ij,2) - E) / ((sum C(a_i,2) + sum C(b_j,2)) / 2 - E)

    >>> adjusted_rand_index([0, 0, 1, 1], [1, 1, 0, 0]), round(adjusted_rand_index([0, 0, 1, 1], [0, 0, 1, 2]), 6)
    (1.0, 0.571429)
    """
    first, second = np.asarray(one), np.asarray(other)
    if first.ndim != 1 or first.shape != second.shape:
        raise DataError(
            broken("two groupings label the same items", f"{first.shape} and {second.shape}")
        )
    rows, columns = (np.unique(labels, return_inverse=True)[1] for labels in (first, second))
    table = np.zeros((rows.max(initial=-1) + 1, columns.max(initial=-1) + 1))
    np.add.at(table, (rows, columns), 1.0)
    together, by_row, by_column, all_pairs = (
        float((counts * (counts - 1) / 2).sum())
        for counts in (table, table.sum(1), table.sum(0), table.sum())
    )
    expected = by_row * by_column / all_pairs if all_pairs else 0.0
    best = (by_row + by_column) / 2
    # Both one cluster, or both all singletons: the groupings are the same.
    return (together - expected) / (best - expected) if best != expected else 1.0


def by_first_member(labels: Ints) -> Ints:
    """The same grouping, numbered in order of first appearance.

    >>> by_first_member(np.array([7, 3, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(first.argsort().argsort()[inverse], dtype=np.int64)


def symmetric(matrix: ArrayLike, what: str) -> Floats:
    """A fresh float64 copy of a square, symmetric, finite matrix, or a refusal."""
    values = np.array(matrix, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not len(values):
        raise DataError(broken(f"{what} are a non-empty square matrix", values.shape))
    if not (np.isfinite(values).all() and np.allclose(values, values.T, rtol=1e-9, atol=1e-12)):
        raise DataError(broken(f"{what} are finite and symmetric", "a matrix that is not"))
    return values


def check_clusters(clusters: int, users: int) -> None:
    if not 1 <= clusters <= users:
        remedy = "Ask for fewer clusters or bring more clients."
        raise DataError(
            broken(
                f"the number of clusters lies in [1, {users}], the number of clients",
                clusters,
                remedy,
            )
        )
