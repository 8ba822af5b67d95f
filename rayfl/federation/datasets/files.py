"""What the readers of files share: where a dataset lies, how its absence is told, and the counts
that must hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.dataset import Dataset, Images

Expected = int | tuple[int, ...]
"""How many images a part must have: in all, or class by class."""


@component
class OnDisk(ABC):
    """A dataset that is read from files: below `root/<folder>`, or at `path` (absolute, or relative
    to the root)."""

    path: Path | None = None

    folder: ClassVar[str] = ""
    form: ClassVar[str] = ""
    sourced: ClassVar[bool] = True

    def where(self, root: Path) -> Path:
        return root / (self.path.expanduser() if self.path is not None else self.folder)

    @abstractmethod
    def load(self, root: Path) -> Dataset: ...

    @property
    def remedy(self) -> str:
        """How a person comes by the files."""
        command = f"rayfl data get {self.folder}" + ("" if self.sourced else " --from ARCHIVE")
        return f"Run `{command}`, or put {self.form} there, or say where they are with `path`"


def find_file(folder: Path, *names: str) -> Path | None:
    """The first file of one of these names in a folder or at most two folders below: archives
    unpack either way."""
    # Not deeper: `path` may point into a disk full of other things.
    for depth in ("", "*/", "*/*/"):
        for name in names:
            found = sorted(file for file in folder.glob(depth + name) if file.is_file())
            if found:
                return found[0]
    return None


def require_file(part: OnDisk, folder: Path, *names: str) -> Path:
    """Like `find`, with an error that names the file and how to come by it."""
    found = find_file(folder, *names)
    if found is None:
        raise DataError(
            broken(f"{part.folder} needs the file {folder / names[0]}", "no such file", part.remedy)
        )
    return found


def damaged_file(file: Path, expected: str, found: object, part: str = "") -> DataError:
    """The error about a file that is not what it should be."""
    # A damaged file must go first: as long as it is there, it is the one that is read.
    remedy = f"Remove it and fetch it again{f' with `rayfl data get {part}`' if part else ''}"
    return DataError(broken(f"{file} must be {expected}", found, remedy))


def verify_dataset(
    part: OnDisk,
    folder: Path,
    train: Images,
    test: Images,
    classes: tuple[str, ...],
    expected: tuple[Expected, Expected],
) -> Dataset:
    """The dataset, once both parts have the labels and counts that it is known to have."""
    for name, images, count in (("train", train, expected[0]), ("test", test, expected[1])):
        check_class_counts(
            f"{folder}: {part.folder}/{name}", images.y, len(classes), count, part.remedy
        )
    return Dataset(part.folder, train, test, classes)


def check_class_counts(
    where: str, labels: Ints, classes: int, expected: Expected, remedy: str
) -> None:
    """Refuse labels outside the classes, and totals or class counts that differ from the known
    ones."""
    check_label_range(where, labels, classes, remedy)
    # The total first: "one image short" says more than the class that it is missing from.
    total = expected if isinstance(expected, int) else sum(expected)
    if len(labels) != total:
        raise DataError(broken(f"{where} has {total} images", len(labels), remedy))
    counts = np.bincount(labels, minlength=classes)
    if not isinstance(expected, int) and counts.tolist() != list(expected):
        at = int(np.flatnonzero(counts != np.asarray(expected))[0])
        raise DataError(
            broken(f"{where} has {expected[at]} images of class {at}", int(counts[at]), remedy)
        )


def check_label_range(where: str, labels: Ints, classes: int, remedy: str = "") -> None:
    """Refuse labels outside the classes, with the first of them and its position."""
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        at = int(outside[0])
        raise DataError(
            broken(
                f"{where}: labels lie in [0, {classes})", f"{labels[at]} at position {at}", remedy
            )
        )


def hold_out(labels: Ints, count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Positions (kept, held out): `count` held out, stratified by largest remainder, both in the
    original order."""
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    exact = np.array([len(m) for m in members]) * (count / len(labels))
    quota = np.floor(exact).astype(np.int64)
    # A stable order of the remainders, so that ties go to the lower class on every platform.
    most_wronged = np.argsort(quota - exact, kind="stable")
    quota[most_wronged[: count - quota.sum()]] += 1
    taken = np.concatenate([rng.permutation(m)[:q] for m, q in zip(members, quota, strict=True)])
    # A mask brings both halves back into the original order.
    out = np.zeros(len(labels), dtype=bool)
    out[taken] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def split_off_test(images: Images, test_fraction: float, seed: int) -> tuple[Images, Images]:
    """A seeded, stratified split of images that come without a test set."""
    count = round(test_fraction * len(images))
    kept, held_out = hold_out(images.y, count, np.random.default_rng(seed))
    return Images(images.x[kept], images.y[kept]), Images(images.x[held_out], images.y[held_out])
