from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rayfl.errors import DataError
from rayfl.estimate import (
    average_posteriors,
    choose_neighbours,
    compare_by_cosine,
    draw_neighbours,
    scale_expertise,
    scale_similarity,
    score_reliability,
    softmax,
)
from rayfl.estimate.neighbours import share_trust

ACCURACY = [0.55, 0.90, 0.40, 0.70, 0.65]
OUTPUTS = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.65, 0.25, 0.1], [0.2, 0.2, 0.6]]
POSTERIORS = [[0.9, 0.4, 0.6, 0.1], [0.8, 0.7, 0.2, 0.3], [0.95, 0.55, 0.45, 0.05]]


def test_expertise() -> None:
    assert scale_expertise(ACCURACY) == pytest.approx([0.3, 1, 0, 0.6, 0.5])


def test_cosines_and_their_scaling() -> None:
    assert compare_by_cosine(OUTPUTS)[0] == pytest.approx(
        [1, 0.402015, 0.983151, 0.996111, 0.492366], abs=6e-7
    )
    assert scale_similarity(OUTPUTS, on="logits")[0] == pytest.approx(
        [1, 0, 0.971824, 0.993497, 0.151092], abs=6e-7
    )


def test_softmax_of_log_probabilities_is_the_same() -> None:
    np.testing.assert_allclose(
        scale_similarity(np.log(OUTPUTS)), scale_similarity(OUTPUTS, on="logits"), atol=1e-12
    )


def test_reliability_scores() -> None:
    scores = score_reliability(
        scale_expertise(ACCURACY), scale_similarity(OUTPUTS, on="logits"), alpha=0.6
    )
    assert scores[0] == pytest.approx([0.58, 0.6, 0.388730, 0.757399, 0.360437], abs=6e-7)
    assert np.diagonal(scores) == pytest.approx(0.6 * scale_expertise(ACCURACY) + 0.4)


@pytest.mark.parametrize(
    ("alpha", "order"), [(0.6, [3, 1, 2, 4]), (0.0, [3, 2, 4, 1]), (1.0, [1, 3, 4, 2])]
)
def test_order_of_neighbours(alpha: float, order: list[int]) -> None:
    scores = score_reliability(
        scale_expertise(ACCURACY), scale_similarity(OUTPUTS, on="logits"), alpha
    )
    assert choose_neighbours(scores[0], target=0, k=4).tolist() == order
    assert choose_neighbours(scores[0], target=0, k=2).tolist() == order[:2]


@pytest.mark.parametrize(
    ("k", "weights"), [(1, [0.433678, 0.566322]), (2, [0.299371, 0.390936, 0.309694])]
)
def test_ensemble_weights(k: int, weights: list[float]) -> None:
    row = score_reliability(scale_expertise(ACCURACY), scale_similarity(OUTPUTS, on="logits"))[0]
    chosen = [0, *choose_neighbours(row, 0, k)]
    assert share_trust(row[chosen]) == pytest.approx(weights, abs=6e-7)


@pytest.mark.parametrize(
    ("trust", "expected"),
    [
        ([0.58, 0.757399, 0.6], [0.876391, 0.563735, 0.397172, 0.162702]),
        ([1.0, 1.0, 1.0], [0.883333, 0.55, 0.416667, 0.15]),
        ([0.0, 0.0, 0.0], [0.883333, 0.55, 0.416667, 0.15]),
    ],
    ids=["reliable", "random", "no trust"],
)
def test_ensemble_posterior(trust: list[float], expected: list[float]) -> None:
    posterior = average_posteriors(POSTERIORS, trust)
    assert posterior == pytest.approx(expected, abs=6e-7)
    assert np.flatnonzero(posterior > 0.5).tolist() == [0, 1]
    assert np.flatnonzero(np.array(POSTERIORS[0]) > 0.5).tolist() == [0, 2]


