"""The stratified split that datasets without a test set get."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rayfl.errors import DataError
from rayfl.federation.dataset import Images
from rayfl.federation.datasets.on_disk import check_class_counts, hold_out, split_off_test


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.data())
def test_holdout_is_exact_disjoint_covering_and_proportional(
    labels: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(labels)))
    y = np.array(labels)
    kept, out = hold_out(y, count, np.random.default_rng(0))
    assert len(out) == count
    assert sorted([*kept, *out]) == list(range(len(y)))
    assert np.all(np.diff(out) > 0)
    due = np.bincount(y) * count / len(y)
    assert np.all(np.abs(np.bincount(y[out], minlength=len(due)) - due) < 1)


def test_holdout_by_hand() -> None:
    # 10, 5 and 5 members, 7 held out: due 3.5, 1.75 and 1.75; the larger remainders win the two
    # that are left.
    y = np.repeat([0, 1, 2], [10, 5, 5])
    _, out = hold_out(y, 7, np.random.default_rng(1))
    assert np.bincount(y[out]).tolist() == [3, 2, 2]


def test_split_follows_its_seed_and_keeps_pairs() -> None:
    y = np.arange(40) % 4
    images = Images(np.repeat(np.arange(40, dtype=np.uint8), 4).reshape(40, 2, 2, 1), y)
    train, test = split_off_test(images, 0.25, 3)
    assert (len(train), len(test)) == (30, 10)
    assert np.array_equal(test.x[:, 0, 0, 0] % 4, test.y)
    assert np.array_equal(test.x, split_off_test(images, 0.25, 3)[1].x)
    assert not np.array_equal(test.x, split_off_test(images, 0.25, 4)[1].x)


@pytest.mark.parametrize(
    ("labels", "expected", "complaint"),
    [
        ([0, 1, 2], 3, r"labels lie in \[0, 2\); got 2 at position 2"),
        ([0, -1], 2, r"got -1 at position 1"),
        ([0, 1], 3, "here has 3 images; got 2. Fetch it"),
        ([0, 0], (1, 1), "here has 1 images of class 0; got 2"),
    ],
)
def test_counts_that_do_not_hold(
    labels: list[int], expected: int | tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        check_class_counts("here", np.array(labels), 2, expected, "Fetch it")
