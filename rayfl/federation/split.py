"""Splits: which training samples the server holds, which are dealt out to clients, which stay
unused.

Every class is shuffled once. The server's sets are cut from the front of each class and the
clients' share from its end, so that a larger public set contains the smaller one and, with
`client_samples` fixed, leaves the clients' pool as it was. Sizes that are not whole per class are
settled by the largest remainder, so totals are exact. Where the samples have sites, the order of
each class holds them in proportion, and the last of it is one sample of every site: each set is cut
from all sites, and no site loses its last sample to the server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Annotated

import numpy as np
from numpy.random import Generator
from pydantic import BeforeValidator

from rayfl.component import Count, Fraction, component, neutral
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Bools, Ints
from rayfl.federation.even_order import spread_places
from rayfl.federation.interfaces import UNUSED as _UNUSED
from rayfl.federation.names import SampleRegister
from rayfl.federation.paths import AbsolutePath
from rayfl.federation.told_sets import read_told_sets


class Role(IntEnum):
    """What a sample is for when no client owns it; clients own by their ids, 0 and up."""

    UNUSED = _UNUSED
    PUBLIC = -2
    VALIDATION = -3
    LABELLED = -4


@component
class Amount:
    """How many samples, stratified: a share of the training set, a number per class, or a total.

    Shares and totals keep the class proportions; `per_class` makes the classes equal.
    """

    fraction: Fraction | None = None
    per_class: Count | None = None
    total: Count | None = None

    def __post_init__(self) -> None:
        names = [field.name for field in dataclasses.fields(self)]
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            rule = f"an amount is exactly one of {', '.join(names)}"
            raise ValueError(broken(rule, given or "none of them"))

    def counts(self, sizes: Ints) -> Ints:
        """How many of each class, `sizes` being what there is."""
        if self.per_class is not None:
            return np.full(len(sizes), self.per_class, dtype=np.int64)
        if self.total is not None:
            return apportion_total(self.total, sizes)
        assert self.fraction is not None
        total = round(self.fraction * int(sizes.sum()))
        return apportion_total(total, sizes)


SERVER_SETS = ("public", "validation", "labelled")
"""The sets that a split can cut for the server, in the order in which it cuts them."""

_TOLD_SETS = (*SERVER_SETS, "clients", "unused")


@component
class Cap(Amount):
    """An `Amount` that may also be the first n rows in the order of the dataset's files."""

    first: Count | None = None


def _expand_fraction(short: object) -> object:
    """A bare fraction such as `0.1` stands for `{fraction: 0.1}`."""
    return {"fraction": short} if isinstance(short, float) else short


_Part = Annotated[Amount | None, BeforeValidator(_expand_fraction)]
_Limit = Annotated[Cap | None, BeforeValidator(_expand_fraction)]


@component
class SplitPlan:
    """The server's sets and the caps of scaled-down runs; what nothing claims goes to the clients.

    public          images for distillation, voting or scoring; methods that must not see its labels
                    ignore them
    validation      clean labels at the server
    labelled        the server's own training data, with a noise of its own (`labelled_noise`)
    client_samples  deal only this much to the clients and leave the rest unused
    train_samples   cut the training set down first; fractions then refer to what is left
    test_samples    cut the test set down
    table           a CSV or Parquet file with a column `file` (or `id`, the row of the training
                    set) and a column `set`: public, validation, labelled, clients or unused. What
                    it does not name is cut as the other settings say, and goes to the clients
    """

    public: _Part = None
    validation: _Part = None
    labelled: _Part = None
    client_samples: _Part = None
    train_samples: _Limit = None
    test_samples: _Limit = None
    table: Annotated[AbsolutePath | None, neutral(None)] = None


@dataclasses.dataclass(frozen=True)
class TrainingSplit:
    """Sorted, disjoint row numbers of a training set of `samples` rows; rows in none of them are
    unused."""

    samples: int
    pool: Ints
    public: Ints
    validation: Ints
    labelled: Ints

    def __post_init__(self) -> None:
        rows = np.concatenate([self.pool, *self.server().values()])
        claims = np.bincount(rows, minlength=self.samples)
        assert len(claims) == self.samples, "a split names rows that the training set does not have"
        assert not (claims > 1).any(), "a sample has two roles"

    def server(self) -> dict[Role, Ints]:
        """The server's sets by role."""
        return {
            Role.PUBLIC: self.public,
            Role.VALIDATION: self.validation,
            Role.LABELLED: self.labelled,
        }


def split_training_set(
    labels: Ints,
    classes: Sequence[str],
    plan: SplitPlan,
    rng: Generator,
    sites: Ints | None = None,
    register: SampleRegister | None = None,
) -> TrainingSplit:
    """Cut a training set as planned.

    Parameters
    ----------
    labels
        The true classes of its samples.
    classes
        The names of the classes, for refusals.
    plan
        What the server holds, and the caps.
    rng
        Shuffles every class once.
    sites
        Where the samples are from, if sets are to be cut from each site in proportion.
    register
        What the samples are called, for a split that a table tells.
    """
    if plan.table is None:
        return _cut_sets(labels, classes, plan, rng, sites)
    told = read_told_sets(plan.table, register, _TOLD_SETS)
    _refuse_told_twice(plan, told)
    free = np.ones(len(labels), dtype=np.bool_)
    free[np.concatenate(list(told.values()))] = False
    rows = np.flatnonzero(free)
    rest = _cut_sets(labels[rows], classes, plan, rng, None if sites is None else sites[rows])
    return TrainingSplit(
        samples=len(labels),
        pool=np.union1d(rows[rest.pool], told["clients"]),
        public=np.union1d(rows[rest.public], told["public"]),
        validation=np.union1d(rows[rest.validation], told["validation"]),
        labelled=np.union1d(rows[rest.labelled], told["labelled"]),
    )


