"""What the readers of files share: where a dataset lies, how its absence is told, and the counts
that must hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from rayfl.component import component
from rayfl.errors import DataError, RayflError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.bounds import check_bounds
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.decoding import describe_damage
from rayfl.federation.even_order import spread_places
from rayfl.federation.split import apportion_total
from rayfl.regular_files import read_regular

_LONGEST_LISTING = 500_000_000
_LEEWAY = 4
"""How much more than the publisher's files other forms of a dataset may hold."""

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
    holds: ClassVar[int] = 0
    """Bytes of the publisher's files, unpacked; 0 where nobody knows."""

    def where(self, root: Path) -> Path:
        """Where the files lie if all datasets lie below `root`."""
        if self.path is None:
            return root / self.folder
        return root / self.path.expanduser()

    @property
    def labels_are_given(self) -> bool:
        """Whether its labels are what somebody wrote, so that nobody knows the truth."""
        return False

    @property
    def most_bytes(self) -> int:
        """How much its files may hold, unpacked, to be worth reading; 0 where nobody knows."""
        return _LEEWAY * self.holds

    @abstractmethod
    def load(self, root: Path) -> Dataset: ...

    @property
    def remedy(self) -> str:
        """How a person comes by the files."""
        command = f"rayfl data get {self.folder}"
        if not self.sourced:
            command += " --from ARCHIVE"
        return f"Run `{command}`, or put {self.form} there, or say where they are with `path`"


def find_file(folder: Path, *names: str) -> Path | None:
    """The first file of one of these names in `folder` or at most two folders below: archives
    unpack either way."""
    # Not deeper: `path` may point into a disk full of other things.
    for depth in ("", "*/", "*/*/"):
        for name in names:
            entries = sorted(folder.glob(depth + name))
            files = [entry for entry in entries if entry.is_file()]
            if files:
                return files[0]
    return None


def require_file(
    part: OnDisk,
    folder: Path,
    *names: str,
) -> Path:
    """The file that `find_file` finds, or a refusal that names it and how to come by it.

    Parameters
    ----------
    part
        The dataset that needs it.
    folder
        Where to look.
    names
        Its names; the first is the one that the refusal tells.
    """
    found = find_file(folder, *names)
    if found is None:
        rule = f"{part.folder} needs the file {folder / names[0]}"
        raise DataError(broken(rule, "no such file", part.remedy))
    return found


def damaged_file(
    file: Path,
    expected: str,
    found: object,
    part: str = "",
) -> DataError:
    """The error about a file that is not what it should be.

    Parameters
    ----------
    file
        The file.
    expected
        What it must be, as the end of a sentence.
    found
        What it is.
    part
        The name under which `rayfl data get` fetches it again, if it does.
    """
    command = f" with `rayfl data get {part}`" if part else ""
    # A damaged file must go first: as long as it is there, it is the one that is read.
    remedy = f"Remove it and fetch it again{command}"
    return DataError(broken(f"{file} must be {expected}", found, remedy))


@contextmanager
def refuse_damage(
    file: Path,
    expected: str,
    part: str = "",
) -> Iterator[None]:
    """Turn whatever a decoder raises at damaged bytes into that error.

    Parameters
    ----------
    file, expected, part
        As for `damaged_file`.
    """
    try:
        yield
    except RayflError:
        raise
    except Exception as error:
        raise damaged_file(file, expected, describe_damage(error), part) from error


def read_lines(file: Path, part: str = "") -> list[str]:
    """The lines of a listing."""
    with refuse_damage(file, "a text of file names and classes", part):
        return read_regular(file, _LONGEST_LISTING).decode().splitlines()


def verify_dataset(
    part: OnDisk,
    folder: Path,
    train: Images,
    test: Images,
    classes: tuple[str, ...],
    expected: tuple[Expected, Expected],
) -> Dataset:
    """The dataset, once both parts have the labels and counts that it is known to have.

    Parameters
    ----------
    part
        The component that read it.
    folder
        Where it lies, for refusals.
    train, test
        What was read.
    classes
        The names of the classes.
    expected
        The known sizes of the training and of the test set.
    """
    parts = (("train", train, expected[0]), ("test", test, expected[1]))
    for name, images, count in parts:
        where = f"{folder}: {part.folder}/{name}"
        check_class_counts(where, images.y, len(classes), count, part.remedy)
    return Dataset(part.folder, train, test, classes)


def check_class_counts(
    where: str,
    labels: Ints,
    classes: int,
    expected: Expected,
    remedy: str,
) -> None:
    """Refuse labels outside the classes, and totals or class counts that differ from the known
    ones.

    Parameters
    ----------
    where
        What the refusal calls the images.
    labels
        Their labels.
    classes
        How many classes there are.
    expected
        The known size.
    remedy
        How to come by the right files.
    """
    check_bounds(f"{where}: labels lie", labels, 0, classes, remedy=remedy)
    # The total first: "one image short" says more than the class that it is missing from.
    total = expected if isinstance(expected, int) else sum(expected)
    if len(labels) != total:
        raise DataError(broken(f"{where} has {total} images", len(labels), remedy))
    if isinstance(expected, int):
        return
    counts = np.bincount(labels, minlength=classes)
    other = np.flatnonzero(counts != np.asarray(expected))
    if len(other):
        c = int(other[0])
        rule = f"{where} has {expected[c]} images of class {c}"
        raise DataError(broken(rule, int(counts[c]), remedy))


def hold_out(
    labels: Ints,
    count: int,
    rng: Generator,
) -> tuple[Ints, Ints]:
    """Positions (kept, held out), stratified by largest remainder, both in the original order.

    Parameters
    ----------
    labels
        The classes of all samples.
    count
        How many to hold out.
    rng
        Draws them, class by class.
    """
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    sizes = np.array([len(positions) for positions in members])
    exact = sizes * (count / len(labels))
    quota = np.floor(exact).astype(np.int64)
    # A stable order of the remainders, so that ties go to the lower class on every platform.
    most_wronged = np.argsort(quota - exact, kind="stable")
    missing = count - quota.sum()
    quota[most_wronged[:missing]] += 1
    # A mask brings both halves back into the original order.
    out = np.zeros(len(labels), dtype=bool)
    for positions, wanted in zip(members, quota, strict=True):
        drawn = rng.permutation(positions)[:wanted]
        out[drawn] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def split_off_test(
    images: Images,
    test_fraction: float,
    seed: int,
    by_site: bool = False,
) -> tuple[Images, Images]:
    """A stratified split of images that come without a test set, into (train, test).

    Parameters
    ----------
    images
        All of them.
    test_fraction
        The share that becomes the test set.
    seed
        Decides which ones.
    by_site
        Take them from each site in proportion, and leave each at least one image.
    """
    count = round(test_fraction * len(images))
    rng = np.random.default_rng(seed)
    if not by_site:
        kept, held_out = hold_out(images.y, count, rng)
        return images.take(kept), images.take(held_out)
    assert images.groups is not None, "images by site have sites"
    place = spread_places(images.y, images.groups, rng)
    counts = apportion_total(count, np.bincount(images.y))
    held = place < counts[images.y]
    return images.take(np.flatnonzero(~held)), images.take(np.flatnonzero(held))
