"""What the partitions share: shuffling inside a key, dealing by a table of counts, redrawing with
an end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.views import UNUSED, Pool

MOST_DRAWS = 1000
_MOST_CELLS = 20_000_000


def shuffle_by_key(keys: Ints, rng: np.random.Generator) -> Ints:
    """Positions sorted by key, in random order where keys are equal."""
    # a stable sort of a shuffle: ties come out at random, and alike on every platform
    order = rng.permutation(len(keys))
    return order[np.argsort(keys[order], kind="stable")]


def deal_in_turn(clients: int, items: int) -> Ints:
    """The client of each of `items` shuffled items, sizes differing by one at most."""
    return np.arange(items, dtype=np.int64) % clients


def count_classes(pool: Pool) -> Ints:
    return np.bincount(pool.labels, minlength=pool.classes)


def deal_counts(pool: Pool, counts: Ints, rng: np.random.Generator) -> Ints:
    """Owners such that client k holds `counts[c, k]` samples of class c, chosen at random; the rest
    is unused."""
    left = count_classes(pool) - counts.sum(axis=1)
    # what is left over is one more holder, so that a single pass deals everything
    table = np.column_stack([counts, left])
    holders = np.append(np.arange(pool.clients), UNUSED)
    owner = np.empty(len(pool.labels), np.int64)
    owner[shuffle_by_key(pool.labels, rng)] = np.repeat(np.tile(holders, len(table)), table.ravel())
    return owner


def cut_by_shares(shares: Floats, total: int | Ints, rng: np.random.Generator) -> Ints:
    """Whole numbers in proportion to the shares (last axis): `total` cut at the floor of the
    cumulated shares.

    A random offset in [0, 1) before the floor makes the expected number of each client its share
    exactly; without it the first of many clients, whose share is less than a sample, would hardly
    ever get one."""
    whole = np.asarray(total, np.int64)[..., None]
    inner = np.floor(np.cumsum(shares[..., :-1], axis=-1) * whole + rng.random(whole.shape)).astype(
        np.int64
    )
    # rounding may carry a cumulated share past 1
    edges = np.minimum(inner, whole)
    return np.diff(edges, axis=-1, prepend=0, append=whole)


def redraw_until(draw: Callable[[], Ints], pool: Pool, min_size: int) -> Ints:
    """The first table of counts (classes, clients) that leaves no client below `min_size`, each
    draw a fresh one."""
    check_enough_samples(pool, min_size)
    # the bound counts draws, not seconds: the same request ends in the same way on every machine
    draws = int(np.clip(_MOST_CELLS // (pool.classes * pool.clients), 10, MOST_DRAWS))
    smallest = 0
    for _ in range(draws):
        counts = draw()
        smallest = max(smallest, int(counts.sum(axis=0).min()))
        if smallest >= min_size:
            return counts
    raise ConfigError(
        broken(
            f"partition.min_size: every one of {pool.clients} clients holds at least {min_size} samples",
            f"at best {smallest} in {draws} draws over {len(pool.labels)} samples",
            "Lower min_size or the number of clients, or raise alpha",
        )
    )


def check_enough_samples(pool: Pool, min_size: int) -> None:
    """Refuse at once what no draw can satisfy."""
    # every draw would fail for the same reason, so none is made
    wanted = pool.clients * min_size
    if len(pool.labels) < wanted:
        raise ConfigError(
            broken(
                f"partition: {pool.clients} clients of at least {min_size} samples need {wanted} samples",
                len(pool.labels),
                "Ask for fewer clients or smaller ones",
            )
        )