def _refuse_told_twice(plan: SplitPlan, told: Mapping[str, Ints]) -> None:
    """A set is told by the table or drawn by an amount."""
    for name in SERVER_SETS:
        if len(told[name]) and getattr(plan, name) is not None:
            rule = f"split.{name} is told by split.table, or drawn by an amount"
            raise ConfigError(broken(rule, "both", f"Leave out split.{name}, or its rows"))


def _cut_sets(
    labels: Ints,
    classes: Sequence[str],
    plan: SplitPlan,
    rng: Generator,
    sites: Ints | None,
) -> TrainingSplit:
    """Cut these samples by the amounts of a plan."""
    rows = cap_rows(labels, classes, plan.train_samples, rng, "split.train_samples", sites)
    kept = labels[rows]
    sizes = np.bincount(kept, minlength=len(classes))
    if sites is None:
        place = _shuffle_places(kept, sizes, rng)
    else:
        place = spread_places(kept, sites[rows], rng)
    taken = np.zeros_like(sizes)
    server: dict[str, Bools] = {}
    for name in SERVER_SETS:
        start = taken
        amount: Amount | None = getattr(plan, name)
        taken = start + _count_wanted(amount, sizes, sizes - start, classes, f"split.{name}")
        server[name] = (place >= start[kept]) & (place < taken[kept])
    left = sizes - taken
    if plan.client_samples is not None:
        left = _count_wanted(plan.client_samples, sizes, left, classes, "split.client_samples")
    # From the end of each class: a larger set of the server's moves no sample of the clients'.
    pool = place >= (sizes - left)[kept]
    roles = {name: rows[mask] for name, mask in server.items()}
    return TrainingSplit(len(labels), rows[pool], **roles)


def cap_rows(
    labels: Ints,
    classes: Sequence[str],
    cap: Cap | None,
    rng: Generator,
    where: str,
    sites: Ints | None = None,
) -> Ints:
    """The sorted rows that a cap leaves.

    Parameters
    ----------
    labels
        The true classes of all rows.
    classes
        The names of the classes, for refusals.
    cap
        How many rows stay; None keeps all.
    rng
        Draws the rows that stay, class by class.
    where
        The key of the configuration that refusals name.
    sites
        Where the rows are from, if each site is to stay in proportion, and none is to vanish.
    """
    if cap is None:
        return np.arange(len(labels))
    if cap.first is not None:
        if cap.first > len(labels):
            rule = f"{where}.first is at most the {len(labels)} samples there are"
            raise ConfigError(broken(rule, cap.first))
        return np.arange(cap.first)
    sizes = np.bincount(labels, minlength=len(classes))
    counts = _count_wanted(cap, sizes, sizes, classes, where)
    if sites is None:
        place = _shuffle_places(labels, sizes, rng)
    else:
        place = spread_places(labels, sites, rng, spared="first")
    return np.flatnonzero(place < counts[labels])


def _count_wanted(
    amount: Amount | None,
    sizes: Ints,
    left: Ints,
    classes: Sequence[str],
    where: str,
) -> Ints:
    """The counts per class that an amount asks for, or a refusal that names the class that cannot
    give them."""
    if amount is None:
        return np.zeros_like(sizes)
    counts = amount.counts(sizes)
    lacking = counts - left
    worst = int(np.argmax(lacking))
    if lacking[worst] > 0:
        there = f"{left[worst]} of class '{classes[worst]}'"
        rule = f"{where} takes at most what is left of each class ({there})"
        remedy = "Ask for less, or shrink the parts before it."
        raise ConfigError(broken(rule, f"a need of {counts[worst]}", remedy))
    return counts


def _shuffle_places(
    labels: Ints,
    sizes: Ints,
    rng: Generator,
) -> Ints:
    """Shuffle every class: the place (0 .. size-1) of each sample among its own class."""
    samples = len(labels)
    shuffled = rng.permutation(samples)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    place = np.empty(samples, dtype=np.int64)
    place[by_class] = np.arange(samples) - np.repeat(starts, sizes)
    return place


def apportion_total(total: int, sizes: Ints) -> Ints:
    """Divide `total` in proportion to `sizes`: the floors, then one more to the largest remainders
    (Hamilton)."""
    whole = max(int(sizes.sum()), 1)
    counts, remainders = np.divmod(total * sizes, whole)
    missing = total - int(counts.sum())
    # A stable sort gives equal remainders to the lower class, on every machine.
    largest_first = np.argsort(-remainders, kind="stable")
    counts[largest_first[:missing]] += 1
    return counts
