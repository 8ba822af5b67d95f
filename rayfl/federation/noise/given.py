"""Given labels that are not drawn: the true ones, people's, or those of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.random import Generator

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.federation.number_columns import read_columns


@component
class Clean:
    """Every label is the true one."""

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        return Corruption(truth.labels.copy(), np.zeros(truth.clients))


@component
class Human:
    """People's labels of CIFAR-10 or CIFAR-100 (Wei et al. 2022, CIFAR-N): `key` of `file`, such as
    `worse`.

    The file's clean labels must be those of the dataset: labels in another order would be noise of
    another kind."""

    file: Path
    key: str

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        from rayfl.federation.datasets.cifar_n import read_human_labels

        clean, noisy = read_human_labels(self.file, self.key)
        other = _take_positions(self.file, clean, truth) != truth.labels
        if other.any():
            first = truth.position[np.flatnonzero(other)[0]]
            rule = f"{self.file}: its clean labels are those of the dataset"
            found = f"{other.sum()} of {len(other)} differ, first at position {first}"
            remedy = "Use the dataset in its published order, and the file that belongs to it"
            raise DataError(broken(rule, found, remedy))
        given = _take_positions(self.file, noisy, truth)
        return _make_corruption(self.file, given, truth)


@component
class ExplicitLabels:
    """Labels from a file (Parquet, CSV, JSON or NPY): row i of `column` is the label of training
    sample i."""

    file: Path
    column: str = "label"

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        labels = read_columns(self.file, self.column)[self.column]
        given = _take_positions(self.file, labels, truth)
        return _make_corruption(self.file, given, truth)


def _take_positions(
    file: Path,
    labels: Ints,
    truth: Truth,
) -> Ints:
    """The entries of the samples at hand."""
    needed = int(truth.position.max(initial=-1)) + 1
    if len(labels) < needed:
        rule = f"{file}: a label for every training sample, {needed} at least"
        raise DataError(broken(rule, len(labels)))
    return labels[truth.position]


def _make_corruption(
    file: Path,
    given: Ints,
    truth: Truth,
) -> Corruption:
    """The labels as a corruption without a nominal rate."""
    wrong = np.flatnonzero((given < 0) | (given >= truth.classes))
    if len(wrong):
        # The row of the file, which is not the place among the samples at hand.
        first = wrong[0]
        got = f"{given[first]} at position {truth.position[first]}"
        raise DataError(broken(f"{file}: labels lie in [0, {truth.classes})", got))
    unknown = np.full(truth.clients, np.nan)
    return Corruption(given.astype(np.int64), unknown)
