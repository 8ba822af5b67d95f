"""The one in-memory form of every dataset."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels


@dataclass(frozen=True)
class Images:
    """Images and what is known of them.

    x       uint8 (N, height, width, channels)
    y       int64 labels, one an image
    groups  ids of patients, writers or sites, one an image, where there are any
    """

    x: Pixels
    y: Ints
    groups: Ints | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Dataset:
    """A training and a test set with named classes. `name` is what a person calls it."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]

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
        """One hash of every pixel, label and group id."""
        digest = hashlib.sha256()
        for images in (self.train, self.test):
            for array in (images.x, images.y, images.groups):
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
    if y.dtype != np.int64 or y.shape != (len(x),):
        rule = f"{where}: labels are int64, one an image ({len(x)})"
        raise DataError(broken(rule, f"{y.dtype} {y.shape}"))
    outside = np.flatnonzero((y < 0) | (y >= classes))
    if len(outside):
        position = int(outside[0])
        rule = f"{where}: labels lie in [0, {classes})"
        raise DataError(broken(rule, f"{y[position]} at position {position}"))
    groups = images.groups
    if groups is not None and groups.shape != y.shape:
        rule = f"{where}: one group id an image ({len(y)})"
        raise DataError(broken(rule, str(groups.shape)))
