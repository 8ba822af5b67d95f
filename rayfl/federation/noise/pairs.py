"""Where asymmetric noise sends each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints

PairRule = Literal["next", "previous", "superclass_ring", "cifar10-fedds", "cifar10-fedcr"]

# truck -> automobile, bird -> airplane, deer -> horse, cat -> dog (Patrini et al. 2017); FedCR adds
# dog -> cat
_FEDDS = {9: 1, 2: 0, 4: 7, 3: 5}
_CIFAR10 = {"cifar10-fedds": _FEDDS, "cifar10-fedcr": {**_FEDDS, 5: 3}}

_SUPERCLASSES = """
4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11
6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17
10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13
16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""
CIFAR100_SUPERCLASS = tuple(map(int, _SUPERCLASSES.split()))
"""The superclass of each CIFAR-100 class, both in alphabetical order."""


def make_flip_table(pairs: PairRule | Mapping[int, int], classes: int) -> Ints:
    """The class that each class turns into; a class that maps to itself never changes.

    Parameters
    ----------
    pairs
        The name of a rule, or a mapping source: target.
    classes
        How many classes the dataset has.
    """
    if pairs == "next":
        return (np.arange(classes) + 1) % classes
    if pairs == "previous":
        return (np.arange(classes) - 1) % classes
    if pairs == "superclass_ring":
        return _make_superclass_ring(classes)
    if isinstance(pairs, str):
        _check_classes(pairs, 10, classes)
        pairs = _CIFAR10[pairs]
    return _fill_table(pairs, classes)


def _fill_table(pairs: Mapping[int, int], classes: int) -> Ints:
    table = np.arange(classes)
    for source, target in pairs.items():
        for c in (source, target):
            if not 0 <= c < classes:
                rule = f"noise.pairs name classes in [0, {classes})"
                raise ConfigError(broken(rule, f"{source}: {target}"))
        table[source] = target
    return table


def _make_superclass_ring(classes: int) -> Ints:
    """The next class of the same CIFAR-100 superclass, the last one back to the first."""
    _check_classes("superclass_ring", len(CIFAR100_SUPERCLASS), classes)
    # A stable sort by superclass lists each superclass's five classes in ascending order.
    order = np.argsort(CIFAR100_SUPERCLASS, kind="stable")
    rings = order.reshape(20, 5)
    table = np.empty(classes, np.int64)
    table[rings] = np.roll(rings, -1, axis=1)
    return table


def _check_classes(
    rule: str,
    wanted: int,
    classes: int,
) -> None:
    if classes != wanted:
        raise ConfigError(
            broken(
                f"noise.pairs: '{rule}' is for {wanted} classes",
                classes,
                "Write next, previous or a mapping",
            )
        )
