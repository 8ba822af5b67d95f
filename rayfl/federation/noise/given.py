"""Given labels that are not drawn: the true ones, people's, or those of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.partition.table import read_columns
from rayfl.federation.views import Corruption, Truth


@component
class Clean:
    """Every label is the true one."""

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        return Corruption(truth.labels.copy(), np.zeros(truth.clients))


@component
class Human:
    """People's labels of CIFAR-10 or CIFAR-100 (Wei et al. 2022, CIFAR-N): `key` of `file`, such as
    `worse`.

    The file's clean labels must be those of the dataset: labels in another order would be noise of
    another kind."""

    file: Path
    key: str

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        from rayfl.federation.datasets.cifar_n import read_human_labels

        clean, noisy = read_human_labels(self.file, self.key)
        same = _take_positions(self.file, clean, truth) == truth.labels
        if not same.all():
            first = int(np.flatnonzero(~same)[0])
            raise DataError(
                broken(
                    f"{self.file}: its clean labels are those of the dataset",
                    f"{(~same).sum()} of {len(same)} differ, first at position {truth.position[first]}",
                    "Use the dataset in its published order, and the file that belongs to it",
                )
            )
        return _make_corruption(self.file, _take_positions(self.file, noisy, truth), truth)


@component
class ExplicitLabels:
    """Labels from a file (Parquet, CSV, JSON or NPY): row i of `column` is the label of training
    sample i."""

    file: Path
    column: str = "label"

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        labels = read_columns(self.file, self.column)[self.column]
        return _make_corruption(self.file, _take_positions(self.file, labels, truth), truth)


def _take_positions(file: Path, labels: Ints, truth: Truth) -> Ints:
    """The entries of the samples at hand."""
    needed = int(truth.position.max(initial=-1)) + 1
    if len(labels) < needed:
        raise DataError(
            broken(f"{file}: a label for every training sample, {needed} at least", len(labels))
        )
    return labels[truth.position]


def _make_corruption(file: Path, given: Ints, truth: Truth) -> Corruption:
    """The labels as a corruption without a nominal rate."""
    wrong = np.flatnonzero((given < 0) | (given >= truth.classes))
    if len(wrong):
        got = f"{given[wrong[0]]} at position {truth.position[wrong[0]]}"
        raise DataError(broken(f"{file}: labels lie in [0, {truth.classes})", got))
    return Corruption(given.astype(np.int64), np.full(truth.clients, np.nan))
