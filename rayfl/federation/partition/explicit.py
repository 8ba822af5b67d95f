"""A partition that somebody has already made, from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.random import Generator

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.bounds import check_bounds
from rayfl.federation.interfaces import UNUSED, Assignment, Pool
from rayfl.federation.number_columns import read_columns


@component
class ExplicitOwners:
    """`client` of each sample of the pool, in its order; -1 leaves a sample unused.

    The file is Parquet, CSV, JSON or NPY. With a second column `index`, row i speaks of the sample
    `index[i]` and samples that are not named stay unused."""

    file: Path

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
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
