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
from rayfl.federation.datasets.image_files import decode_images, is_image
from rayfl.federation.datasets.on_disk import OnDisk, split_off_test

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

    @property
    def remedy(self) -> str:
        fetched = f"`rayfl data get {self.folder} --from ARCHIVE`"
        return f"Set data.path to your images, which lie in a folder a class; or run {fetched}"

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        train_folder = folder / "train"
        if not train_folder.is_dir():
            classes = _list_class_folders(folder, self.remedy)
            images = self._read(folder, classes, self.channels)
            train, test = split_off_test(images, self.test_fraction, self.seed)
            return Dataset(folder.name, train, test, classes)
        test_folder = _find_test_folder(folder)
        classes = _list_class_folders(train_folder, self.remedy)
        # A class that only the test set has could never be learnt, and would shift the numbers of
        # the others.
        strangers = set(_list_class_folders(test_folder, self.remedy)) - set(classes)
        if strangers:
            rule = f"the classes of {test_folder} are those of train"
            raise DataError(broken(rule, ", ".join(sorted(strangers))))
        train = self._read(train_folder, classes, self.channels)
        # The test images take on the training images' channels.
        test = self._read(test_folder, classes, train.x.shape[3])
        return Dataset(folder.name, train, test, classes)

    def _read(
        self,
        folder: Path,
        classes: Sequence[str],
        channels: int | None,
    ) -> Images:
        files: list[Path] = []
        labels: list[int] = []
        for c, name in enumerate(classes):
            members = sorted(filter(is_image, (folder / name).rglob("*")))
            files += members
            labels += [c] * len(members)
        pixels = decode_images(files, channels, self.side)
        return Images(pixels, np.array(labels, dtype=np.int64))


def _find_test_folder(folder: Path) -> Path:
    """The folder beside `train` that holds the test set, under any of its names."""
    for name in _TEST_FOLDERS:
        if (folder / name).is_dir():
            return folder / name
    train = folder / "train"
    rule = f"beside {train} there is one of {', '.join(_TEST_FOLDERS)}"
    raise DataError(broken(rule, "none", f"Name {train} as `path` for a seeded split"))


def _list_class_folders(folder: Path, remedy: str) -> tuple[str, ...]:
    """The names of the folders that hold images, in alphabetical order."""
    # Alphabetical, as everybody numbers the classes of folders.
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    found = []
    for entry in entries:
        visible = entry.is_dir() and not entry.name.startswith(".")
        if visible and any(map(is_image, entry.rglob("*"))):
            found.append(entry.name)
    if not found:
        rule = f"{folder} must hold folders of images, one a class"
        raise DataError(broken(rule, "none", remedy))
    return tuple(found)
