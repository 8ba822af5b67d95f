"""Intervals, tests and resampling, against numbers worked out by hand or by scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp, wilcoxon

from rayfl.report.inference import (
    Interval,
    bootstrap_interval,
    correct_by_holm,
    mean_interval,
    measure_kendall,
    measure_stability,
    rank_methods,
    resample_places,
    signed_rank_test,
)


def test_a_mean_of_two_has_a_wide_interval() -> None:
    # t(0.975, 1) = 12.7062; the standard error of (1, 2) is 0.5.
    found = mean_interval([1.0, 2.0])
    assert (found.low, found.high) == pytest.approx((1.5 - 6.3531, 1.5 + 6.3531), abs=1e-4)
    assert not mean_interval([1.0]).is_known
    assert mean_interval([1.0]).format() == "-"


def test_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(1, 2, 7)
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean_interval(list(values))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_an_interval_as_text() -> None:
    assert Interval(-1.0, 2.5).format(1, signed=True) == "-1.0 to +2.5"
    assert Interval(1.0, 2.0).scale(-2).format() == "-4.00 to -2.00"


@pytest.mark.parametrize("seed", range(5))
def test_the_signed_rank_test_is_exact(seed: int) -> None:
    differences = list(np.random.default_rng(seed).normal(0.5, 1, 9))
    expected = wilcoxon(differences, method="exact").pvalue
    assert signed_rank_test(differences) == pytest.approx(expected)


def test_ties_are_counted_by_enumeration() -> None:
    differences = [1.0, 1.0, -1.0, 2.0, 2.0, 3.0]
    ranks = [2.0, 2.0, 2.0, 4.5, 4.5, 6.0]
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=6)
    ]
    above = np.mean([value >= 19.0 for value in sums])
    assert signed_rank_test(differences) == pytest.approx(2 * above)


def test_six_pairs_are_the_fewest_that_can_tell() -> None:
    assert signed_rank_test([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 32)
    assert signed_rank_test([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(2 / 64)
    assert signed_rank_test([0.0, 0.0]) == 1.0


def test_holms_correction_steps_down_and_stays_in_order() -> None:
    assert correct_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_by_holm([0.9, 0.8]) == [1.0, 1.0]
    assert correct_by_holm([]) == []


def test_few_seeds_are_resampled_in_every_way() -> None:
    assert resample_places(2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert len(resample_places(5)) == 3125
    many = resample_places(9)
    assert many.shape == (4000, 9)
    assert (many == resample_places(9)).all()


def test_ranks_and_how_stable_they_are() -> None:
    assert rank_methods(np.array([3.0, 9.0, 3.0])).tolist() == [2.5, 1.0, 2.5]
    assert rank_methods(np.array([3.0, 9.0]), lower_is_better=True).tolist() == [1.0, 2.0]
    # The first is always ahead of the others, which change places where one seed alone is drawn.
    values = np.array([[9.0, 9.0], [5.0, 1.0], [2.0, 3.0]])
    share, best, worst = measure_stability(values).T
    assert share.tolist() == [1.0, 0.75, 0.75]
    assert (best.tolist(), worst.tolist()) == ([1, 2, 2], [1, 3, 3])
    assert np.isnan(measure_stability(values[:, :1])).all()


def test_a_bootstrap_takes_the_same_seeds_of_all_methods() -> None:
    values = np.array([[1.0, 3.0], [0.0, 2.0]])
    found = bootstrap_interval(values, lambda means: float(means[0] - means[1]))
    assert (found.low, found.high) == (1.0, 1.0)
    assert not bootstrap_interval(values[:, :1], lambda means: 0.0).is_known


def test_kendalls_tau_needs_differences() -> None:
    assert measure_kendall([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == pytest.approx(1 / 3)
    assert math.isnan(measure_kendall([1.0, 1.0], [1.0, 2.0]))
