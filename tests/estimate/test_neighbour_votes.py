"""Labels by nearest neighbours, against scikit-learn and printed digits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.errors import DataError
from rayfl.estimate import measure_disagreement, neighbour_votes as module, vote_labels

LINE = np.array([0.0, 1, 2, 10, 11, 12])[:, None]
GIVEN = np.array([0, 0, 1, 1, 1, 0])


def blobs(n: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return rng.normal(size=(n, 5)) + 1.5 * y[:, None], y


def test_votes_in_print() -> None:
    assert vote_labels(LINE, GIVEN, k=3).tolist() == [0, 0, 0, 1, 1, 1]
    assert measure_disagreement(LINE, GIVEN, k=3) == pytest.approx(0.333333, abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_votes_are_scikit_learns(k: int) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    features, labels = blobs(150)
    theirs = KNeighborsClassifier(k, algorithm="brute").fit(features, labels).predict(features)
    assert vote_labels(features, labels, k).tolist() == theirs.tolist()


def test_votes_of_the_others_against_a_loop() -> None:
    features, labels = blobs(60, seed=1)
    expected = []
    for i in range(60):
        gaps = np.linalg.norm(features - features[i], axis=1)
        others = [j for j in np.argsort(gaps, kind="stable") if j != i][:7]
        expected.append(np.bincount(labels[others]).argmax())
    assert vote_labels(features, labels, 7, itself=False).tolist() == expected


def test_one_neighbour_is_the_point_itself() -> None:
    features, labels = blobs(40)
    assert np.array_equal(vote_labels(features, labels, 1), labels)
    assert measure_disagreement(features, labels, 1) == 0


def test_a_point_is_its_own_nearest_among_equal_points() -> None:
    features = np.zeros((4, 2))
    assert vote_labels(features, [3, 1, 2, 0], 1).tolist() == [3, 1, 2, 0]
    assert vote_labels(features, [3, 1, 2, 0], 1, itself=False).tolist() == [1, 3, 3, 3]


def test_ties_go_to_the_smaller_label() -> None:
    assert vote_labels([[0.0], [1.0]], [5, 2], k=2).tolist() == [2, 2]


def test_few_points_vote_with_all_that_there_are() -> None:
    assert vote_labels(LINE[:3], GIVEN[:3], k=10).tolist() == [0, 0, 0]
    assert vote_labels([[1.0, 2.0]], [4], k=10).tolist() == [4]
    assert vote_labels([[1.0, 2.0]], [4], k=10, itself=False).tolist() == [4]
    assert measure_disagreement(np.zeros((0, 3)), []) == 0


def test_blocks_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = blobs(50)
    whole = vote_labels(features, labels, 5)
    monkeypatch.setattr(module, "BLOCK", 7)
    assert np.array_equal(vote_labels(features, labels, 5), whole)


@pytest.mark.parametrize(
    ("features", "labels", "k", "rule"),
    [
        (np.zeros(3), [0, 0, 0], 1, r"features are \(n, d\), with one label"),
        (np.zeros((3, 1)), [0, 0], 1, r"features are \(n, d\), with one label"),
        (LINE, GIVEN, 0, "at least one neighbour votes; got k=0"),
        (LINE, GIVEN - 1, 3, "labels are not negative; got -1"),
        (np.full((2, 1), np.nan), [0, 1], 1, "features are finite; got nan"),
    ],
)
def test_what_cannot_vote_is_refused(
    features: NDArray[np.float64], labels: list[int], k: int, rule: str
) -> None:
    with pytest.raises(DataError, match=rule):
        vote_labels(features, labels, k)
