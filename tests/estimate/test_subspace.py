from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from rayfl.errors import DataError
from rayfl.estimate import (
    Criterion,
    calibrate_correction,
    correct_labels,
    decompose_features,
    find_nearest_class,
    pairwise_relevance,
    similarity_matrix,
)
from rayfl.estimate.label_correction import measure_projections, relabel_class
from rayfl.estimate.subspace import (
    Rank,
    measure_energies,
    measure_relevance,
    similarity_between,
)

Floats = NDArray[np.float64]


def turned(features: Floats, degrees: float) -> Floats:
    angle = np.deg2rad(degrees)
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return np.asarray(features @ rotation)


X1 = np.array([[2.0, 0.0], [0.0, 1.0]])
X2 = np.array([[0.0, 2.0], [1.0, 0.0]])
X3, X4 = turned(X1, 45), turned(X1, 30)
XB = np.array([[3.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
CLEAN = decompose_features([np.array([[3, 0, 0], [3, 0.3, 0]]), np.array([[0, 3, 0], [0, 3, 0.3]])])


def users(seed: int, count: int = 4, dimension: int = 6) -> list[Floats]:
    rng = np.random.default_rng(seed)
    scales = np.linspace(3, 0.5, dimension)
    return [
        rng.normal(size=(30 + 5 * k, dimension)) * rng.permutation(scales) for k in range(count)
    ]


def naive_relevance(one: Floats, other: Floats, q: int) -> float:
    """r(k, j) for one pair, straight from the definition."""
    sigma = one.T @ one / len(one)
    values = np.sort(np.linalg.eigvalsh(sigma))[::-1]
    _, vectors = np.linalg.eigh(other.T @ other / len(other))
    lengths = [np.linalg.norm(sigma @ vectors[:, -1 - i]) for i in range(q)]
    return float(
        np.prod([min(a, b) / max(a, b) for a, b in zip(values, lengths, strict=False)]) ** (1 / q)
    )


def test_eigenvalues_are_of_the_uncentred_covariance_largest_first() -> None:
    found = decompose_features([X1, X2, X3, X4])
    np.testing.assert_allclose(found.values, np.tile([2.0, 0.5], (4, 1)))
    rebuilt = found.vectors @ (found.values[:, :, None] * found.vectors.transpose(0, 2, 1))
    np.testing.assert_allclose(rebuilt, found.covariances, atol=1e-12)
    assert decompose_features([XB]).values[0] == pytest.approx([3.938358, 0.394976], abs=6e-7)


def test_keep_holds_the_leading_pairs() -> None:
    full, kept = decompose_features(users(0)), decompose_features(users(0), keep=2)
    assert kept.vectors.shape == (4, 6, 2)
    np.testing.assert_array_equal(kept.values, full.values[:, :2])
    np.testing.assert_array_equal(
        similarity_matrix(kept, Criterion(2)), similarity_matrix(full, Criterion(2))
    )


@pytest.mark.parametrize(
    ("one", "other", "similar"),
    [(X1, X2, 0.25), (X1, X3, 0.5), (X1, X4, 0.633623), (X3, X4, 0.826875)],
    ids=["R12", "R13", "R14", "R34"],
)
def test_similarity_of_turned_users(one: Floats, other: Floats, similar: float) -> None:
    matrix = similarity_matrix(decompose_features([one, other]), Criterion(2))
    assert matrix[0, 1] == matrix[1, 0] == pytest.approx(similar, abs=6e-7)
    assert np.diagonal(matrix).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("other", "lengths"), [(X3, [1.457738, 1.457738]), (X4, [1.75, 1.089725])])
def test_energies_are_norms_of_images(other: Floats, lengths: list[float]) -> None:
    one, two = decompose_features([X1]), decompose_features([other])
    assert measure_energies(one.covariances, two.vectors)[0, 0] == pytest.approx(lengths, abs=6e-7)


@pytest.mark.parametrize(("q", "there", "back"), [(2, 0.696884, 0.464790), (1, 0.916474, 0.911575)])
def test_relevance_is_not_symmetric(q: int, there: float, back: float) -> None:
    matrix = pairwise_relevance(decompose_features([X1, XB]), Criterion(q))
    assert (matrix[0, 1], matrix[1, 0]) == pytest.approx((there, back), abs=6e-7)
    assert similarity_matrix(decompose_features([X1, XB]), Criterion(2))[0, 1] == pytest.approx(
        0.580837, abs=6e-7
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("q", [1, 3, 6])
def test_all_pairs_equal_one_pair_at_a_time(seed: int, q: int) -> None:
    data = users(seed)
    matrix = pairwise_relevance(decompose_features(data), Criterion(q, "fixed"))
    expected = [[1.0 if a is b else naive_relevance(a, b, q) for b in data] for a in data]
    np.testing.assert_allclose(matrix, expected, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    factor=st.floats(0.01, 100),
    rank=st.sampled_from(["shared", "adaptive", "fixed"]),
)
def test_neither_units_nor_rotations_nor_signs_matter(seed: int, factor: float, rank: Rank) -> None:
    data = users(seed)
    plain = pairwise_relevance(decompose_features(data), Criterion(4, rank))
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))[0]
    assert ((plain >= 0) & (plain <= 1)).all()
    np.testing.assert_allclose(
        pairwise_relevance(decompose_features([data[0] * factor, *data[1:]]), Criterion(4, rank)),
        plain,
        atol=1e-9,
    )
    np.testing.assert_allclose(
        pairwise_relevance(decompose_features([x @ rotation for x in data]), Criterion(4, rank)),
        plain,
        atol=1e-9,
    )
    found = decompose_features(data)
    flipped = found._replace(vectors=found.vectors * np.array([1, -1, 1, -1, -1, 1]))
    np.testing.assert_array_equal(pairwise_relevance(flipped, Criterion(4, rank)), plain)


@pytest.mark.parametrize(
    ("values", "energy", "rank", "expected"),
    [
        ([4.0, 1.0, 0.0], [2.0, 1.0, 0.0], "shared", 0.5**0.5),
        ([4.0, 1.0, 0.0], [2.0, 1.0, 0.0], "fixed", 0.5**0.5),
        ([4.0, 1.0, 1.0], [2.0, 1.0, 0.0], "shared", 0.5**0.5),
        ([4.0, 1.0, 1.0], [2.0, 1.0, 0.0], "fixed", 0.0),
        ([4.0, 1.0, 0.0], [2.0, 1.0, 1.0], "adaptive", 0.5**0.5),
        ([4.0, 1.0, 1.0], [2.0, 1.0, 0.0], "adaptive", 0.0),
        ([4.0, 1.0, 1.0], [0.0, 0.0, 0.0], "shared", 0.0),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], "fixed", 0.0),
    ],
)
def test_rank_rules(values: list[float], energy: list[float], rank: Rank, expected: float) -> None:
    assert float(
        measure_relevance(np.array(values), np.array(energy), Criterion(3, rank))
    ) == pytest.approx(expected)


