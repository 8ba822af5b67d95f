"""What samples are called, and where they come from: file names or ids of rows, and sites.

Names are beside the data and never in a hash: a hash says what a run can depend on, and no run
depends on a name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rayfl.errors import DataError, broken, suggest_nearest
from rayfl.federation.arrays import Ints, Strings
from rayfl.federation.bounds import check_bounds, check_whole
from rayfl.federation.dataset import Dataset
from rayfl.federation.text_columns import list_columns, read_text_columns

ELSEWHERE = -1
"""The row of an image that the training set does not have, because it is a test image."""

_MOST_COMPARED = 10_000


@dataclass(frozen=True, eq=False)
class SampleNames:
    """The names of a training set: entry i is sample i.

    names  file names or ids of rows
    site   the number of its site, where sites are known
    sites  what the sites are called, by number
    """

    names: Strings
    site: Ints | None = None
    sites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.site is None:
            return
        if len(self.site) != len(self.names):
            rule = f"names: one site a sample ({len(self.names)})"
            raise DataError(broken(rule, len(self.site)))
        check_bounds("names: a site lies", self.site, 0, len(self.sites), "sample")

    @cached_property
    def sha256(self) -> str:
        """A hash of the names alone, by which a saved artefact is known to be unchanged."""
        digest = hashlib.sha256("\n".join(self.names.tolist()).encode())
        if self.site is not None:
            called = np.array(self.sites, dtype=np.str_)[self.site]
            digest.update("\n".join(called.tolist()).encode())
        return digest.hexdigest()


def name_dataset(dataset: Dataset) -> SampleNames | None:
    """The names of the training set of a `dataset`; None where it has none."""
    train = dataset.train
    if train.names is None:
        return None
    return SampleNames(train.names, train.groups if dataset.sites else None, dataset.sites)


@dataclass(frozen=True, eq=False)
class SampleRegister:
    """All images that a table may name: by `file`, or by `id`, the row of the training set.

    samples  how many the training set has
    train    their names, where they have any
    test     the names of the test images, which a table may list as well
    """

    samples: int
    train: Strings | None = None
    test: Strings | None = None

    def read_rows(self, path: Path, columns: tuple[str, ...]) -> tuple[Ints, dict[str, Strings]]:
        """The training rows that a table speaks of (`ELSEWHERE` for test images), and what it
        says of them.

        Parameters
        ----------
        path
            The table. Who is not known here, or is named twice, is refused.
        columns
            What is wanted of it beside the names.
        """
        there = list_columns(path)
        by = next((key for key in ("file", "id") if key in there), None)
        if by is None:
            rule = f"{path}: a column 'file' or 'id' says which samples it speaks of"
            raise DataError(broken(rule, f"columns {', '.join(there) or 'none'}"))
        found = read_text_columns(path, (by, *columns))
        keys = found.pop(by)
        _refuse_repeated(f"{path}: every {by} occurs once", keys)
        return self._find_files(path, keys) if by == "file" else self._find_ids(path, keys), found

    def _find_ids(self, path: Path, keys: Strings) -> Ints:
        rows = check_whole(f"{path}: column 'id'", keys)
        check_bounds(f"{path}: 'id' lies", rows, 0, self.samples, "row")
        # 7 and 07 are two texts and one row.
        _refuse_repeated(f"{path}: every id occurs once", rows)
        return rows

    def _find_files(self, path: Path, keys: Strings) -> Ints:
        if self.train is None:
            rule = f"{path}: a column 'file' needs data whose images have names"
            remedy = "Name samples by 'id', the row of the training set"
            raise DataError(broken(rule, "data without any", remedy))
        rows = find_places(self.train, keys)
        if self.test is not None:
            tested = find_places(self.test, keys) >= 0
        else:
            tested = np.zeros(len(keys), dtype=np.bool_)
        strangers = np.flatnonzero((rows < 0) & ~tested)
        if len(strangers):
            first = str(keys[strangers[0]])
            rule = f"{path}: every file is an image of the dataset"
            found = f"{len(strangers)} that are not, first '{first}'"
            nearest = suggest_nearest(first, self.train[:_MOST_COMPARED].tolist())
            remedy = f"{nearest} Names are paths below the dataset's folder".strip()
            raise DataError(broken(rule, found, remedy))
        return rows


def open_register(dataset: Dataset) -> SampleRegister:
    """The register of a `dataset`."""
    return SampleRegister(len(dataset.train), dataset.train.names, dataset.test.names)


def find_places(known: Strings, wanted: Strings) -> Ints:
    """The place of each wanted name among the known ones, -1 where it is not there.

    Parameters
    ----------
    known
        Names, each once.
    wanted
        Names in any order.
    """
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known, wanted, sorter=order)
    place = order[np.minimum(at, len(known) - 1)]
    return np.where(known[place] == wanted, place, -1).astype(np.int64)


def _refuse_repeated(rule: str, keys: Strings | Ints) -> None:
    # The last of two rows would win silently.
    named, times = np.unique(keys, return_counts=True)
    again = named[times > 1]
    if len(again):
        raise DataError(broken(rule, f"'{again[0]}' more than once"))