@settings(max_examples=30, deadline=None)
@given(alpha=st.floats(0, 1), k=st.integers(0, 6), seed=st.integers(0, 1000))
def test_identical_neighbours_change_nothing(alpha: float, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = rng.random(9)
    scores = score_reliability(
        scale_expertise(rng.random(7)), scale_similarity(rng.normal(size=(7, 4))), alpha
    )[0]
    chosen = [0, *choose_neighbours(scores, 0, k)]
    np.testing.assert_allclose(average_posteriors([own] * len(chosen), scores[chosen]), own)
    assert len(chosen) == k + 1
    if k == 0:
        assert np.array_equal(average_posteriors([own], [1.0]), own)


def test_alpha_one_ignores_the_target_and_alpha_zero_the_accuracy() -> None:
    rng = np.random.default_rng(0)
    logits, accuracy = rng.normal(size=(6, 4)), rng.random(6)
    by_skill = score_reliability(scale_expertise(accuracy), scale_similarity(logits), alpha=1.0)
    assert (by_skill == by_skill[0]).all()
    one, other = (
        score_reliability(scale_expertise(skill), scale_similarity(logits), 0.0)
        for skill in (accuracy, accuracy[::-1])
    )
    assert np.array_equal(one, other)


def test_logits_and_softmax_are_different_questions() -> None:
    logits = [[2, 0, -1], [4, 2, 1]]
    assert compare_by_cosine(logits)[0, 1] == pytest.approx(0.683130, abs=6e-7)
    np.testing.assert_allclose(softmax(logits)[0], softmax(logits)[1])
    assert compare_by_cosine(softmax(logits))[0, 1] == pytest.approx(1.0)


@pytest.mark.parametrize("eligible", [None, [True, True, False]])
def test_equal_clients_are_half_experts_and_wholly_similar(eligible: list[bool] | None) -> None:
    assert scale_expertise([0.7, 0.7, 0.7], eligible).tolist() == [0.5, 0.5, 0.5]
    scaled = scale_similarity([[1.0, 2.0]] * 3, eligible=eligible)
    expected = np.ones((3, 3)) if eligible is None else np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    assert np.array_equal(scaled, expected)


def test_clients_that_never_took_part_are_out_of_everything() -> None:
    eligible = [True, True, False, True]
    assert scale_expertise([0.2, 0.4, np.nan, 0.3], eligible) == pytest.approx([0, 1, 0.5, 0.5])
    logits = [[1.0, 0.0], [0.0, 1.0], [np.nan, np.nan], [0.8, 0.1]]
    scaled = scale_similarity(logits, eligible=eligible)
    assert scaled[2].tolist() == [0, 0, 1, 0]
    assert scaled[:, 2].tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(
        scaled[np.ix_([0, 1, 3], [0, 1, 3])], scale_similarity([logits[i] for i in (0, 1, 3)])
    )
    assert choose_neighbours([0.1, 0.2, 0.9, 0.3], 0, k=5, eligible=eligible).tolist() == [3, 1]
    assert choose_neighbours([0.1, 0.2, 0.9, 0.3], 2, k=1, eligible=eligible).tolist() == [3]


def test_ties_go_to_the_smallest_id() -> None:
    assert choose_neighbours([0.5, 0.7, 0.5, 0.7, 0.5], target=1, k=3).tolist() == [3, 0, 2]


def test_random_neighbours_are_distinct_uniform_and_never_the_target() -> None:
    rng = np.random.default_rng(0)
    draws = np.array([draw_neighbours(7, 20, 2, rng) for _ in range(6000)])
    assert (draws != 7).all()
    assert (draws[:, 0] != draws[:, 1]).all()
    frequency = np.delete(np.bincount(draws.ravel(), minlength=20) / 6000, 7)
    assert frequency == pytest.approx(np.full(19, 2 / 19), abs=0.02)


@pytest.mark.parametrize(("k", "drawn"), [(0, 0), (2, 2), (9, 2)])
def test_random_neighbours_use_whoever_is_eligible(k: int, drawn: int) -> None:
    found = draw_neighbours(0, 4, k, np.random.default_rng(0), eligible=[True, False, True, True])
    assert len(found) == drawn
    assert set(found.tolist()) <= {2, 3}


def test_models_with_broken_posteriors_are_left_out() -> None:
    broken = [POSTERIORS[0], [np.nan, 0.7, 0.2, 0.3], POSTERIORS[2]]
    np.testing.assert_allclose(
        average_posteriors(broken, [1, 5, 3]), average_posteriors(broken[::2], [1, 3])
    )


@pytest.mark.parametrize(
    ("posteriors", "trust", "message"),
    [
        ([[0.1], [0.2]], [1.0], r"one trust a model.* got \(1,\) and \(2, 1\)"),
        ([[np.nan]], [1.0], "at least one model has finite posteriors"),
    ],
)
def test_ensemble_refuses(posteriors: list[list[float]], trust: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        average_posteriors(posteriors, trust)


def test_refuses_alpha_and_eligibility_of_the_wrong_kind() -> None:
    with pytest.raises(DataError, match=r"alpha lies in \[0, 1\]; got 1.5"):
        score_reliability([0.5], [[1.0]], alpha=1.5)
    with pytest.raises(DataError, match=r"one eligibility flag a client \(5\)"):
        scale_expertise(ACCURACY, [True])
