"""Test metrics from one confusion matrix (rows are the truth)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.int64]


def count_confusions(
    truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int
) -> Confusion:
    """How often each true class was called each class."""
    pairs = truth * classes + predicted
    counts = np.bincount(pairs, minlength=classes * classes)
    return counts.reshape(classes, classes)


def measure_accuracy(confusion: Confusion, classes: Sequence[int] | None = None) -> float:
    """The share of right answers, over the samples of some classes if given; the argmax stays over
    all classes."""
    rows = np.arange(len(confusion)) if classes is None else np.asarray(classes)
    total = confusion[rows].sum()
    right = confusion[rows, rows].sum()
    return float(right / total) if total else float("nan")


def count_among_first(logits: NDArray[np.float32], truth: NDArray[np.int64], few: int) -> int:
    """How many samples have their class among the `few` highest logits; a tie is decided against
    it."""
    own = logits[np.arange(len(truth)), truth]
    places = (logits >= own[:, None]).sum(axis=1)
    # 0 where the class's own logit is not a number
    found = (places > 0) & (places <= few)
    return int(found.sum())


def measure_recalls(confusion: Confusion) -> NDArray[np.float64]:
    """Per class the share of its samples that was found; nan for a class without samples."""
    totals = confusion.sum(axis=1)
    return np.where(totals > 0, np.diag(confusion) / np.maximum(totals, 1), np.nan)


def measure_macro_f1(confusion: Confusion) -> float:
    """The mean over all classes of 2 TP / (2 TP + FP + FN); a class that never occurs counts as
    0."""
    hits = np.diag(confusion)
    either = confusion.sum(axis=0) + confusion.sum(axis=1)
    scores = 2 * hits / np.maximum(either, 1)
    return float(np.mean(np.where(either > 0, scores, 0.0)))


def summarise_confusion(confusion: Confusion, loss: float) -> Mapping[str, float]:
    """What every evaluation reports."""
    return {
        "test/accuracy": measure_accuracy(confusion),
        "test/loss": loss,
        "test/macro_f1": measure_macro_f1(confusion),
    }
