"""Numbers out of bounds: the bound, the first of them and its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfl.errors import DataError
from rayfl.federation.bounds import check_bounds, check_whole


@pytest.mark.parametrize("values", [[], [0, 4], np.array([3], np.uint8)])
def test_what_lies_inside_passes(values: Any) -> None:
    check_bounds("labels lie", np.asarray(values, dtype=int), 0, 5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 5, 9], r"^labels lie in \[0, 5\); got 5 at row 1\. Look again$"),
        ([-1], "got -1 at row 0"),
        (np.array([2**63], np.uint64), "got 9223372036854775808 at row 0"),
    ],
)
def test_the_first_outside_is_named(values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_bounds("labels lie", np.asarray(values), 0, 5, "row", "Look again")


@pytest.mark.parametrize("values", [[1, 2], [1.0, 2.0], ["1", "2"], np.array([1, 2], np.int8)])
def test_whole_numbers_of_any_type_pass(values: Any) -> None:
    assert check_whole("column 'a'", values).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 0.5], r"^column 'a' holds whole numbers; got 0\.5 at row 1$"),
        ([0, None], "got nan at row 1"),
        ([[1, 2]], r"got shape \(1, 2\)"),
        (["one"], "could not convert"),
        (np.array([2**64 - 1], np.uint64), "got 18446744073709551615 at row 0"),
        (np.array([-(2**63)]), "got -9223372036854775808 at row 0"),
        ([1e300], r"whole numbers in \[-2\*\*53, 2\*\*53\]; got 1e\+300 at row 0"),
    ],
)
def test_anything_else_is_refused(values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_whole("column 'a'", values)
