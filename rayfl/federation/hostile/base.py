"""What every kind of hostile client has: who is one, and what it may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.random import Generator
from pydantic import Field

from rayfl.arrays import Vector
from rayfl.component import Fraction, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints, Pixels

Chosen = Fraction | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
"""A share of the clients, or their ids."""


@component
class Hostility:
    """Clients that mean harm. What a kind does not override stays honest."""

    changes_updates: ClassVar[bool] = False
    """Whether what its clients send is changed."""

    clients: Chosen
    """Which clients are hostile: a share of all, rounded down and drawn by the seed, or a list of
    ids."""

    @property
    def tampers(self) -> bool:
        """Whether this one, with these settings, changes what its clients send."""
        return self.changes_updates

    @property
    def aim(self) -> int | None:
        """The class that images with its trigger are to be taken for; None without one."""
        return None

    def choose(self, clients: int, rng: Generator) -> Ints:
        """The hostile clients, ascending.

        Parameters
        ----------
        clients
            How many there are.
        rng
            Draws them.
        """
        if isinstance(self.clients, tuple):
            return _read_listed(self.clients, clients)
        count = int(self.clients * clients + 1e-9)
        if self.clients and not count:
            rule = "a share of hostile clients is at least one client"
            remedy = "Raise hostile.clients, or list their ids."
            raise ConfigError(broken(rule, f"{self.clients} of {clients}", remedy))
        return np.sort(rng.permutation(clients)[:count])

    def poison_labels(self, given: Ints, rows: Ints, classes: int, rng: Generator) -> Ints:
        """Change labels in place; the rows of those whose images are to carry a trigger.

        Parameters
        ----------
        given
            The labels of the whole training set.
        rows
            Those of one hostile client.
        classes
            How many there are.
        rng
            Draws which.
        """
        return rows[:0]

    def stamp(self, x: Pixels) -> None:
        """Put the trigger on images, in place."""

    def change(self, update: Vector, start: Vector, rng: Generator) -> Vector:
        """What a hostile client sends in the place of an honest update.

        Parameters
        ----------
        update
            The honest one.
        start
            What it began with; zeros for an update that is a change already.
        rng
            A stream of the visit's own.
        """
        return update


def _read_listed(listed: Sequence[int], clients: int) -> Ints:
    if max(listed) >= clients:
        rule = f"hostile.clients lists ids below {clients}"
        raise ConfigError(broken(rule, max(listed)))
    return np.unique(np.array(listed, np.int64))


@dataclass(frozen=True, eq=False)
class Attack:
    """Who is hostile in a federation.

    name     what kind they are
    clients  their ids, ascending
    rows     of the training set, ascending: images that carry a trigger
    """

    name: str
    clients: Ints
    rows: Ints


def draw_attack(
    hostile: Hostility | None,
    name: str,
    given: Ints,
    owner: Ints,
    clients: int,
    classes: int,
    rng: Generator,
) -> Attack | None:
    """Draw who is hostile, and let them poison their labels in place; None where nobody is.

    Parameters
    ----------
    hostile
        The kind.
    name
        What the kind is called.
    given
        The labels of the training set, noise included.
    owner
        Who owns each of its rows.
    clients, classes
        How many there are.
    rng
        The only source of randomness.
    """
    if hostile is None:
        return None
    if hostile.aim is not None and hostile.aim >= classes:
        rule = f"hostile.target is a class below {classes}"
        raise ConfigError(broken(rule, hostile.aim))
    chosen = hostile.choose(clients, rng)
    stamped = [
        hostile.poison_labels(given, np.flatnonzero(owner == client), classes, rng)
        for client in chosen.tolist()
    ]
    rows = np.sort(np.concatenate([np.zeros(0, np.int64), *stamped]))
    return Attack(name, chosen, rows)
