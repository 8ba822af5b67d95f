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
from numpy.typing import ArrayLike

from rayfl.arrays import Floats, Ints
from rayfl.errors import DataError, broken

Linkage = Literal["average", "single", "complete"]
Update = Callable[[Floats, Floats, float, float], Floats]

UPDATES: dict[Linkage, Update] = {
    "single": lambda a, b, _size_a, _size_b: np.minimum(a, b),
    "complete": lambda a, b, _size_a, _size_b: np.maximum(a, b),
    "average": lambda a, b, size_a, size_b: (size_a * a + size_b * b) / (size_a + size_b),
}
LLOYD_STEPS = 300


def agglomerate(distances: ArrayLike, linkage: Linkage = "average") -> Floats:
    """Merge the two nearest clusters until one is left; ties go to the pair with the smallest
    members.

    The distance of a cluster to the union of a and b is min(d_a, d_b) (single), max (complete), or
    (n_a d_a + n_b d_b) / (n_a + n_b) (average). Returns the history in the layout of
    `scipy.cluster.hierarchy.linkage`: one row (id, id, height, size) a merge; merge i makes the
    cluster with id users + i.

    Parameters
    ----------
    distances
        A symmetric matrix, (users, users).
    linkage
        How far a union is.

    Examples
    --------
    >>> agglomerate([[0, 1, 4], [1, 0, 3], [4, 3, 0]]).tolist()
    [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.5, 3.0]]
    """
    gaps = _check_symmetric(distances, "distances")
    users = len(gaps)
    np.fill_diagonal(gaps, np.inf)
    update = UPDATES[linkage]
    sizes = np.ones(users)
    names = np.arange(users)
    merges = np.empty((max(users - 1, 0), 4))
    for step in range(users - 1):
        # A cluster lives in the row of its smallest member, so the first minimum is the tie that is
        # wanted.
        low, high = divmod(int(gaps.argmin()), users)
        pair = sorted((names[low], names[high]))
        merges[step] = [*pair, gaps[low, high], sizes[low] + sizes[high]]
        merged = update(
            gaps[low],
            gaps[high],
            sizes[low],
            sizes[high],
        )
        merged[[low, high]] = np.inf
        gaps[low] = merged
        gaps[:, low] = merged
        gaps[high] = np.inf
        gaps[:, high] = np.inf
        sizes[low] += sizes[high]
        # scipy numbers clusters by merge; rows here keep their smallest member's place.
        names[low] = users + step
    return merges


def cut_hierarchy(merges: Floats, clusters: int) -> Ints:
    """The labels when merging stops at exactly `clusters` clusters, even where heights tie.

    Parameters
    ----------
    merges
        The history of `agglomerate`.
    clusters
        How many clusters are wanted.

    Examples
    --------
    >>> cut_hierarchy(agglomerate([[0, 1, 4], [1, 0, 3], [4, 3, 0]]), 2).tolist()
    [0, 0, 1]
    """
    users = len(merges) + 1
    _check_clusters(clusters, users)
    members = {user: [user] for user in range(users)}
    pairs = merges[: users - clusters, :2].astype(int).tolist()
    for step, (a, b) in enumerate(pairs):
        members[users + step] = members.pop(a) + members.pop(b)
    labels = np.empty(users, dtype=np.int64)
    # The dictionary is in order of creation, so the numbers are put right at the end.
    for label, group in enumerate(members.values()):
        labels[group] = label
    return number_by_first_member(labels)


def cluster_by_linkage(distances: ArrayLike, clusters: int, linkage: Linkage = "average") -> Ints:
    """Labels 0..clusters-1 by agglomerative clustering; see `agglomerate` and `cut_hierarchy`.

    Parameters
    ----------
    distances
        A symmetric matrix, (users, users).
    clusters
        How many clusters are wanted.
    linkage
        How far a union is.

    Examples
    --------
    >>> gaps = [[0, 1, 4], [1, 0, 3], [4, 3, 0]]
    >>> cluster_by_linkage(gaps, clusters=2, linkage="single").tolist()
    [0, 0, 1]
    """
    return cut_hierarchy(agglomerate(distances, linkage), clusters)


