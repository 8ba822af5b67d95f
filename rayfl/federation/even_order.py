"""An order of each class in which every beginning holds the sites in proportion, so that a set cut
from it breaks none of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.random import Generator

from rayfl.federation.arrays import Ints


def spread_places(
    labels: Ints,
    sites: Ints,
    rng: Generator,
    spared: Literal["first", "last"] = "last",
) -> Ints:
    """The place (0 .. size-1) of each sample among its own class.

    The samples of a site and class are shuffled and laid out evenly between 0 and 1, from a random
    beginning; the order of a class is that of these points. Of a site and class with n samples, the
    first share s of the order therefore holds floor(s n) or ceil(s n), up to one.

    Parameters
    ----------
    labels
        The classes of all samples.
    sites
        Their sites.
    rng
        The only source of randomness.
    spared
        Where one random sample of every site is put, out of its turn: `last`, so that sets cut from
        the front leave each site something, or `first`, so that a front that is kept does.
    """
    shuffled = rng.permutation(len(labels))
    pairs = sites * (labels.max(initial=0) + 1) + labels
    _, cells = np.unique(pairs, return_inverse=True)
    rank = _rank_within(cells, shuffled)
    sizes = np.bincount(cells)
    point = (rank + rng.random(len(sizes))[cells]) / sizes[cells]
    _, one_each = np.unique(sites[shuffled], return_index=True)
    point[shuffled[one_each]] = 2 if spared == "last" else -1
    order = shuffled[np.lexsort((point[shuffled], labels[shuffled]))]
    starts = np.cumsum(np.bincount(labels)) - np.bincount(labels)
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - starts[labels[order]]
    return place


def _rank_within(cells: Ints, shuffled: Ints) -> Ints:
    """The place of each sample within its cell, in the order of the shuffle."""
    by_cell = shuffled[np.argsort(cells[shuffled], kind="stable")]
    sizes = np.bincount(cells)
    starts = np.cumsum(sizes) - sizes
    rank = np.empty(len(cells), dtype=np.int64)
    rank[by_cell] = np.arange(len(cells)) - np.repeat(starts, sizes)
    return rank
