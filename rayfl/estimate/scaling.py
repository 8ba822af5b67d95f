"""Tables of statistics with gaps, made ready to be compared row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Floats
from rayfl.errors import DataError, broken


def average_by_class(values: ArrayLike, labels: ArrayLike, classes: int) -> Floats:
    """The mean of the values of each class, (classes,); nan for a class without any.

    Parameters
    ----------
    values
        One a sample, (n,): losses, say.
    labels
        Labels in 0..classes-1, (n,).
    classes
        How many there are.

    Examples
    --------
    >>> average_by_class([1.0, 2.0, 4.0], [0, 2, 0], 3).tolist()
    [2.5, nan, 2.0]
    """
    numbers = np.asarray(values, dtype=np.float64)
    given = np.asarray(labels, dtype=np.int64)
    if numbers.ndim != 1 or numbers.shape != given.shape:
        rule = "each value has one label"
        raise DataError(broken(rule, f"{numbers.shape} and {given.shape}"))
    if given.min(initial=0) < 0 or given.max(initial=0) >= classes:
        rule = f"labels lie in [0, {classes})"
        raise DataError(broken(rule, int(given[(given < 0) | (given >= classes)][0])))
    sums = np.bincount(given, numbers, classes)
    counts = np.bincount(given, minlength=classes)
    means = np.full(classes, np.nan)
    return np.asarray(
        np.divide(
            sums,
            counts,
            out=means,
            where=counts > 0,
        )
    )


def fill_and_scale(matrix: ArrayLike) -> Floats:
    """Gaps (nan) filled by the smallest value of their column, then every column scaled to [0, 1].

    FedNoRo's table of mean losses a client (rows) and class (columns): a client without a class is
    taken to be as good at it as the best one. A column of gaps alone is dropped, a column without
    spread becomes 0.

    Parameters
    ----------
    matrix
        (rows, columns), finite or nan.

    Examples
    --------
    >>> fill_and_scale([[1, 2], [3, np.nan], [2, 5]]).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]]
    """
    table = np.array(matrix, dtype=np.float64)
    if table.ndim != 2:
        raise DataError(broken("a table has rows and columns", f"shape {table.shape}"))
    if np.isinf(table).any():
        raise DataError(broken("the entries of a table are finite or missing (nan)", "infinity"))
    missing = np.isnan(table)
    known = ~missing.all(axis=0)
    table, missing = table[:, known], missing[:, known]
    low = np.where(missing, np.inf, table).min(axis=0, initial=np.inf)
    high = np.where(missing, -np.inf, table).max(axis=0, initial=-np.inf)
    filled = np.where(missing, low, table)
    spread = high - low
    return np.asarray((filled - low) / np.where(spread > 0, spread, 1.0))