def cluster_spectrally(
    affinity: ArrayLike,
    clusters: int,
    rng: np.random.Generator,
    restarts: int = 10,
) -> Ints:
    """Labels 0..clusters-1 by spectral clustering.

    The rows of the top `clusters` eigenvectors of D^(-1/2) A D^(-1/2), with D the row sums, scaled
    to length one, are grouped by k-means. Every cluster gets a member.

    Parameters
    ----------
    affinity
        A, symmetric and not negative, (users, users).
    clusters
        How many clusters are wanted.
    rng
        What the starts of k-means are drawn from.
    restarts
        How many starts there are.

    Examples
    --------
    >>> blocks = np.kron(np.eye(2), np.ones((2, 2)))
    >>> cluster_spectrally(blocks, 2, np.random.default_rng(0)).tolist()
    [0, 0, 1, 1]
    """
    weights = _check_symmetric(affinity, "affinities")
    if weights.min(initial=0.0) < 0:
        raise DataError(broken("affinities are not negative", weights.min(), "Shift or clip them."))
    _check_clusters(clusters, len(weights))
    rows = embed_spectrally(weights, clusters)
    return number_by_first_member(
        k_means(
            rows,
            clusters,
            rng,
            restarts,
        )
    )


def embed_spectrally(affinity: Floats, dimension: int) -> Floats:
    """Unit rows of the leading eigenvectors of the normalised affinity; each vector's largest entry
    is positive."""
    degree = affinity.sum(axis=1)
    scale = np.divide(
        1.0,
        np.sqrt(degree),
        out=np.zeros_like(degree),
        where=degree > 0,
    )
    _, ascending = np.linalg.eigh(scale[:, None] * affinity * scale)
    leading = ascending[:, ::-1][:, :dimension]
    # LAPACK leaves the sign open; k-means would hardly care, reproducible bits do.
    largest = np.abs(leading).argmax(axis=0)
    tops = leading[largest, np.arange(dimension)]
    leading = leading * np.where(tops < 0, -1.0, 1.0)
    length = np.linalg.norm(leading, axis=1, keepdims=True)
    rows = np.divide(
        leading,
        length,
        out=np.zeros_like(leading),
        where=length > 0,
    )
    return np.asarray(rows)


def k_means(
    points: Floats,
    clusters: int,
    rng: np.random.Generator,
    restarts: int = 10,
) -> Ints:
    """The labels of the lowest sum of squares over several runs of Lloyd's algorithm from
    k-means++ seeds.

    A cluster that runs empty takes over the point that lies farthest from its centre.

    Parameters
    ----------
    points
        (n, d).
    clusters
        How many clusters are wanted.
    rng
        What the seeds are drawn from.
    restarts
        How many runs there are.

    Examples
    --------
    >>> k_means(np.array([[0.0], [0.1], [5.0], [5.1]]), 2, np.random.default_rng(0)).shape
    (4,)
    """
    _check_clusters(clusters, len(points))
    runs = []
    for _ in range(restarts):
        # Seeds are drawn one run after the other, so the generator's stream fixes the result.
        seeds = _draw_seeds(points, clusters, rng)
        runs.append(_refine_centres(points, seeds))
    return min(runs, key=lambda labels: _sum_squares_within(points, labels))


def _refine_centres(points: Floats, centres: Floats, steps: int = LLOYD_STEPS) -> Ints:
    """Alternate nearest centres and means until no label changes."""
    labels = np.full(len(points), -1)
    for _ in range(steps):
        moved = _assign_points(_square_distances(points, centres))
        if np.array_equal(moved, labels):
            break
        labels = moved
        means = [points[labels == label].mean(axis=0) for label in range(len(centres))]
        centres = np.stack(means)
    return labels


def _assign_points(gaps: Floats) -> Ints:
    """The nearest centre of each point, but each centre at least one point."""
    count, clusters = gaps.shape
    labels = np.asarray(gaps.argmin(axis=1), dtype=np.int64)
    for empty in np.setdiff1d(np.arange(clusters), labels):
        # Taking the only point of another cluster would just move the hole.
        sizes = np.bincount(labels, minlength=clusters)
        shared = sizes[labels] > 1
        own = np.where(shared, gaps[np.arange(count), labels], -np.inf)
        labels[own.argmax()] = empty
    return labels


