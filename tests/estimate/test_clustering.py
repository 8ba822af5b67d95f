from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from rayfl.errors import DataError
from rayfl.estimate import (
    adjusted_rand_index,
    agglomerate,
    cluster_by_linkage,
    cluster_spectrally,
    cut_hierarchy,
    k_means,
)
from rayfl.estimate.clustering import (
    Linkage,
    _assign_points,
    embed_spectrally,
    number_by_first_member,
)

Floats = NDArray[np.float64]

LINKAGES: tuple[Linkage, ...] = ("single", "average", "complete")
PRINTED = np.array(
    [
        [1.00, 0.97, 0.31, 0.31, 0.32],
        [0.97, 1.00, 0.31, 0.32, 0.32],
        [0.31, 0.31, 1.00, 0.97, 0.98],
        [0.31, 0.32, 0.97, 1.00, 0.98],
        [0.32, 0.32, 0.98, 0.98, 1.00],
    ]
)
CHAIN = np.array([[0, 0.1, 0.45, 0.9], [0.1, 0, 0.2, 0.9], [0.45, 0.2, 0, 0.3], [0.9, 0.9, 0.3, 0]])


def random_distances(users: int, seed: int) -> Floats:
    points = np.random.default_rng(seed).normal(size=(users, 3))
    return np.asarray(np.sqrt(((points[:, None] - points) ** 2).sum(axis=2)))


def block_affinity(sizes: list[int], within: float = 0.9, across: float = 0.3) -> Floats:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    noise = np.random.default_rng(0).uniform(-0.05, 0.05, (labels.size, labels.size))
    return np.asarray(np.where(labels[:, None] == labels, within, across) + (noise + noise.T) / 2)


@pytest.mark.parametrize("linkage", LINKAGES)
def test_printed_similarities_give_the_two_tasks(linkage: Linkage) -> None:
    assert cluster_by_linkage(1 - PRINTED, 2, linkage).tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("linkage", "labels", "heights"),
    [
        ("single", [0, 0, 0, 1], [0.1, 0.2, 0.3]),
        ("average", [0, 0, 1, 1], [0.1, 0.3, 0.6125]),
        ("complete", [0, 0, 1, 1], [0.1, 0.3, 0.9]),
    ],
)
def test_linkages_differ_on_a_chain(
    linkage: Linkage, labels: list[int], heights: list[float]
) -> None:
    assert cluster_by_linkage(CHAIN, 2, linkage).tolist() == labels
    assert agglomerate(CHAIN, linkage)[:, 2] == pytest.approx(heights)


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("clusters", [1, 2, 3, 4, 5])
def test_exactly_as_many_clusters_as_asked_for(linkage: Linkage, clusters: int) -> None:
    assert set(cluster_by_linkage(1 - PRINTED, clusters, linkage)) == set(range(clusters))
    assert set(cluster_by_linkage(np.ones((5, 5)) - np.eye(5), clusters, linkage)) == set(
        range(clusters)
    )


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_history_equals_scipy(linkage: Linkage, seed: int) -> None:
    gaps = random_distances(25, seed)
    np.testing.assert_allclose(
        agglomerate(gaps, linkage), hierarchy.linkage(squareform(gaps, checks=False), linkage)
    )


def test_history_draws_a_dendrogram() -> None:
    merges = agglomerate(1 - PRINTED)
    assert hierarchy.is_valid_linkage(merges)
    assert hierarchy.dendrogram(merges, no_plot=True)["leaves"] == [3, 2, 4, 0, 1]


def test_ties_go_to_the_smallest_members() -> None:
    equal = np.ones((4, 4)) - np.eye(4)
    assert cluster_by_linkage(equal, 3).tolist() == [0, 0, 1, 2]
    assert cluster_by_linkage(equal, 2).tolist() == [0, 0, 0, 1]
    pairs = np.array([[0, 5, 1, 5], [5, 0, 5, 1], [1, 5, 0, 5], [5, 1, 5, 0]])
    assert cluster_by_linkage(pairs, 3).tolist() == [0, 1, 0, 2]


def test_input_is_left_alone() -> None:
    before = CHAIN.copy()
    agglomerate(CHAIN)
    assert np.array_equal(CHAIN, before)


