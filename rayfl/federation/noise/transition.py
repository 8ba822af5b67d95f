"""Label noise by a full transition matrix T[true, given]."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Floats
from rayfl.federation.decoding import refuse_undecodable, silence_warnings
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.regular_files import read_regular

_MOST_BYTES = 100_000_000
"""A matrix of more than three thousand classes."""
_Rows = tuple[tuple[float, ...], ...]


@component
class Transition:
    """Every sample of class j is given label l with probability `matrix[j][l]`, on its own.

    The matrix is written out, or is the path of a .npy or .csv file. A client's nominal rate is
    what the matrix makes of its own classes."""

    matrix: _Rows | Path

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        matrix = _normalise_rows(_read_matrix(self.matrix), truth.classes)
        given = truth.labels.copy()
        # Class by class, so that no array of samples x classes is needed.
        for c, row in enumerate(matrix):
            members = np.flatnonzero(truth.labels == c)
            given[members] = rng.choice(truth.classes, len(members), p=row)
        return Corruption(given, _expect_rates(matrix, truth))


def _expect_rates(matrix: Floats, truth: Truth) -> Floats:
    """What the matrix makes of each client's own classes, on average."""
    clients = truth.clients
    flip = 1 - matrix.diagonal()
    wrong = np.bincount(truth.owner, flip[truth.labels], minlength=clients)
    held = np.bincount(truth.owner, minlength=clients)
    return wrong / np.maximum(held, 1)


def _read_matrix(matrix: _Rows | Path) -> Floats:
    """The numbers, from wherever they stand."""
    rule = "noise.matrix: rows of equally many numbers, or a .npy or .csv file"
    with refuse_undecodable(rule), silence_warnings():
        found: Any = matrix
        if isinstance(matrix, Path):
            content = io.BytesIO(read_regular(matrix, _MOST_BYTES))
            if matrix.suffix == ".npy":
                found = np.load(content, allow_pickle=False)
            else:
                found = np.loadtxt(content, delimiter=",", ndmin=2)
        return np.asarray(found, np.float64)


def _normalise_rows(matrix: Floats, classes: int) -> Floats:
    """The matrix with rows that sum to exactly 1, or a refusal that names the row."""
    if matrix.shape != (classes, classes):
        rule = f"noise.matrix is {classes} x {classes}, a row a true class"
        raise DataError(broken(rule, matrix.shape))
    # nan compares as false, so it counts as no probability.
    probabilities = (matrix >= 0) & np.isfinite(matrix)
    faulty = np.flatnonzero(~probabilities.all(axis=1))
    if len(faulty):
        row = int(faulty[0])
        found = f"row {row}: {matrix[row].tolist()}"
        raise DataError(broken("noise.matrix holds probabilities", found))
    sums = matrix.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > 1e-6)
    if len(off):
        found = f"{sums[off[0]]:.6g} in row {off[0]}"
        raise DataError(broken("noise.matrix: every row sums to 1", found))
    return np.asarray(matrix / sums[:, None], np.float64)
