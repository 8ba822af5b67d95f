"""A partition that somebody has already made, from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.partition.table import read_columns
from rayfl.federation.views import UNUSED, Assignment, Pool


@component
class ExplicitOwners:
    """`client` of each sample of the pool, in its order; -1 leaves a sample unused.

    The file is Parquet, CSV, JSON or NPY. With a second column `index`, row i speaks of the sample
    `index[i]` and samples that are not named stay unused."""

    file: Path

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        columns = read_columns(self.file, "client")
        client = columns["client"]
        _check_range(self.file, "client", client, UNUSED, pool.clients)
        if "index" in columns:
            index = columns["index"]
            if len(index) != len(client):
                raise DataError(
                    broken(
                        f"{self.file}: as many rows of index as of client",
                        f"{len(index)} and {len(client)}",
                    )
                )
            return Assignment(_place_owners(self.file, index, client, len(pool.labels)))
        if len(client) != len(pool.labels):
            raise DataError(
                broken(
                    f"{self.file}: a row for each of {len(pool.labels)} samples",
                    len(client),
                    "Or add 'index'",
                )
            )
        return Assignment(client)


def _place_owners(file: Path, index: Ints, client: Ints, samples: int) -> Ints:
    """Owners of all samples from those that the file names."""
    _check_range(file, "index", index, 0, samples)
    # the last of two rows would win silently
    named, times = np.unique(index, return_counts=True)
    if (times > 1).any():
        raise DataError(broken(f"{file}: every index occurs once", f"{named[times > 1][0]} again"))
    owner = np.full(samples, UNUSED, np.int64)
    owner[index] = client
    return owner


def _check_range(file: Path, name: str, values: Ints, low: int, high: int) -> None:
    """Refuse values outside [low, high), naming the first."""
    wrong = np.flatnonzero((values < low) | (values >= high))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            broken(f"{file}: '{name}' lies in [{low}, {high})", f"{values[row]} at row {row}")
        )
