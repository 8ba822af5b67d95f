from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rayfl.errors import DataError

from .truths import confusion, corrupt, server, truth_of

MATRIX = [[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]


@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_the_matrix_is_recovered_within_its_standard_error(seed: int, classes: int) -> None:
    wanted = np.random.default_rng(seed).dirichlet(np.ones(classes), size=classes)
    truth = server(20_000, classes)
    found = (
        confusion(truth, corrupt({"name": "transition", "matrix": wanted.tolist()}, truth, seed))
        / 20_000
    )
    assert np.abs(found - wanted).max() < 6 * np.sqrt(0.25 / 20_000)
    assert (np.abs(found - wanted) <= 6 * np.sqrt(wanted * (1 - wanted) / 20_000) + 1e-3).all()


def test_impossible_transitions_never_happen() -> None:
    truth = server(5000, 3)
    table = confusion(truth, corrupt({"name": "transition", "matrix": MATRIX}, truth))
    assert (table[np.array(MATRIX) == 0] == 0).all()
    assert table[1, 1] == 5000


def test_a_client_is_meant_to_be_as_noisy_as_its_classes_are() -> None:
    truth = truth_of([[10, 0, 0], [0, 10, 0], [10, 0, 10], [0, 0, 0]])
    result = corrupt({"name": "transition", "matrix": MATRIX}, truth)
    assert result.nominal == pytest.approx([0.3, 0.0, 0.4, 0.0])


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_the_matrix_may_come_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    if suffix == ".npy":
        np.save(path, np.array(MATRIX))
    else:
        np.savetxt(path, np.array(MATRIX), delimiter=",")
    truth = server(50, 3)
    inline = corrupt({"name": "transition", "matrix": MATRIX}, truth)
    assert (corrupt({"name": "transition", "matrix": str(path)}, truth).given == inline.given).all()


@pytest.mark.parametrize(
    ("matrix", "rule"),
    [
        ([[0.5, 0.4], [0, 1]], r"every row sums to 1; got 0\.9 in row 0"),
        ([[1, 0], [1.5, -0.5]], r"holds probabilities; got row 1: \[1\.5, -0\.5\]"),
        ([[1, 0], [float("nan"), 1]], r"holds probabilities; got row 1"),
        ([[1]], r"is 2 x 2, a row a true class; got \(1, 1\)"),
        ([[1, 0], [1]], r"rows of equally many numbers"),
        ("nowhere.npy", r"\.npy or \.csv file; got .*nowhere"),
    ],
    ids=str,
)
def test_a_matrix_that_is_none_is_refused(matrix: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        corrupt({"name": "transition", "matrix": matrix}, server(5, 2))
