"""The share of wrong labels of a client, with an interval, from what unseen heads say of it.

A label is right with chance (1 - r), and otherwise written as the pattern B of wrong labels has it:

    L(r) = prod_i [ (1 - r) p_i(g_i) + r sum_{c != g_i} p_i(c) B[c, g_i] ]

L on a grid is the posterior of the rate r under an even prior. The share that is asked for is the
one of these very samples, not the rate behind them: at a rate r it is a sum of coins with
chances m_i(r), near enough to normal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rayfl.arrays import Floats, Ints

GRID = np.linspace(0.0, 1.0, 401)
CUTS = np.linspace(-0.1, 1.1, 1201)
TINY = 1e-12


class Share(NamedTuple):
    """An estimate with the interval that holds the truth in nine of ten cases."""

    value: float
    low: float
    high: float


def estimate_share(
    answers: Floats,
    pattern: Floats,
    given: Ints,
    spread: float,
    coverage: float = 0.9,
) -> Share:
    """The share of wrong labels among these samples.

    Parameters
    ----------
    answers
        What heads that never saw the samples say, (samples, classes).
    pattern
        B, (classes, classes), zeros on the diagonal.
    given
        The labels.
    spread
        Standard deviation of what heads get wrong of all samples alike.
    coverage
        Of the interval.
    """
    from scipy.special import ndtr

    samples = len(given)
    right, wrong = compare_written(answers, pattern, given)
    both = GRID[:, None] * wrong + (1 - GRID[:, None]) * right
    log_likelihood = np.log(np.maximum(both, TINY)).sum(axis=1)
    weights = np.exp(log_likelihood - log_likelihood.max())
    weights /= weights.sum()
    chances = GRID[:, None] * wrong / np.maximum(both, TINY)
    means = chances.mean(axis=1)
    coins = (chances * (1 - chances)).sum(axis=1) / samples**2
    deviations = np.sqrt(coins + spread**2)
    below = weights @ ndtr((CUTS - means[:, None]) / np.maximum(deviations[:, None], TINY))
    value = float(weights @ means)
    low, high = np.interp([(1 - coverage) / 2, (1 + coverage) / 2], below, CUTS)
    return Share(value, *(float(np.clip(edge, 0.0, 1.0)) for edge in (low, high)))


def compare_written(answers: Floats, pattern: Floats, given: Ints) -> tuple[Floats, Floats]:
    """How likely each label is if it is right, and if it is wrong."""
    return answers[np.arange(len(given)), given], (answers * pattern[:, given].T).sum(axis=1)


def weigh_rates(answers: Floats, pattern: Floats, given: Ints, most: float = 1.0) -> Floats:
    """log L of the rates of the grid up to some rate.

    Parameters
    ----------
    answers, pattern, given
        As for `estimate_share`.
    most
        The largest rate."""
    right, wrong = compare_written(answers, pattern, given)
    rates = GRID[most + TINY >= GRID][:, None]
    return np.asarray(np.log(np.maximum(rates * wrong + (1 - rates) * right, TINY)).sum(axis=1))
