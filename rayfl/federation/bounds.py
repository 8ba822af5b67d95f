"""The refusal of numbers that are out of bounds: one sentence with the bound, the number and its
place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints

# What a float can tell apart from its neighbours, and a whole number that nobody needs.
_LARGEST = 2**53


def check_bounds(
    what: str,
    values: NDArray[np.integer[Any]],
    low: int,
    high: int,
    place: str = "position",
    remedy: str = "",
) -> None:
    """Refuse values outside [low, high), naming the first.

    Parameters
    ----------
    what
        The rule up to its bounds, such as `train.csv: labels lie`.
    values
        The numbers to check, as they were read: in a narrower type, 2**32 would be 0.
    low, high
        The bounds; `high` itself is outside.
    place
        What a number's place in `values` is called.
    remedy
        What the reader can do about it.
    """
    outside = np.flatnonzero((values < low) | (values >= high))
    if len(outside):
        first = int(outside[0])
        rule = f"{what} in [{low}, {high})"
        raise DataError(broken(rule, f"{values[first]} at {place} {first}", remedy))


def check_whole(what: str, values: Any) -> Ints:
    """The values as whole numbers, or a refusal of the first that is none.

    Parameters
    ----------
    what
        The rule up to its end, such as `labels.csv: column 'label'`.
    values
        Anything that numpy makes an array of: a column of floats passes if each is whole.
    """
    rule = f"{what} holds whole numbers"
    numbers: NDArray[Any] = np.asarray(values)
    if not np.issubdtype(numbers.dtype, np.integer):
        try:
            # By way of floats, because a CSV holds text and a column with gaps holds nan.
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(broken(rule, error)) from error
    if numbers.ndim != 1:
        raise DataError(broken(rule, f"shape {numbers.shape}"))
    fractions = np.flatnonzero(numbers != np.rint(numbers))
    if len(fractions):
        row = int(fractions[0])
        raise DataError(broken(rule, f"{numbers[row]} at row {row}"))
    # An unsigned 2**64 - 1 would become the -1 that means nobody.
    huge = np.flatnonzero((numbers < -_LARGEST) | (numbers > _LARGEST))
    if len(huge):
        row = int(huge[0])
        raise DataError(broken(f"{rule} in [-2**53, 2**53]", f"{numbers[row]} at row {row}"))
    return numbers.astype(np.int64)
