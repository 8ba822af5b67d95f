"""The one in-memory form of every dataset."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels, Strings

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Images:
    """Images and what is known of them.

    x       uint8 (N, height, width, channels)
    y       int64 labels, one an image
    groups  ids of patients, writers or sites, one an image, where there are any
    names   file names or ids of rows, one an image, where there are any
    truth   true labels beside `y`, for the evaluation alone, where `y` is what somebody wrote
    """

    x: Pixels
    y: Ints
    groups: Ints | None = None
    names: Strings | None = None
    truth: Ints | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Ints) -> Self:
        """The images of these rows, in this order, with all that is known of them."""
        return type(self)(
            x=self.x[rows],
            y=self.y[rows],
            groups=None if self.groups is None else self.groups[rows],
            names=None if self.names is None else self.names[rows],
            truth=None if self.truth is None else self.truth[rows],
        )


@dataclass(frozen=True)
class Dataset:
    """A training and a test set with named classes. `name` is what a person calls it.

    sites    what the groups are called, where they are sites with names: group g is `sites[g]`
    skipped  the files that were left out because they are damaged
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    sites: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_images(f"{self.name}/train", self.train, len(self.classes))
        _check_images(f"{self.name}/test", self.test, len(self.classes))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image."""
        height, width, channels = self.train.x.shape[1:]
        return height, width, channels

    @cached_property
    def sha256(self) -> str:
        """One hash of every pixel, label and group id. Names are not in it: no run depends on
        them."""
        digest = hashlib.sha256()
        for images in (self.train, self.test):
            for array in (images.x, images.y, images.groups, images.truth):
                if array is not None:
                    # Without type and shape, two arrays of the same bytes would be one.
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


class Loader(Protocol):
    """What a dataset component does."""

    def load(self, root: Path) -> Dataset:
        """Read the dataset into memory.

        Parameters
        ----------
        root
            The folder of all datasets; this one's files lie below it.
        """
        ...


def _check_images(
    where: str,
    images: Images,
    classes: int,
) -> None:
    """Refuse wrong types, unequal lengths and labels outside the classes, by name."""
    x, y = images.x, images.y
    if x.dtype != np.uint8 or x.ndim != 4:
        rule = f"{where}: images are uint8 (N, height, width, channels)"
        raise DataError(broken(rule, f"{x.dtype} {x.shape}"))
    _check_labels(f"{where}: labels", y, len(x), classes)
    if images.truth is not None:
        _check_labels(f"{where}: true labels", images.truth, len(x), classes)
    for what, array in (("group id", images.groups), ("name", images.names)):
        if array is not None and array.shape != y.shape:
            rule = f"{where}: one {what} an image ({len(y)})"
            raise DataError(broken(rule, str(array.shape)))


def _check_labels(
    what: str,
    y: Ints,
    length: int,
    classes: int,
) -> None:
    """Labels are whole numbers of classes, one an image."""
    if y.dtype != np.int64 or y.shape != (length,):
        raise DataError(
            broken(f"{what} are int64, one an image ({length})", f"{y.dtype} {y.shape}")
        )
    outside = np.flatnonzero((y < 0) | (y >= classes))
    if len(outside):
        position = int(outside[0])
        rule = f"{what} lie in [0, {classes})"
        raise DataError(broken(rule, f"{y[position]} at position {position}"))
