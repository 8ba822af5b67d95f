"""How well a method told right labels from wrong ones, and repaired them, against the true labels.

Label precision and recall as in B. Han et al., "Co-teaching", NeurIPS 2018, and FedRN (CIKM 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rayfl.arrays import Bools
from rayfl.errors import DataError, broken

NAN = float("nan")


class SelectionQuality(NamedTuple):
    """How well the samples with right labels were picked out.

    Attributes
    ----------
    precision
        Share of right labels among the kept, |{i in S: given = true}| / |S|; nan if none was kept.
    recall
        Share of the right labels that were kept, |{i in S: given = true}| / |{i: given = true}|;
        nan if none is right.
    """

    precision: float
    recall: float


def measure_selection(kept: ArrayLike, given: ArrayLike, truth: ArrayLike) -> SelectionQuality:
    """How well a method told right labels from wrong ones.

    Parameters
    ----------
    kept
        S as a mask, one flag a sample.
    given
        The labels that the samples had.
    truth
        The labels that they should have.

    Examples
    --------
    >>> measure_selection([True, True, False, False], given=[0, 1, 2, 0], truth=[0, 0, 2, 0])
    SelectionQuality(precision=0.5, recall=0.3333333333333333)
    """
    chosen, labels, true = _check_lengths(kept, given, truth)
    # A list of kept indices would pass silently as a mask of mostly True.
    if chosen.dtype != np.bool_ and chosen.size:
        raise DataError(broken("kept is a boolean mask, one flag a label", chosen.dtype))
    mask = chosen.astype(bool)
    right = np.asarray(labels == true)
    hits = mask & right
    return SelectionQuality(_divide_counts(hits, mask), _divide_counts(hits, right))


class Repair(NamedTuple):
    """What a relabelling did.

    Attributes
    ----------
    corrected
        Share of all labels that changed.
    accuracy
        Share of the changed that became right; nan if none changed.
    right_before, right_after
        Shares of right labels.
    """

    corrected: float
    accuracy: float
    right_before: float
    right_after: float


def measure_repair(before: ArrayLike, after: ArrayLike, truth: ArrayLike) -> Repair:
    """What a relabelling did to the labels.

    Parameters
    ----------
    before
        The labels that were given.
    after
        Those that a method put in their place.
    truth
        The right ones.

    Examples
    --------
    >>> measure_repair(before=[0, 1, 2, 2], after=[0, 0, 1, 2], truth=[0, 0, 0, 2])
    Repair(corrected=0.5, accuracy=0.5, right_before=0.5, right_after=0.75)
    """
    old, new, true = _check_lengths(before, after, truth)
    everything = np.ones(len(true), dtype=bool)
    changed = np.asarray(old != new)
    right = np.asarray(new == true)
    return Repair(
        corrected=_divide_counts(changed, everything),
        accuracy=_divide_counts(changed & right, changed),
        right_before=_divide_counts(old == true, everything),
        right_after=_divide_counts(right, everything),
    )


def measure_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Pearson's correlation over the pairs that are finite; nan for fewer than two of them or
    without spread.

    Parameters
    ----------
    one
        The first values.
    other
        Their partners.

    Examples
    --------
    >>> round(measure_correlation([1, 2, 3], [6, 4, 2]), 6)
    -1.0
    """
    x, y = (values.astype(np.float64) for values in _check_lengths(one, other))
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 2:
        return NAN
    x = x[known] - x[known].mean()
    y = y[known] - y[known].mean()
    scale = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not scale > 0:
        return NAN
    return float(np.clip(x @ y / scale, -1.0, 1.0))


class Average(NamedTuple):
    """A mean over what is known, and how many values were not."""

    mean: float
    skipped: int


def average_known(values: ArrayLike) -> Average:
    """The mean that skips nan, and the number skipped.

    Parameters
    ----------
    values
        Numbers, some of them nan.

    Examples
    --------
    >>> average_known([0.5, float("nan"), 1.0])
    Average(mean=0.75, skipped=1)
    """
    numbers = np.asarray(values, dtype=np.float64).ravel()
    known = numbers[~np.isnan(numbers)]
    mean = float(known.mean()) if known.size else NAN
    return Average(mean, int(numbers.size - known.size))


def _divide_counts(part: Bools, whole: Bools) -> float:
    return float(part.sum() / whole.sum()) if whole.any() else NAN


def _check_lengths(*arrays: ArrayLike) -> tuple[NDArray[np.generic], ...]:
    """The arguments as arrays of one common, one-dimensional shape, or a refusal."""
    values = tuple(np.asarray(array) for array in arrays)
    shapes = [array.shape for array in values]
    if values[0].ndim != 1 or len(set(shapes)) != 1:
        rule = "the arguments have one entry for each of the same samples"
        raise DataError(broken(rule, shapes))
    return values
