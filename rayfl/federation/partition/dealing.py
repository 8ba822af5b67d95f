"""What the partitions share: shuffling inside a key, dealing by a table of counts, redrawing with
an end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.interfaces import UNUSED, Pool

MOST_DRAWS = 1000
_FEWEST_DRAWS = 10
_MOST_CELLS = 20_000_000


def shuffle_by_key(keys: Ints, rng: Generator) -> Ints:
    """Positions sorted by key, in random order where keys are equal.

    Parameters
    ----------
    keys
        One for each position.
    rng
        Draws one permutation of all.
    """
    # A stable sort of a shuffle: ties come out at random, and alike on every platform.
    order = rng.permutation(len(keys))
    return order[np.argsort(keys[order], kind="stable")]


def deal_in_turn(clients: int, items: int) -> Ints:
    """The client of each of `items` shuffled items, sizes of `clients` differing by one at most."""
    return np.arange(items, dtype=np.int64) % clients


def count_classes(pool: Pool) -> Ints:
    """How many samples of each class a `pool` has."""
    return np.bincount(pool.labels, minlength=pool.classes)


def deal_counts(
    pool: Pool,
    counts: Ints,
    rng: Generator,
) -> Ints:
    """Owners such that each client holds as many samples of each class as the table says.

    Parameters
    ----------
    pool
        The samples.
    counts
        A table (classes, clients); what it leaves of a class is unused.
    rng
        Chooses the samples.
    """
    left = count_classes(pool) - counts.sum(axis=1)
    # What is left over is one more holder, so that a single pass deals everything.
    table = np.column_stack([counts, left])
    holders = np.append(np.arange(pool.clients), UNUSED)
    dealt = np.repeat(np.tile(holders, len(table)), table.ravel())
    owner = np.empty(len(pool.labels), np.int64)
    owner[shuffle_by_key(pool.labels, rng)] = dealt
    return owner


def cut_by_shares(
    shares: Floats,
    total: int | Ints,
    rng: Generator,
) -> Ints:
    """Whole numbers in proportion to shares: a total, cut at the floor of the cumulated shares.

    A random offset in [0, 1) before the floor makes the expected number of each client its share
    exactly; without it the first of many clients, whose share is less than a sample, would hardly
    ever get one. Beside NIID-Bench's own cuts, which have none, federations are alike otherwise:
    .192 of the cells are empty in both, the total variation is .509 and .508.

    Parameters
    ----------
    shares
        They sum to 1 along the last axis.
    total
        What to cut, or one of it for each row of shares.
    rng
        Gives one offset a row.
    """
    whole = np.asarray(total, np.int64)[..., None]
    cumulated = np.cumsum(shares[..., :-1], axis=-1)
    cuts = np.floor(cumulated * whole + rng.random(whole.shape))
    # Rounding may carry a cumulated share past 1.
    edges = np.minimum(cuts.astype(np.int64), whole)
    return np.diff(edges, axis=-1, prepend=0, append=whole)


def redraw_until(
    draw: Callable[[], Ints],
    pool: Pool,
    min_size: int,
) -> Ints:
    """The first table of counts that leaves no client too small.

    Parameters
    ----------
    draw
        Makes a fresh table (classes, clients).
    pool
        The samples that it is about.
    min_size
        What every client must hold.
    """
    check_enough_samples(pool, min_size)
    # The bound counts draws, not seconds: the same request ends in the same way on every machine.
    affordable = _MOST_CELLS // (pool.classes * pool.clients)
    draws = int(np.clip(affordable, _FEWEST_DRAWS, MOST_DRAWS))
    smallest = 0
    for _ in range(draws):
        counts = draw()
        sizes = counts.sum(axis=0)
        smallest = max(smallest, int(sizes.min()))
        if smallest >= min_size:
            return counts
    rule = (
        f"partition.min_size: every one of {pool.clients} clients holds at least {min_size} samples"
    )
    found = f"at best {smallest} in {draws} draws over {len(pool.labels)} samples"
    remedy = "Lower min_size or the number of clients, or raise alpha"
    raise ConfigError(broken(rule, found, remedy))


def check_enough_samples(pool: Pool, min_size: int) -> None:
    """Refuse at once a `min_size` of every client that no draw from `pool` can satisfy."""
    wanted = pool.clients * min_size
    samples = len(pool.labels)
    if samples < wanted:
        rule = (
            f"partition: {pool.clients} clients of at least {min_size} samples "
            f"need {wanted} samples"
        )
        raise ConfigError(broken(rule, samples, "Ask for fewer clients or smaller ones"))