def _draw_seeds(points: Floats, clusters: int, rng: np.random.Generator) -> Floats:
    """k-means++ seeds: each next one drawn with probability proportional to its squared distance
    from the seeds."""
    chosen = [int(rng.integers(len(points)))]
    while len(chosen) < clusters:
        gaps = _square_distances(points, points[chosen]).min(axis=1)
        gaps[chosen] = 0.0
        total = gaps.sum()
        if total > 0:
            following = rng.choice(len(points), p=gaps / total)
        else:
            # Once every point coincides with a seed there is nothing to draw in proportion to.
            following = np.setdiff1d(np.arange(len(points)), chosen)[0]
        chosen.append(int(following))
    return points[chosen]


def _square_distances(points: Floats, centres: Floats) -> Floats:
    return np.asarray(((points[:, None] - centres[None]) ** 2).sum(axis=2))


def _sum_squares_within(points: Floats, labels: Ints) -> float:
    total = 0.0
    for label in np.unique(labels):
        group = points[labels == label]
        total += float(((group - group.mean(axis=0)) ** 2).sum())
    return total


def adjusted_rand_index(one: ArrayLike, other: ArrayLike) -> float:
    """Agreement of two groupings, corrected for chance: 1 if equal up to names, about 0 if
    independent.

    With n_ij the counts of the contingency table, a_i and b_j its margins and E = sum C(a_i,2) sum
    C(b_j,2) / C(n,2)::

        ARI = (sum C(n_ij,2) - E) / ((sum C(a_i,2) + sum C(b_j,2)) / 2 - E)

    Parameters
    ----------
    one
        A label for each item.
    other
        Another one for each of the same items.

    Examples
    --------
    >>> adjusted_rand_index([0, 0, 1, 1], [1, 1, 0, 0])
    1.0
    >>> round(adjusted_rand_index([0, 0, 1, 1], [0, 0, 1, 2]), 6)
    0.571429
    """
    first = np.asarray(one)
    second = np.asarray(other)
    if first.ndim != 1 or first.shape != second.shape:
        rule = "two groupings label the same items"
        raise DataError(broken(rule, f"{first.shape} and {second.shape}"))
    rows = np.unique(first, return_inverse=True)[1]
    columns = np.unique(second, return_inverse=True)[1]
    table = np.zeros((rows.max(initial=-1) + 1, columns.max(initial=-1) + 1))
    np.add.at(table, (rows, columns), 1.0)
    together = _count_pairs(table)
    by_row = _count_pairs(table.sum(axis=1))
    by_column = _count_pairs(table.sum(axis=0))
    all_pairs = _count_pairs(table.sum())
    expected = by_row * by_column / all_pairs if all_pairs else 0.0
    best = (by_row + by_column) / 2
    # Both one cluster, or both all singletons: the groupings are the same.
    return (together - expected) / (best - expected) if best != expected else 1.0


def _count_pairs(counts: Floats) -> float:
    """sum C(n, 2)."""
    return float((counts * (counts - 1) / 2).sum())


def number_by_first_member(labels: Ints) -> Ints:
    """The same grouping, numbered in order of first appearance.

    >>> number_by_first_member(np.array([7, 3, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    places = first.argsort().argsort()
    return np.asarray(places[inverse], dtype=np.int64)


def _check_symmetric(matrix: ArrayLike, what: str) -> Floats:
    """A fresh float64 copy of a square, symmetric, finite matrix, or a refusal."""
    values = np.array(matrix, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not len(values):
        raise DataError(broken(f"{what} are a non-empty square matrix", values.shape))
    finite = np.isfinite(values).all()
    if not finite or not np.allclose(
        values,
        values.T,
        rtol=1e-9,
        atol=1e-12,
    ):
        raise DataError(broken(f"{what} are finite and symmetric", "a matrix that is not"))
    return values


def _check_clusters(clusters: int, users: int) -> None:
    if not 1 <= clusters <= users:
        rule = f"the number of clusters lies in [1, {users}], the number of clients"
        remedy = "Ask for fewer clusters or bring more clients."
        raise DataError(broken(rule, clusters, remedy))


def measure_separation(similarity: Floats, labels: Ints) -> dict[str, float]:
    """How well the clusters stand apart: the least similar pair inside one, the most similar pair
    across two."""
    together = labels[:, None] == labels
    inside = similarity[together & ~np.eye(len(labels), dtype=bool)].min(initial=np.inf)
    across = similarity[~together].max(initial=-np.inf)
    return {"clusters/lowest_within": float(inside), "clusters/highest_across": float(across)}
