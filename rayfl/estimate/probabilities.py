"""Class probabilities, and how sure they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Floats


def softmax(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """exp(z_c / T) / sum_k exp(z_k / T) along the last axis, in float64.

    Parameters
    ----------
    logits
        z, (..., C).
    temperature
        T: above 1 rows become flatter, below 1 sharper.

    Examples
    --------
    >>> softmax([[0.0, 0.0]]).tolist()
    [[0.5, 0.5]]
    """
    rows = np.asarray(logits, dtype=np.float64)
    if temperature != 1:
        rows = rows / temperature
    # Less the largest, no power overflows.
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def measure_confidence(p: ArrayLike) -> Floats:
    """max_c p_c, the probability of the likeliest class.

    Parameters
    ----------
    p
        Rows of probabilities, (..., C).

    Examples
    --------
    >>> measure_confidence([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]).tolist()
    [0.7, 0.4]
    """
    return np.asarray(np.asarray(p, dtype=np.float64).max(axis=-1))


def measure_entropy(p: ArrayLike, scaled: bool = False) -> Floats:
    """H = -sum_c p_c log p_c; a class of probability 0 adds nothing.

    SELFIE's uncertainty is the scaled entropy of the labels that a sample was given over time.

    Parameters
    ----------
    p
        Rows of probabilities, (..., C).
    scaled
        Divide by log C, so that the value lies in [0, 1].

    Examples
    --------
    >>> measure_entropy([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]]).round(6).tolist()
    [0.801819, 0.0]
    >>> float(measure_entropy([14 / 15, 1 / 15, 0, 0, 0, 0, 0, 0, 0, 0], scaled=True).round(6))
    0.106372
    """
    rows = np.asarray(p, dtype=np.float64)
    logs = np.log(rows, out=np.zeros_like(rows), where=rows > 0)
    # 0.0 - x: minus a sum of zeros would be a negative zero.
    entropy = 0.0 - (rows * logs).sum(axis=-1)
    classes = rows.shape[-1]
    if scaled and classes > 1:
        entropy = entropy / np.log(classes)
    return np.asarray(entropy)