@settings(max_examples=30, deadline=None)
@given(
    users=st.integers(2, 12),
    seed=st.integers(0, 1000),
    linkage=st.sampled_from(LINKAGES),
    data=st.data(),
)
def test_names_of_users_do_not_matter(
    users: int, seed: int, linkage: Linkage, data: st.DataObject
) -> None:
    gaps = random_distances(users, seed)
    clusters = data.draw(st.integers(1, users))
    order = np.array(data.draw(st.permutations(range(users))))
    plain, shuffled = (
        cluster_by_linkage(gaps, clusters, linkage),
        cluster_by_linkage(gaps[np.ix_(order, order)], clusters, linkage),
    )
    assert adjusted_rand_index(plain[order], shuffled) == 1.0
    heights = agglomerate(gaps, linkage)[:, 2]
    assert (np.diff(heights) >= -1e-12).all()


@pytest.mark.parametrize("sizes", [[3, 3], [2, 5, 4], [1, 1, 6], [4, 4, 4, 4]])
def test_spectral_finds_blocks(sizes: list[int]) -> None:
    affinity = block_affinity(sizes)
    found = cluster_spectrally(affinity, len(sizes), np.random.default_rng(0))
    assert found.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert np.array_equal(found, cluster_spectrally(affinity, len(sizes), np.random.default_rng(0)))


def test_spectral_on_printed_similarities() -> None:
    assert cluster_spectrally(PRINTED, 2, np.random.default_rng(1)).tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("clusters", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "affinity", [np.ones((6, 6)), np.eye(6), np.zeros((6, 6))], ids=["equal", "apart", "none"]
)
def test_spectral_fills_every_cluster(affinity: Floats, clusters: int) -> None:
    found = cluster_spectrally(affinity, clusters, np.random.default_rng(0))
    assert set(found.tolist()) == set(range(clusters))


def test_embedding_has_unit_rows_and_fixed_signs() -> None:
    rows = embed_spectrally(block_affinity([3, 4]), 2)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)
    assert (rows[:, 0] > 0).all()


def test_k_means_separates_clouds_and_repeats_itself() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(centre, 0.3, (20, 2)) for centre in (0, 5, 10)])
    first, again = (k_means(points, 3, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(first, again)
    assert adjusted_rand_index(first, np.repeat([0, 1, 2], 20)) == 1.0


def test_an_empty_cluster_takes_the_farthest_point() -> None:
    gaps = np.array([[0.0, 9.0, 9.0], [1.0, 9.0, 9.0], [4.0, 9.0, 9.0], [9.0, 0.0, 9.0]])
    assert _assign_points(gaps).tolist() == [0, 0, 2, 1]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0, 0, 1, 1], [1, 1, 0, 0], 1.0),
        ([0, 0, 1, 1], [0, 0, 1, 2], 4 / 7),
        ([0, 0, 1, 1], [0, 1, 0, 1], -0.5),
        ([0, 0, 0], [1, 1, 1], 1.0),
        ([0, 1, 2], [2, 0, 1], 1.0),
        ([0, 0, 0], [0, 1, 2], 0.0),
        ([0], [5], 1.0),
        ([], [], 1.0),
    ],
)
def test_adjusted_rand_index(one: list[int], other: list[int], expected: float) -> None:
    assert adjusted_rand_index(one, other) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_adjusted_rand_index_equals_scikit_learn(seed: int) -> None:
    from sklearn.metrics import adjusted_rand_score

    one, other = np.random.default_rng(seed).integers(0, 4, (2, 30))
    assert adjusted_rand_index(one, other) == pytest.approx(adjusted_rand_score(one, other))


def test_numbering_by_first_member() -> None:
    assert number_by_first_member(np.array([9, 4, 9, 1, 4])).tolist() == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("clusters", [0, 6])
def test_refuses_too_few_clients_for_the_clusters(clusters: int) -> None:
    with pytest.raises(
        DataError, match=rf"lies in \[1, 5\], the number of clients; got {clusters}"
    ):
        cut_hierarchy(agglomerate(1 - PRINTED), clusters)
    with pytest.raises(DataError, match="Ask for fewer clusters"):
        cluster_spectrally(PRINTED, clusters, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.0, 1.0]], "non-empty square matrix"),
        ([[0.0, 1.0], [2.0, 0.0]], "finite and symmetric"),
        ([[0.0, np.nan], [np.nan, 0.0]], "finite and symmetric"),
    ],
)
def test_refuses_matrices(matrix: list[list[float]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        agglomerate(matrix)


def test_refuses_negative_affinities_and_unequal_groupings() -> None:
    with pytest.raises(DataError, match=r"affinities are not negative; got -0\.5"):
        cluster_spectrally([[1.0, -0.5], [-0.5, 1.0]], 1, np.random.default_rng(0))
    with pytest.raises(DataError, match="label the same items"):
        adjusted_rand_index([0, 1], [0])
