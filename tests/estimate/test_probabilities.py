"""Softmax, confidence, entropy, and tables with gaps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax as scipy_softmax
from scipy.stats import entropy as scipy_entropy

from rayfl.errors import DataError
from rayfl.estimate import fill_and_scale, measure_confidence, measure_entropy, softmax

LOGITS = np.random.default_rng(0).normal(scale=20, size=(7, 5))


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_softmax_is_scipys(temperature: float) -> None:
    np.testing.assert_allclose(
        softmax(LOGITS, temperature), scipy_softmax(LOGITS / temperature, axis=1), rtol=1e-12
    )


def test_softmax_of_large_logits_stays_finite() -> None:
    assert softmax([[1e4, 0.0, 1e4]]).tolist() == [[0.5, 0.0, 0.5]]


def test_sharpened_maxima_of_uda() -> None:
    weak = [[4.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 5.0, 0.0]]
    plain, sharp = measure_confidence(softmax(weak)), measure_confidence(softmax(weak, 0.4))
    assert plain == pytest.approx([0.964663, 0.506480, 0.986703], abs=1e-6)
    assert sharp == pytest.approx([0.999909, 0.730679, 0.999993], abs=1e-6)


def test_entropy_is_scipys() -> None:
    p = softmax(LOGITS)
    np.testing.assert_allclose(measure_entropy(p), scipy_entropy(p, axis=1), atol=1e-12)


@pytest.mark.parametrize(
    ("counts", "classes", "expected"),
    [
        ((15,), 10, 0.0),
        ((14, 1), 10, 0.106372),
        ((14, 1), 50, 0.062610),
        ((14, 1), 100, 0.053186),
        ((13, 2), 10, 0.170536),
        ((8, 7), 10, 0.300064),
    ],
)
def test_uncertainty_of_selfie(counts: tuple[int, ...], classes: int, expected: float) -> None:
    shares = np.zeros(classes)
    shares[: len(counts)] = np.array(counts) / 15
    assert float(measure_entropy(shares, scaled=True)) == pytest.approx(expected, abs=1e-6)


def test_entropy_of_one_class_is_zero() -> None:
    assert measure_entropy([[1.0]], scaled=True).tolist() == [0.0]
    assert measure_entropy(np.full((1, 4), 0.25), scaled=True).tolist() == pytest.approx([1.0])


# -- tables with gaps ------------------------------------------------------------------------------


def test_the_table_of_fednoro() -> None:
    scaled = fill_and_scale([[1.0, 2.0], [3.0, np.nan], [2.0, 5.0]])
    assert scaled.tolist() == [[0, 0], [1, 0], [0.5, 1]]


def test_columns_of_gaps_are_dropped_and_constant_ones_are_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = fill_and_scale([[np.nan, 4, 1], [np.nan, 4, 3], [np.nan, np.nan, np.nan]])
    assert scaled.tolist() == [[0, 0], [0, 1], [0, 0]]


def test_the_table_is_not_written_to() -> None:
    table = np.array([[1.0, np.nan], [2.0, 3.0]])
    fill_and_scale(table)
    assert np.isnan(table[0, 1])


@pytest.mark.parametrize(
    ("table", "rule"),
    [(np.zeros(2), "rows and columns; got"), (np.full((1, 1), np.inf), "finite or missing")],
)
def test_what_is_no_table_is_refused(table: NDArray[np.float64], rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        fill_and_scale(table)
