"""Any folder of class folders, with `train` and `test` (or `val`) above them or else a seeded
split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from rayfl.component import Count, Natural, component
from rayfl.errors import DataError, broken
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.files import OnDisk, split_off_test
from rayfl.federation.datasets.images import decode_images, is_image

_TEST_FOLDERS = ("test", "val", "valid", "validation")


@component
class Folder(OnDisk):
    """Images at `[train|test]/CLASS/...`, scaled to squares of `side` pixels if they differ in
    size."""

    side: Count | None = None
    channels: Literal[1, 3] | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: Natural = 0

    folder: ClassVar[str] = "folder"
    form: ClassVar[str] = "a folder a class, or train and test with such folders,"
    sourced: ClassVar[bool] = False

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        if not (folder / "train").is_dir():
            classes = _list_class_folders(folder, self.remedy)
            train, test = split_off_test(self.read(folder, classes), self.test_fraction, self.seed)
            return Dataset(folder.name, train, test, classes)
        held_out = next((folder / name for name in _TEST_FOLDERS if (folder / name).is_dir()), None)
        if held_out is None:
            rule = f"beside {folder / 'train'} there is one of {', '.join(_TEST_FOLDERS)}"
            raise DataError(
                broken(rule, "none", f"Name {folder / 'train'} as `path` for a seeded split")
            )
        classes = _list_class_folders(folder / "train", self.remedy)
        # A class that only the test set has could never be learnt, and would shift the numbers of
        # the others.
        strangers = set(_list_class_folders(held_out, self.remedy)) - set(classes)
        if strangers:
            raise DataError(
                broken(
                    f"the classes of {held_out} are those of train", ", ".join(sorted(strangers))
                )
            )
        train = self.read(folder / "train", classes)
        # The test images take on the training images' channels.
        return Dataset(folder.name, train, self.read(held_out, classes, train.x.shape[3]), classes)

    def read(self, folder: Path, classes: Sequence[str], channels: int | None = None) -> Images:
        files = [sorted(filter(is_image, (folder / name).rglob("*"))) for name in classes]
        labels = np.repeat(np.arange(len(classes)), [len(members) for members in files])
        pixels = decode_images(
            [file for members in files for file in members], channels or self.channels, self.side
        )
        return Images(pixels, labels.astype(np.int64))


def _list_class_folders(folder: Path, remedy: str) -> tuple[str, ...]:
    """The names of the folders that hold images, in alphabetical order."""
    # Alphabetical, as everybody numbers the classes of folders.
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    found = tuple(
        e.name
        for e in entries
        if e.is_dir() and not e.name.startswith(".") and any(map(is_image, e.rglob("*")))
    )
    if not found:
        raise DataError(
            broken(f"{folder} must hold folders of images, one a class", "none", remedy)
        )
    return found
