"""Which samples a noise model corrupts, and draws of classes out of per-client sets of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.random import Generator

from rayfl.federation.arrays import Bools, Floats, Ints
from rayfl.federation.interfaces import Truth
from rayfl.federation.partition.dealing import shuffle_by_key

Counting = Literal["exact", "per_class", "per_class_floor", "bernoulli"]
"""How a rate r becomes a choice of samples: `exact` is floor(r n) of a client's n samples,
`per_class` is round(r n_c) and `per_class_floor` is floor(r n_c) of its n_c samples of each class,
`bernoulli` is r for every sample on its own."""


def choose_samples(
    truth: Truth,
    rates: Floats,
    count: Counting,
    rng: Generator,
    able: Bools | None = None,
) -> Ints:
    """Positions to corrupt, ascending.

    Parameters
    ----------
    truth
        The samples and their owners.
    rates
        A rate for each client.
    count
        How a rate becomes a choice.
    rng
        Draws the samples, and nothing else before them.
    able
        Marks the samples that may be chosen; None allows all.
    """
    samples = np.arange(len(truth.labels))
    among = samples if able is None else np.flatnonzero(able)
    # The choice is drawn before any target: noises of equal rate and seed pick the same samples.
    owner = truth.owner[among]
    if count == "bernoulli":
        return among[rng.random(len(among)) < rates[owner]]
    if count == "exact":
        sizes = np.bincount(owner, minlength=truth.clients)
        quota = round_down(rates, sizes)
        return among[draw_quota(owner, quota, rng)]
    # A cell is one class of one client.
    cell = owner * truth.classes + truth.labels[among]
    sizes = np.bincount(cell, minlength=truth.clients * truth.classes)
    cell_rates = np.repeat(rates, truth.classes)
    if count == "per_class_floor":
        quota = round_down(cell_rates, sizes)
    else:
        quota = np.rint(cell_rates * sizes).astype(np.int64)
    return among[draw_quota(cell, quota, rng)]


def round_down(rates: Floats, sizes: Ints) -> Ints:
    """floor(`rates` x `sizes`), with 1e-9 added so that .29 x 100 = 28.999... is 29."""
    return np.floor(rates * sizes + 1e-9).astype(np.int64)


def draw_quota(
    cell: Ints,
    quota: Ints,
    rng: Generator,
) -> Bools:
    """Random marks.

    Parameters
    ----------
    cell
        The cell of each sample.
    quota
        How many samples of each cell to mark.
    rng
        Draws them.
    """
    order = shuffle_by_key(cell, rng)
    return mark_first(cell, order, quota)


def mark_first(
    cell: Ints,
    order: Ints,
    quota: Ints,
) -> Bools:
    """Marks on the first `quota[g]` samples of each cell g.

    Parameters
    ----------
    cell
        The cell of each sample.
    order
        Positions of the samples, sorted by cell.
    quota
        How many samples of each cell to mark.
    """
    sizes = np.bincount(cell, minlength=len(quota))
    # Place within the cell: place in the whole less the start of the cell.
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(cell)) - np.repeat(starts, sizes)
    mask = np.zeros(len(cell), np.bool_)
    mask[order] = rank < np.repeat(quota, sizes)
    return mask


def draw_class(
    allowed: Bools,
    row: Ints,
    rng: Generator,
    other_than: Ints | None = None,
) -> Ints:
    """For each entry a uniform draw from the classes marked in `allowed[row]`.

    Parameters
    ----------
    allowed
        A table (rows, classes).
    row
        The row of the table that each entry draws from.
    rng
        Gives one number an entry.
    other_than
        A marked class of each entry that it does not draw.
    """
    # One flat list of marked classes with a start for each row, in place of a loop over clients.
    listed = np.nonzero(allowed)[1]
    many = allowed.sum(axis=1)
    start = np.cumsum(many) - many
    if other_than is None:
        draw = rng.integers(many[row])
    else:
        draw = rng.integers(many[row] - 1)
        # Skip the excluded class: ranks from its own upwards move by one.
        rank = np.cumsum(allowed, axis=1) - 1
        draw = draw + (draw >= rank[row, other_than])
    drawn: Ints = listed[start[row] + draw]
    return drawn
