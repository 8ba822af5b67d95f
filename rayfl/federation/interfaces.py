"""What a partition and a noise model see, and what they answer: labels and ids only, never pixels
by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator

from rayfl.federation.arrays import Floats, Ints, Pixels
from rayfl.federation.names import SampleRegister

UNUSED = -1
"""The owner of a sample that a partition gives to nobody."""


@dataclass(frozen=True)
class Pool:
    """The samples that a partition deals out: position i of every array is the same sample.

    labels   their true classes, in [0, classes)
    classes  how many classes the dataset has
    clients  how many clients to deal to
    groups   ids of patients, writers or sites, where the dataset has them
    sites    what the groups are called, by id, where they are sites with names
    rows     their rows in the training set
    register   all images by name, for a file that speaks of samples by theirs
    """

    labels: Ints
    classes: int
    clients: int
    groups: Ints | None = None
    sites: tuple[str, ...] = ()
    rows: Ints | None = None
    register: SampleRegister | None = None


@dataclass(frozen=True)
class Assignment:
    """`owner[i]` is the client of sample i (or UNUSED). `tasks[k]` are the classes that client k is
    meant to learn, where a partition has a notion of it; `names[k]` is what it is called."""

    owner: Ints
    tasks: tuple[tuple[int, ...], ...] | None = None
    names: tuple[str, ...] | None = None


class Partition(Protocol):
    """Deals a pool out to clients."""

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        """Say who owns each sample.

        Parameters
        ----------
        pool
            The samples; it must be left as it is.
        rng
            The only source of randomness, so that the seed decides.
        """
        ...


@dataclass(frozen=True)
class Truth:
    """The true labels that a noise model corrupts: position i is a sample of client `owner[i]` (0
    .. clients-1).

    `position` is the sample's row in the dataset's training set; `images()` gives the uint8 pixels
    of the samples, for the models that look at them; `tasks` are as in `Assignment`."""

    labels: Ints
    owner: Ints
    position: Ints
    clients: int
    classes: int
    images: Callable[[], Pixels]
    tasks: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class Corruption:
    """Given labels, and the rate that each client was meant to have (nan where a model has no
    notion of it)."""

    given: Ints
    nominal: Floats


class Noise(Protocol):
    """Turns true labels into given ones."""

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        """Say which label every sample is given.

        Parameters
        ----------
        truth
            The true labels and their owners; it must be left as it is.
        rng
            The only source of randomness, so that the seed decides.
        """
        ...
