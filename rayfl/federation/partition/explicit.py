"""A partition that somebody has already made, from a file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.random import Generator

from rayfl.component import component
from rayfl.errors import ConfigError, DataError, broken
from rayfl.federation.arrays import Ints, Strings
from rayfl.federation.bounds import check_bounds, check_whole
from rayfl.federation.interfaces import UNUSED, Assignment, Pool
from rayfl.federation.number_columns import read_columns
from rayfl.federation.text_columns import list_columns

_NUMBER = re.compile(r"-?\d+")
_NOBODY = str(UNUSED)


@component
class ExplicitOwners:
    """`client` of each sample, by number or by name; -1 leaves a sample unused.

    A table (Parquet or CSV) with a column `file` or `id` speaks of the samples with these names, or
    in these rows of the training set; of those that a split gives to the server, and of test
    images, it may speak as well. Otherwise the file (Parquet, CSV, JSON or NPY) counts the pool,
    which is what splits leave: a row for each of its samples, in their order, or with a column
    `index`, row i for the sample `index[i]`. Samples that are not named stay unused."""

    file: Path

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        tabular = self.file.suffix in (".csv", ".parquet")
        if tabular and {"file", "id"} & set(list_columns(self.file)):
            return self._assign_named(pool)
        columns = read_columns(self.file, "client")
        client = columns["client"]
        check_bounds(f"{self.file}: 'client' lies", client, UNUSED, pool.clients, "row")
        samples = len(pool.labels)
        if "index" in columns:
            owner = _place_owners(self.file, columns["index"], client, samples)
            return Assignment(owner)
        if len(client) != samples:
            rule = f"{self.file}: a row for each of {samples} samples"
            raise DataError(broken(rule, len(client), "Or add 'index'"))
        return Assignment(client)

    def _assign_named(self, pool: Pool) -> Assignment:
        """Owners of the samples that a table names."""
        assert pool.register is not None, "whoever makes a pool knows its samples"
        assert pool.rows is not None, "whoever makes a pool knows its samples"
        rows, columns = pool.register.read_rows(self.file, ("client",))
        client, names = _number_clients(self.file, columns["client"], pool.clients)
        everybody = np.full(pool.register.samples, UNUSED, np.int64)
        trained = rows >= 0
        everybody[rows[trained]] = client[trained]
        return Assignment(everybody[pool.rows], names=names)


def _number_clients(
    file: Path,
    told: Strings,
    clients: int,
) -> tuple[Ints, tuple[str, ...] | None]:
    """The number of each client, and their names where they are told by name."""
    if all(map(_NUMBER.fullmatch, told.tolist())):
        numbers = check_whole(f"{file}: column 'client'", told)
        check_bounds(f"{file}: 'client' lies", numbers, UNUSED, clients, "row")
        return numbers, None
    names = np.unique(told[told != _NOBODY])
    if len(names) != clients:
        rule = f"{file}: {len(names)} clients have names"
        raise ConfigError(broken(rule, f"clients: {clients}", f"Write clients: {len(names)}"))
    numbers = np.searchsorted(names, told).astype(np.int64)
    return np.where(told == _NOBODY, UNUSED, numbers), tuple(names.tolist())


def _place_owners(
    file: Path,
    index: Ints,
    client: Ints,
    samples: int,
) -> Ints:
    """Owners of all samples from those that the file names."""
    if len(index) != len(client):
        rule = f"{file}: as many rows of index as of client"
        raise DataError(broken(rule, f"{len(index)} and {len(client)}"))
    check_bounds(f"{file}: 'index' lies", index, 0, samples, "row")
    # The last of two rows would win silently.
    named, times = np.unique(index, return_counts=True)
    again = named[times > 1]
    if len(again):
        raise DataError(broken(f"{file}: every index occurs once", f"{again[0]} again"))
    owner = np.full(samples, UNUSED, np.int64)
    owner[index] = client
    return owner
