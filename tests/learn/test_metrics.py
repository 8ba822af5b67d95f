"""Test metrics against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rayfl.learn.metrics import (
    count_among_first,
    count_confusions,
    measure_accuracy,
    measure_macro_f1,
    measure_recalls,
    summarise_confusion,
)

# Rows are the truth. F1 is 10/13, 4/7 and 1.
CONFUSION = np.array([[5, 1, 0], [2, 2, 0], [0, 0, 4]])


def test_worked_example() -> None:
    assert measure_macro_f1(CONFUSION) == pytest.approx((10 / 13 + 4 / 7 + 1) / 3)
    assert round(measure_macro_f1(CONFUSION), 6) == 0.780220
    assert round(measure_accuracy(CONFUSION), 6) == 0.785714
    assert measure_recalls(CONFUSION).tolist() == [5 / 6, 0.5, 1.0]
    assert summarise_confusion(CONFUSION, 0.25) == {
        "test/accuracy": measure_accuracy(CONFUSION),
        "test/loss": 0.25,
        "test/macro_f1": measure_macro_f1(CONFUSION),
    }


def test_counts_go_to_the_row_of_the_truth() -> None:
    found = count_confusions(np.array([0, 0, 2, 1]), np.array([0, 1, 0, 1]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [(None, 11 / 14), ([0], 5 / 6), ([1, 2], 6 / 8), ([0, 1, 2], 11 / 14), ([], None)],
)
def test_accuracy_over_some_classes(classes: list[int] | None, expected: float | None) -> None:
    found = measure_accuracy(CONFUSION, None if classes is None else np.array(classes, np.int64))  # type: ignore[arg-type]
    assert np.isnan(found) if expected is None else found == pytest.approx(expected)


def test_a_class_that_never_occurs_counts_as_nothing_found() -> None:
    padded = np.pad(CONFUSION, (0, 1))
    assert measure_macro_f1(padded) == pytest.approx(measure_macro_f1(CONFUSION) * 3 / 4)
    assert np.isnan(measure_recalls(padded)[3])
    assert measure_accuracy(padded) == measure_accuracy(CONFUSION)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
@settings(deadline=None)
def test_agrees_with_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn import metrics as reference

    truth, predicted = np.array(pairs).T
    found = count_confusions(truth, predicted, 5)
    assert np.array_equal(found, reference.confusion_matrix(truth, predicted, labels=range(5)))
    expected = reference.f1_score(
        truth, predicted, labels=range(5), average="macro", zero_division=0
    )
    assert measure_macro_f1(found) == pytest.approx(expected)
    assert measure_accuracy(found) == pytest.approx(reference.accuracy_score(truth, predicted))


@pytest.mark.parametrize(("few", "hits"), [(1, 1), (2, 2), (3, 3), (4, 4)])
def test_among_the_first_few(few: int, hits: int) -> None:
    logits = np.array([[4, 3, 2, 1]] * 4, np.float32)
    assert count_among_first(logits, np.arange(4), few) == hits


def test_ties_and_what_is_no_number_are_decided_against_the_right_class() -> None:
    assert count_among_first(np.ones((5, 3), np.float32), np.zeros(5, np.int64), 2) == 0
    assert count_among_first(np.full((2, 3), np.nan, np.float32), np.zeros(2, np.int64), 3) == 0
