"""The one in-memory form of every dataset."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import DataError, broken


@dataclass(frozen=True)
class Images:
    """Images and what is known of them: uint8 (N, height, width, channels), int64 labels, optional
    group ids."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None

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
        for part, images in (("train", self.train), ("test", self.test)):
            _check_images(f"{self.name}/{part}", images, len(self.classes))

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
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


class Loader(Protocol):
    """What a dataset component does: read files below `root` into memory."""

    def load(self, root: Path) -> Dataset: ...


def _check_images(where: str, images: Images, classes: int) -> None:
    """Refuse wrong types, unequal lengths and labels outside the classes, by name."""
    x, y = images.x, images.y
    if x.dtype != np.uint8 or x.ndim != 4:
        raise DataError(
            broken(
                f"{where}: images are uint8 (N, height, width, channels)", f"{x.dtype} {x.shape}"
            )
        )
    if y.dtype != np.int64 or y.shape != (len(x),):
        raise DataError(
            broken(f"{where}: labels are int64, one an image ({len(x)})", f"{y.dtype} {y.shape}")
        )
    if len(y) and not (y.min() >= 0 and y.max() < classes):
        position = int(np.flatnonzero((y < 0) | (y >= classes))[0])
        raise DataError(
            broken(
                f"{where}: labels lie in [0, {classes})", f"{y[position]} at position {position}"
            )
        )
    if images.groups is not None and images.groups.shape != y.shape:
        raise DataError(
            broken(f"{where}: one group id an image ({len(y)})", str(images.groups.shape))
        )