def test_one_sample_has_one_direction() -> None:
    lone = decompose_features([[[3.0, 4.0, 0.0]], rank_three()])
    assert lone.values[0] == pytest.approx([25, 0, 0], abs=1e-12)
    matrix = pairwise_relevance(lone)
    assert np.isfinite(matrix).all()
    assert matrix[0, 1] > 0


def rank_three() -> Floats:
    return np.random.default_rng(0).normal(size=(9, 3)) * [3, 2, 1]


@pytest.mark.parametrize("how", [Criterion(2, "fixed", 0.0), Criterion(3, "fixed", 0.0)])
def test_fixed_without_a_threshold_is_the_equation(how: Criterion) -> None:
    """Down to directions a million times weaker than the first."""
    data = [one * [1, 1, 1e-3, 1e-3, 1e-3, 1e-3] for one in users(0)]
    matrix = pairwise_relevance(decompose_features(data), how)
    expected = [[1.0 if a is b else naive_relevance(a, b, how.q) for b in data] for a in data]
    np.testing.assert_allclose(matrix, expected, rtol=1e-6)
    usual = pairwise_relevance(decompose_features(data), Criterion(how.q, "fixed"))
    assert np.allclose(usual, matrix) == (how.q == 2)


def test_adaptive_takes_the_directions_above_the_threshold() -> None:
    """Of q = 6 those of user k whose eigenvalue exceeds the threshold: two."""
    data = [one * [1, 1, 1e-3, 1e-3, 1e-3, 1e-3] for one in users(0)]
    found = decompose_features(data)
    np.testing.assert_allclose(
        pairwise_relevance(found, Criterion(6, "adaptive")),
        pairwise_relevance(found, Criterion(2, "fixed", 0.0)),
    )


