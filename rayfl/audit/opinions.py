"""What a client's samples look like to single estimators, each with a chance or share in [0, 1]
that the given label is right. All of this happens where the samples are."""

from __future__ import annotations

import numpy as np

from rayfl.arrays import Floats, Ints
from rayfl.audit.heads import Singles
from rayfl.estimate.dawid_skene import DawidSkene
from rayfl.estimate.label_correction import measure_projections
from rayfl.estimate.mixture import LossMixture

TINY = 1e-12
BLOCK = 1024
"""Samples whose distances to all others are held at a time."""


def take_given(values: Floats, given: Ints) -> Floats:
    """The entry of each row that belongs to the given label."""
    return np.asarray(values[np.arange(len(given)), given])


def split_losses(answers: Floats, given: Ints) -> Floats:
    """Chance of belonging to the smaller of two groups of losses (FedRN, DivideMix, FedCorr)."""
    losses = -np.log(np.maximum(take_given(answers, given), TINY))
    return LossMixture(tol=1e-4).fit(losses).clean


def compare_with_threshold(answers: Floats, given: Ints, thresholds: Floats) -> Floats:
    """Confidence in the given label in units of the class's usual one, at most 1 (confident
    learning: C. Northcutt et al., JAIR 70, 2021)."""
    usual = np.maximum(thresholds[given], TINY)
    return np.minimum(take_given(answers, given) / usual, 1.0)


def find_confident(answers: Floats, thresholds: Floats) -> Ints:
    """The likeliest of the classes that reach their threshold; -1 where none does."""
    reached = np.where(answers >= thresholds, answers, -1.0)
    return np.where(reached.max(axis=1) >= 0, reached.argmax(axis=1), -1)


def ask_neighbours(points: Singles, given: Ints, k: int, classes: int) -> Floats:
    """The labels of the k nearest samples of the same client, as shares: (samples, classes);
    zeros where there are no others."""
    voters = min(k, len(points) - 1)
    shares = np.zeros((len(points), classes))
    if voters < 1:
        return shares
    lengths = (points.astype(np.float64) ** 2).sum(axis=1)
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK].astype(np.float64)
        gaps = lengths[None] - 2.0 * block @ points.T
        rows = np.arange(len(gaps))
        gaps[rows, start + rows] = np.inf
        near = np.argpartition(gaps, voters - 1, axis=1)[:, :voters]
        np.add.at(shares, (start + rows[:, None], given[near]), 1.0 / voters)
    return shares


def measure_fit(points: Singles, folds: Ints, bases: Floats) -> Floats:
    """How far each sample's projection on every class's directions reaches, directions of folds
    other than its own: (samples, classes).

    Parameters
    ----------
    bases
        (folds, classes, width, directions).
    """
    found = np.zeros((len(points), bases.shape[1]))
    for fold, basis in enumerate(bases):
        mine = folds == fold
        found[mine] = measure_projections(points[mine], basis)
    return found


def compare_best(values: Floats, given: Ints) -> Floats:
    """The given class's share of what it and the best other class have; a half where neither has
    anything."""
    own = take_given(values, given)
    others = values.copy()
    others[np.arange(len(given)), given] = 0.0
    both = own + others.max(axis=1)
    halves = np.full(len(given), 0.5)
    return np.asarray(np.divide(own, both, out=halves, where=both > TINY))


def fit_annotators(votes: Ints, classes: int) -> DawidSkene:
    """Dawid and Skene's model of these votes, one column an annotator."""
    return DawidSkene(classes=classes, iterations=60, smooth=0.05).fit(votes)
