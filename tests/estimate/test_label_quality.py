from __future__ import annotations

import numpy as np
import pytest

from rayfl.errors import DataError
from rayfl.estimate import (
    average_known,
    measure_correlation,
    measure_repair,
    measure_selection,
)

TRUTH = [0, 0, 1, 1, 2, 2]
GIVEN = [0, 1, 1, 1, 2, 0]


@pytest.mark.parametrize(
    ("kept", "precision", "recall"),
    [
        ([True] * 6, 4 / 6, 1.0),
        ([True, False, True, True, True, False], 1.0, 1.0),
        ([True, True, False, False, False, False], 0.5, 0.25),
        ([False, True, False, False, False, True], 0.0, 0.0),
    ],
    ids=["everything", "the right ones", "two", "the wrong ones"],
)
def test_label_precision_and_recall(kept: list[bool], precision: float, recall: float) -> None:
    assert measure_selection(kept, GIVEN, TRUTH) == pytest.approx((precision, recall))


def test_keeping_everything_has_precision_one_minus_the_rate() -> None:
    truth = np.zeros(100, dtype=np.int64)
    given = np.where(np.arange(100) < 37, 1, 0)
    assert measure_selection(np.ones(100, dtype=bool), given, truth).precision == 0.63


@pytest.mark.parametrize(
    ("kept", "given", "expected"),
    [
        ([False] * 2, [0, 1], (float("nan"), 0.0)),
        ([True] * 2, [1, 0], (0.0, float("nan"))),
        ([], [], (float("nan"), float("nan"))),
    ],
    ids=["nothing kept", "nothing right", "nothing"],
)
def test_empty_sets(kept: list[bool], given: list[int], expected: tuple[float, float]) -> None:
    found = measure_selection(kept, given, [0, 1][: len(given)])
    assert found == pytest.approx(expected, nan_ok=True)


def test_repair_quality() -> None:
    repair = measure_repair(before=GIVEN, after=[0, 0, 1, 2, 2, 1], truth=TRUTH)
    assert repair.corrected == 0.5
    assert repair.accuracy == pytest.approx(1 / 3)
    assert (repair.right_before, repair.right_after) == pytest.approx((4 / 6, 4 / 6))


def test_repair_of_nothing() -> None:
    untouched = measure_repair(GIVEN, GIVEN, TRUTH)
    assert untouched.corrected == 0.0
    assert np.isnan(untouched.accuracy)
    assert all(np.isnan(measure_repair([], [], [])))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3], [2, 4, 6], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, -1, -1, 1], 0.0),
        ([1, 2, 3, 9], [2, 4, 6, float("nan")], 1.0),
        ([1, 1, 1], [1, 2, 3], float("nan")),
        ([1], [2], float("nan")),
    ],
)
def test_pearson(one: list[float], other: list[float], expected: float) -> None:
    assert measure_correlation(one, other) == pytest.approx(expected, nan_ok=True)


def test_pearson_equals_numpy() -> None:
    one, other = np.random.default_rng(0).normal(size=(2, 50))
    assert measure_correlation(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1])


@pytest.mark.parametrize(
    ("values", "mean", "skipped"),
    [
        ([0.5, float("nan"), 1.0], 0.75, 1),
        ([0.25], 0.25, 0),
        ([float("nan")], float("nan"), 1),
        ([], float("nan"), 0),
    ],
)
def test_mean_of_known(values: list[float], mean: float, skipped: int) -> None:
    found = average_known(values)
    assert found.mean == pytest.approx(mean, nan_ok=True)
    assert found.skipped == skipped


def test_refuses_masks_and_lengths_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="kept is a boolean mask"):
        measure_selection([0, 1, 2], [0, 1, 2], [0, 1, 2])
    with pytest.raises(DataError, match="one entry for each of the same samples"):
        measure_selection([True], [0, 1], [0, 1])
    with pytest.raises(DataError, match="same samples"):
        measure_correlation([1, 2], [1, 2, 3])