# -- directions that are not there -----------------------------------------------------------------


def turn_null_space(values: Floats, vectors: Floats, rng: np.random.Generator) -> Floats:
    """The eigenvectors as another solver might give them: another basis of the null space."""
    null = values <= 1e-9 * values.max()
    rotation = np.linalg.qr(rng.normal(size=(null.sum(), null.sum())))[0]
    turned = vectors.copy()
    turned[:, null] = vectors[:, null] @ rotation
    return np.asarray(turned)


@pytest.fixture
def another_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, null spaces have random bases."""
    rng = np.random.default_rng(8)
    solve = np.linalg.eigh

    def solve_otherwise(matrix: Floats) -> tuple[Floats, Floats]:
        values, vectors = solve(matrix)
        return values, turn_null_space(values, vectors, rng)

    monkeypatch.setattr(np.linalg, "eigh", solve_otherwise)


def few_samples() -> list[Floats]:
    """Classes of 6 dimensions with fewer samples than that, and not equally many."""
    return [one[:count] for one, count in zip(users(1), (2, 3, 30, 1), strict=True)]


def find_by_pooling() -> tuple[list[list[float]], list[int], list[float]]:
    """Similarities, labels and calibration where directions are missing."""
    found = decompose_features(few_samples())
    matrix = similarity_matrix(found, Criterion(5, "fixed"))
    samples = users(2)[0]
    given = np.arange(len(samples)) % 4
    labels = correct_labels(samples, given, found, 0.7, Criterion(5), sample_rank=5).labels
    level = calibrate_correction(dict(enumerate(few_samples()[:3])), Criterion(4), ranks=(4, 6))
    return matrix.tolist(), labels.tolist(), list(level)


USUAL_SOLVER = find_by_pooling()


@pytest.mark.usefixtures("another_solver")
def test_a_basis_of_the_null_space_decides_nothing() -> None:
    matrix, labels, level = find_by_pooling()
    np.testing.assert_allclose(matrix, USUAL_SOLVER[0], atol=1e-9)
    assert labels == USUAL_SOLVER[1]
    np.testing.assert_allclose(level, USUAL_SOLVER[2], atol=1e-9)


def test_directions_without_data_are_zeros() -> None:
    found = decompose_features([[[3.0, 4.0, 0.0]], [[0.0, 0.0, 0.0]]])
    assert found.values[0] == pytest.approx([25.0, 0.0, 0.0])
    assert np.abs(found.vectors[0, :, 0]) == pytest.approx([0.6, 0.8, 0.0])
    assert not found.vectors[0, :, 1:].any()
    assert not found.values[1].any()
    assert not found.vectors[1].any()


def test_disjoint_users_have_nothing_in_common() -> None:
    assert similarity_matrix(decompose_features([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist() == [
        [1.0, 0.0],
        [0.0, 1.0],
    ]


def test_similarity_between_is_a_block_of_the_whole() -> None:
    data = users(3)
    block = similarity_between(
        decompose_features(data[:2]), decompose_features(data[2:]), Criterion(3)
    )
    np.testing.assert_allclose(
        block, similarity_matrix(decompose_features(data), Criterion(3))[:2, 2:], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("bases", "norms", "winner"),
    [
        ([[[1, 0], [0, 0], [0, 0]], [[0, 0], [1, 0], [0, 1]]], [0.6, 0.707107], 1),
        ([[[1], [0], [0]], [[0], [1], [0]]], [0.6, 0.5], 0),
    ],
    ids=["plane against line", "equal rank"],
)
@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_longest_projection_wins(
    bases: list[list[list[float]]], norms: list[float], winner: int, scale: float
) -> None:
    sample = np.array([[0.6, 0.5, 0.5]]) * scale
    found = measure_projections(sample, np.array(bases, dtype=np.float64))[0]
    assert found == pytest.approx(np.array(norms) * scale, abs=5e-6)
    assert find_nearest_class(sample, np.array(bases, dtype=np.float64)).tolist() == [winner]


def test_phase_one_similarities() -> None:
    mistaken = decompose_features([[[0.1, 3, 0], [0, 2.8, 0.2]]])
    assert similarity_between(mistaken, CLEAN, Criterion(1))[0] == pytest.approx(
        [0.067816, 0.999701], abs=6e-7
    )


@pytest.mark.parametrize(
    ("tau", "decided"), [(0.0679, 1), (0.5, 1), (0.9997, 1), (0.05, None), (0.9999, None)]
)
def test_phase_one_moves_the_whole_class(tau: float, decided: int | None) -> None:
    found = correct_labels(
        [[0.1, 3, 0], [0, 2.8, 0.2]], [0, 0], CLEAN, tau, Criterion(1), sample_rank=1
    )
    assert found.decided == {0: decided}
    assert found.labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("similarities", "expected"),
    [([0.2, 0.9], 1), ([0.7, 0.9], None), ([0.2, 0.3], None), ([0.5, 0.1], 0)],
)
def test_phase_one_needs_exactly_one_class(similarities: list[float], expected: int | None) -> None:
    assert relabel_class(np.array(similarities), 0.5) == expected


def test_correction_reads_the_labels_before_any_change() -> None:
    samples = [[3.0, 0.1, 0.0], [2.9, 0.0, 0.0], [0.1, 3.0, 0.0], [0.0, 3.0, 0.2]]
    given = np.array([1, 1, 0, 0])
    found = correct_labels(samples, given, CLEAN, 0.5, Criterion(1))
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert given.tolist() == [1, 1, 0, 0]


def test_mixed_class_goes_sample_by_sample() -> None:
    samples = [[3.0, 0.1, 0.0], [0.1, 3.0, 0.0], [2.0, 0.0, 0.1], [0.0, 2.5, 0.0]]
    found = correct_labels(samples, [0, 0, 0, 0], CLEAN, 0.99, Criterion(1), sample_rank=1)
    assert found.decided == {0: None}
    assert found.labels.tolist() == [0, 1, 0, 1]


def subspace_classes(count: int, overlap: float, seed: int = 0) -> dict[int, Floats]:
    """Classes that live in their own two of 2 * count dimensions, plus a share of everything
    else."""
    rng = np.random.default_rng(seed)
    own = np.arange(2 * count) // 2
    return {
        c: rng.normal(size=(60, 2 * count)) * np.where(own == c, 3.0, overlap) for c in range(count)
    }


def test_calibration_separates_and_corrects() -> None:
    clean = subspace_classes(4, 0.2)
    found = calibrate_correction(clean, Criterion(2), ranks=(1, 2, 8))
    assert found.tau == pytest.approx((found.lowest_within + found.highest_between) / 2)
    assert (found.sample_rank, found.accuracy) == (2, 1.0)
    fresh = subspace_classes(4, 0.2, seed=1)
    server = decompose_features([clean[c] for c in range(4)])
    swapped = correct_labels(
        fresh[2], np.full(60, 3), server, found.tau, Criterion(2), found.sample_rank
    )
    assert swapped.decided == {3: 2}
    mixed = correct_labels(
        np.vstack([fresh[0], fresh[1]]),
        np.zeros(120),
        server,
        found.tau,
        Criterion(2),
        found.sample_rank,
    )
    assert (mixed.labels == np.repeat([0, 1], 60)).mean() > 0.97


def test_calibration_falls_back_to_a_percentile() -> None:
    rng = np.random.default_rng(0)
    found = calibrate_correction(
        {c: rng.normal(size=(8, 5)) for c in range(4)}, Criterion(2), ranks=(2,)
    )
    assert found.lowest_within <= found.highest_between
    assert 0 < found.tau <= found.highest_between


def test_calibration_needs_two_halves() -> None:
    with pytest.raises(DataError, match=r"two clean samples each; got \{0: 1, 1: 2\}"):
        calibrate_correction({0: [[1.0, 2.0]], 1: [[1.0, 2.0], [3.0, 4.0]]})


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([[[1.0, 2.0]], [[1.0]]], r"one dimension; got \[1, 2\]"),
        ([[[1.0, np.nan]]], r"features are finite; got nan \(user 0\)"),
        ([[[1.0]], np.empty((0, 1))], r"non-empty .* \(user 1\)"),
    ],
)
def test_refuses_features(features: list[list[list[float]]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        decompose_features(features)


def test_refuses_labels_that_do_not_fit() -> None:
    with pytest.raises(DataError, match=r"one label a sample \(2\); got \(1,\)"):
        correct_labels([[1, 0, 0], [0, 1, 0]], [0], CLEAN, 0.5)
