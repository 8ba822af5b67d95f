"""How well a method told right labels from wrong ones, and repaired them, against the true labels.

Label precision and recall as in B. Han et al., "Co-teaching", NeurIPS 2018, and FedRN (CIKM 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rayfl.errors import DataError, broken

NAN = float("nan")


def label_precision(
    kept: ArrayLike, given: ArrayLike, truth: ArrayLike, empty: float = NAN
) -> float:
    """Share of right labels among the kept: |{i in S: given = true}| / |S|; `empty` if nothing was
    kept.

    >>> label_precision([True, True, False], [0, 1, 2], [0, 0, 2])
    0.5
    """
    chosen, right = mask_and_right(kept, given, truth)
    return ratio(chosen & right, chosen, empty)


def label_recall(kept: ArrayLike, given: ArrayLike, truth: ArrayLike, empty: float = NAN) -> float:
    """Share of the right labels that were kept: |{i in S: given = true}| / |{i: given = true}|;
    `empty` if none is.

    >>> label_recall([True, True, False], [0, 1, 2], [0, 0, 2])
    0.5
    """
    chosen, right = mask_and_right(kept, given, truth)
    return ratio(chosen & right, right, empty)


class Repair(NamedTuple):
    """`corrected`: share of all labels that changed; `accuracy`: share of the changed that became
    right (nan if none changed); `right_before` and `right_after`: shares of right labels."""

    corrected: float
    accuracy: float
    right_before: float
    right_after: float


def repair_quality(before: ArrayLike, after: ArrayLike, truth: ArrayLike) -> Repair:
    """What a relabelling did to the labels.

    >>> repair_quality(before=[0, 1, 2, 2], after=[0, 0, 1, 2], truth=[0, 0, 0, 2])
    Repair(corrected=0.5, accuracy=0.5, right_before=0.5, right_after=0.75)
    """
    old, new, true = same_length(before, after, truth)
    everything, changed = np.ones(len(true), dtype=bool), old != new
    return Repair(
        corrected=ratio(changed, everything),
        accuracy=ratio(changed & (new == true), changed),
        right_before=ratio(old == true, everything),
        right_after=ratio(new == true, everything),
    )


def pearson(one: ArrayLike, other: ArrayLike) -> float:
    """Pearson's correlation over the pairs that are finite; nan for fewer than two of them or
    without spread.

    >>> round(pearson([1, 2, 3], [6, 4, 2]), 6)
    -1.0
    """
    x, y = (values.astype(np.float64) for values in same_length(one, other))
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 2:
        return NAN
    x, y = x[known] - x[known].mean(), y[known] - y[known].mean()
    scale = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(np.clip(x @ y / scale, -1.0, 1.0)) if scale > 0 else NAN


class Averaged(NamedTuple):
    """A mean over what is known, and how many values were not."""

    mean: float
    skipped: int


def mean_of_known(values: ArrayLike) -> Averaged:
    """The mean that skips nan, and the number skipped.

    >>> mean_of_known([0.5, float("nan"), 1.0])
    Averaged(mean=0.75, skipped=1)
    """
    numbers = np.asarray(values, dtype=np.float64).ravel()
    known = numbers[~np.isnan(numbers)]
    return Averaged(float(known.mean()) if known.size else NAN, int(numbers.size - known.size))


def mask_and_right(
    kept: ArrayLike, given: ArrayLike, truth: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    chosen, labels, true = same_length(kept, given, truth)
    # A list of kept indices would pass silently as a mask of mostly True.
    if chosen.dtype != np.bool_ and chosen.size:
        raise DataError(broken("kept is a boolean mask, one flag a label", chosen.dtype))
    return chosen.astype(bool), labels == true


def ratio(part: NDArray[np.bool_], whole: NDArray[np.bool_], empty: float = NAN) -> float:
    return float(part.sum() / whole.sum()) if whole.any() else empty


def same_length(*arrays: ArrayLike) -> tuple[NDArray[np.generic], ...]:
    """The arguments as arrays of one common, one-dimensional shape, or a refusal."""
    values = tuple(np.asarray(array) for array in arrays)
    if values[0].ndim != 1 or len({array.shape for array in values}) != 1:
        raise DataError(
            broken(
                "the arguments have one entry for each of the same samples",
                [a.shape for a in values],
            )
        )
    return values
