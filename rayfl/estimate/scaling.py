"""Tables of statistics with gaps, made ready to be compared row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rayfl.errors import DataError, broken
from rayfl.estimate.arrays import Floats


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
