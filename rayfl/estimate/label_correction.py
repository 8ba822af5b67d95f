"""Which labels are wrong, by the directions in which the features of classes vary: Procedure 2 of
"FB-NLL: a feature-based approach to tackle noisy labels in personalized federated learning"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Floats, Ints
from rayfl.errors import DataError, broken
from rayfl.estimate.subspace import (
    Criterion,
    Spectra,
    check_features,
    decompose_features,
    similarity_between,
)

OF_CLASSES = Criterion(q=5)
RANKS = (5, 10, 20, 40)
"""What the rank of phase 2 is chosen from."""


def relabel_class(similarities: Floats, tau: float) -> int | None:
    """Phase 1: the only class whose similarity reaches `tau`, or None when none or several do.

    Parameters
    ----------
    similarities
        Of the samples of one label to every class, (classes,).
    tau
        The threshold.

    Examples
    --------
    >>> relabel_class(np.array([0.07, 0.99]), 0.5), relabel_class(np.array([0.6, 0.99]), 0.5)
    (1, None)
    """
    passing = np.flatnonzero(similarities >= tau)
    return int(passing[0]) if len(passing) == 1 else None


def measure_projections(features: ArrayLike, bases: Floats) -> Floats:
    """|| Q_c Q_c^T z ||_2 = || Q_c^T z ||_2 of every sample (n, d) on every class basis (classes,
    d, l): (n, classes).

    >>> measure_projections([[0.6, 0.5, 0.5]], np.eye(3)[:, :, None]).round(6).tolist()
    [[0.6, 0.5, 0.5]]
    """
    samples = np.asarray(features, np.float64)
    coordinates = np.einsum("nd,cdl->ncl", samples, bases)
    return np.asarray(np.linalg.norm(coordinates, axis=2))


def find_nearest_class(features: ArrayLike, bases: Floats) -> Ints:
    """Phase 2: the class on whose subspace each sample's projection is longest; ties go to the
    lowest class.

    Parameters
    ----------
    features
        z of the samples, (n, d).
    bases
        Q of every class, (classes, d, l).

    Examples
    --------
    >>> find_nearest_class([[0.6, 0.5, 0.5]], np.eye(3)[:, :, None]).tolist()
    [0]
    """
    norms = measure_projections(features, bases)
    return np.asarray(norms.argmax(axis=1), dtype=np.int64)


class Correction(NamedTuple):
    """New labels, and for each given label the class that phase 1 moved it to (None: its samples
    went to phase 2)."""

    labels: Ints
    decided: dict[int, int | None]


def correct_labels(
    features: ArrayLike,
    labels: ArrayLike,
    clean: Spectra,
    tau: float,
    criterion: Criterion = OF_CLASSES,
    sample_rank: int = 20,
) -> Correction:
    """Procedure 2 of FB-NLL on one user's data.

    For each label value that the user holds (as it was before any change): if exactly one class is
    similar to those samples, all of them become that class; otherwise each goes to the class on
    whose directions its projection is longest.

    Parameters
    ----------
    features
        The user's samples, (n, d).
    labels
        Their given labels, (n,).
    clean
        A clean spectrum for each of all the classes.
    tau
        The similarity that a class needs in phase 1.
    criterion
        How classes are compared in phase 1.
    sample_rank
        How many directions are projected on in phase 2.

    Examples
    --------
    >>> clean = decompose_features([[[3, 0, 0], [3, 0.3, 0]], [[0, 3, 0], [0, 3, 0.3]]])
    >>> samples = [[0.1, 3, 0], [0, 2.8, 0.2]]
    >>> correct_labels(samples, [0, 0], clean, 0.5, Criterion(q=1)).labels.tolist()
    [1, 1]
    """
    samples = check_features(features, 0)
    given = np.asarray(labels, dtype=np.int64)
    if given.shape != (len(samples),):
        raise DataError(broken(f"one label a sample ({len(samples)})", given.shape))
    # One rank for every class: a larger subspace would win projections by its size.
    bases = clean.vectors[:, :, :sample_rank]
    corrected = given.copy()
    decided: dict[int, int | None] = {}
    # Reading `given`, never `corrected`: else a sample moved once could be moved again.
    for label in np.unique(given).tolist():
        members = given == label
        own = decompose_features([samples[members]])
        moved = relabel_class(similarity_between(own, clean, criterion)[0], tau)
        decided[label] = moved
        corrected[members] = find_nearest_class(samples[members], bases) if moved is None else moved
    return Correction(corrected, decided)


class Calibration(NamedTuple):
    """What the server's clean samples say.

    Attributes
    ----------
    tau
        The threshold of phase 1.
    sample_rank
        The rank of phase 2.
    lowest_within, highest_between
        Similarities of halves of one class, and of different classes.
    accuracy
        What phase 2 reaches at this rank: the share of the clean samples of either half that the
        other half's subspaces put into their own class. Labels that were righter than this before
        a correction sample by sample are likely to be worse after it.
    """

    tau: float
    sample_rank: int
    lowest_within: float
    highest_between: float
    accuracy: float


def calibrate_correction(
    clean: Mapping[int, ArrayLike],
    criterion: Criterion = OF_CLASSES,
    ranks: Sequence[int] = RANKS,
) -> Calibration:
    """Choose `tau` and `sample_rank` from the server's clean samples, each class split into two
    halves.

    `tau` is midway between the lowest similarity within a class and the highest between classes;
    where these overlap, the 99th percentile of the similarities between classes. `sample_rank` is
    the smallest of `ranks` that classifies each half best by the other half's subspaces.

    Parameters
    ----------
    clean
        Features of clean samples by their class.
    criterion
        How classes are compared in phase 1.
    ranks
        What phase 2 may choose from.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scales = {c: 0.1 + 3 * (np.arange(6) // 3 == c) for c in (0, 1)}
    >>> clean = {c: rng.normal(size=(40, 6)) * scale for c, scale in scales.items()}
    >>> found = calibrate_correction(clean, Criterion(q=2), ranks=(1, 3))
    >>> found.highest_between < found.tau < found.lowest_within, found.sample_rank, found.accuracy
    (True, 3, 1.0)
    """
    samples = {c: check_features(clean[c], c) for c in sorted(clean)}
    # Every other sample: files are often sorted, and halves must look alike.
    even = [part[0::2] for part in samples.values()]
    odd = [part[1::2] for part in samples.values()]
    if len(clean) < 2 or any(len(part) == 0 for part in odd):
        sizes = {c: len(np.asarray(part)) for c, part in clean.items()}
        raise DataError(broken("calibration needs two classes with two clean samples each", sizes))
    first = decompose_features(even)
    second = decompose_features(odd)
    within, between = _compare_halves(first, second, criterion)
    separable = within.min() > between.max()
    tau = (within.min() + between.max()) / 2 if separable else np.percentile(between, 99)
    accuracy = [_classify_halves((even, odd), (first, second), rank) for rank in ranks]
    best = int(np.argmax(accuracy))
    return Calibration(
        tau=float(tau),
        sample_rank=ranks[best],
        lowest_within=float(within.min()),
        highest_between=float(between.max()),
        accuracy=accuracy[best],
    )


def _compare_halves(first: Spectra, second: Spectra, criterion: Criterion) -> tuple[Floats, Floats]:
    """Similarities of the two halves of each class, and of halves of different classes."""
    crossed = similarity_between(first, second, criterion)
    different = ~np.eye(len(crossed), dtype=bool)
    same_side = [similarity_between(half, half, criterion)[different] for half in (first, second)]
    return np.diagonal(crossed), np.concatenate([crossed[different], *same_side])


def _classify_halves(
    halves: Sequence[Sequence[Floats]], fitted: tuple[Spectra, Spectra], rank: int
) -> float:
    """Share of samples that the other half's rank-`rank` subspaces put into their own class."""
    right = []
    for half, other in zip(halves, fitted[::-1], strict=True):
        bases = other.vectors[:, :, :rank]
        for position, samples in enumerate(half):
            right.append(find_nearest_class(samples, bases) == position)
    return float(np.concatenate(right).mean())
