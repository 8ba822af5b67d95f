"""Which samples a noise model corrupts, and draws of classes out of per-client sets of them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rayfl.federation.arrays import Bools, Floats, Ints
from rayfl.federation.partition.dealing import shuffle_by_key
from rayfl.federation.views import Truth

Counting = Literal["exact", "per_class", "per_class_floor", "bernoulli"]
"""How a rate r becomes a choice of samples: `exact` is floor(r n) of a client's n samples,
`per_class` is round(r n_c) and `per_class_floor` is floor(r n_c) of its n_c samples of each class,
`bernoulli` is r for every sample on its own."""


def choose_samples(
    truth: Truth,
    rates: Floats,
    count: Counting,
    rng: np.random.Generator,
    able: Bools | None = None,
) -> Ints:
    """Positions to corrupt among the `able` samples (all, if not said), ascending."""
    among = np.arange(len(truth.labels)) if able is None else np.flatnonzero(able)
    # the choice is drawn before any target: noises of equal rate and seed pick the same samples
    owner = truth.owner[among]
    if count == "bernoulli":
        return among[rng.random(len(among)) < rates[owner]]
    if count == "exact":
        return among[
            draw_quota(owner, round_down(rates, np.bincount(owner, minlength=truth.clients)), rng)
        ]
    cell = owner * truth.classes + truth.labels[among]
    sizes = np.bincount(cell, minlength=truth.clients * truth.classes)
    wanted = np.repeat(rates, truth.classes)
    quota = (
        round_down(wanted, sizes)
        if count == "per_class_floor"
        else np.rint(wanted * sizes).astype(np.int64)
    )
    return among[draw_quota(cell, quota, rng)]


def round_down(rates: Floats, sizes: Ints) -> Ints:
    """floor(rate x size), with 1e-9 added so that .29 x 100 = 28.999... is 29."""
    return np.floor(rates * sizes + 1e-9).astype(np.int64)


def draw_quota(cell: Ints, quota: Ints, rng: np.random.Generator) -> Bools:
    """A mask with `quota[g]` random marks among the samples of each cell g."""
    return mark_first(cell, shuffle_by_key(cell, rng), quota)


def mark_first(cell: Ints, order: Ints, quota: Ints) -> Bools:
    """Marks on the first `quota[g]` samples of each cell g, in an order that is sorted by cell."""
    sizes = np.bincount(cell, minlength=len(quota))
    # place within the cell: place in the whole less the start of the cell
    rank = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros(len(cell), np.bool_)
    mask[order] = rank < np.repeat(quota, sizes)
    return mask


def draw_class(
    allowed: Bools, row: Ints, rng: np.random.Generator, other_than: Ints | None = None
) -> Ints:
    """For each entry a uniform draw from the classes marked in `allowed[row]`, without its own
    `other_than`."""
    # one flat list of marked classes with a start for each row, in place of a loop over clients
    listed = np.nonzero(allowed)[1]
    many = allowed.sum(axis=1)
    start = np.cumsum(many) - many
    if other_than is None:
        free: Ints = listed[start[row] + rng.integers(many[row])]
        return free
    draw = rng.integers(many[row] - 1)
    # skip the excluded class: ranks from its own upwards move by one
    own = (np.cumsum(allowed, axis=1) - 1)[row, other_than]
    picked: Ints = listed[start[row] + draw + (draw >= own)]
    return picked
