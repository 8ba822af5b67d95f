"""Label noise by a full transition matrix T[true, given]."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Floats
from rayfl.federation.views import Corruption, Truth


@component
class Transition:
    """Every sample of class j is given label l with probability `matrix[j][l]`, on its own.

    The matrix is written out, or is the path of a .npy or .csv file. A client's nominal rate is
    what the matrix makes of its own classes."""

    matrix: tuple[tuple[float, ...], ...] | Path

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        matrix = _normalise_rows(_read_matrix(self.matrix), truth.classes)
        given = truth.labels.copy()
        order = np.argsort(truth.labels, kind="stable")
        sizes = np.bincount(truth.labels, minlength=truth.classes)
        # class by class, so that no array of samples x classes is needed
        for row, members in zip(matrix, np.split(order, np.cumsum(sizes)[:-1]), strict=True):
            given[members] = rng.choice(truth.classes, len(members), p=row)
        held = np.bincount(truth.owner, minlength=truth.clients)
        wrong = np.bincount(
            truth.owner, 1 - matrix.diagonal()[truth.labels], minlength=truth.clients
        )
        return Corruption(given, wrong / np.maximum(held, 1))


def _read_matrix(matrix: tuple[tuple[float, ...], ...] | Path) -> Floats:
    """The numbers, from wherever they stand."""
    try:
        if not isinstance(matrix, Path):
            return np.array(matrix, np.float64)
        if matrix.suffix == ".npy":
            return np.asarray(np.load(matrix, allow_pickle=False), np.float64)
        return np.asarray(np.loadtxt(matrix, delimiter=",", ndmin=2), np.float64)
    except (ValueError, OSError) as error:
        raise DataError(
            broken("noise.matrix: rows of equally many numbers, or a .npy or .csv file", error)
        ) from error


def _normalise_rows(matrix: Floats, classes: int) -> Floats:
    """The matrix with rows that sum to exactly 1, or a refusal that names the row."""
    if matrix.shape != (classes, classes):
        raise DataError(
            broken(f"noise.matrix is {classes} x {classes}, a row a true class", matrix.shape)
        )
    if not np.isfinite(matrix).all() or matrix.min() < 0:
        row = int(np.flatnonzero(~(matrix >= 0).all(axis=1) | ~np.isfinite(matrix).all(axis=1))[0])
        raise DataError(
            broken("noise.matrix holds probabilities", f"row {row}: {matrix[row].tolist()}")
        )
    sums = matrix.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > 1e-6)
    if len(off):
        raise DataError(
            broken("noise.matrix: every row sums to 1", f"{sums[off[0]]:.6g} in row {off[0]}")
        )
    return np.asarray(matrix / sums[:, None], np.float64)
