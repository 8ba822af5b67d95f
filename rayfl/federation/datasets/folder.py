"""Any folder of class folders, with `train` and `test` (or `val`) above them or else a seeded
split; with a rule for sites, any folder of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from rayfl.component import Count, Natural, component, neutral
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Bools, Strings
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets.image_files import is_image
from rayfl.federation.datasets.on_disk import OnDisk
from rayfl.federation.datasets.own_images import Reading, Records
from rayfl.federation.datasets.sites import SiteRule, find_provenance, number_texts

_TEST_FOLDERS = ("test", "val", "valid", "validation")


@component
class Folder(OnDisk):
    """Images at `[train|test]/CLASS/...`, scaled to squares of `side` pixels if they differ in
    size.

    channels  1 for grey, 3 for colour; by default all are coloured as soon as one is
    sites     where an image is from: `parent`, `{part: 0}`, `{table: FILE}` or `{pattern: REGEX}`;
              the labels are then taken for what somebody wrote (`labels: given`)
    truth     the column of the table that has true labels, for the evaluation alone
    damaged   `skip` leaves damaged images out and lists them, `refuse` ends with the first
    """

    side: Count | None = None
    channels: Literal[1, 3] | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: Natural = 0
    sites: Annotated[SiteRule, neutral(None)] = None
    truth: Annotated[str | None, neutral(None)] = None
    damaged: Annotated[Literal["refuse", "skip"], neutral("refuse")] = "refuse"

    folder: ClassVar[str] = "folder"
    form: ClassVar[str] = "a folder a class, or train and test with such folders,"
    sourced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.sites is not None and self.sites.column is not None:
            rule = "sites.column is a column of Parquet files with images (data: parquet)"
            raise ValueError(broken(rule, "a folder of image files", "Use table, part or pattern"))
        if self.truth is not None and (self.sites is None or self.sites.table is None):
            rule = "truth is a column of the table that sites names"
            raise ValueError(broken(rule, repr(self.truth), "Write sites: {table: FILE}"))

    @property
    def labels_are_given(self) -> bool:
        return self.sites is not None

    @property
    def remedy(self) -> str:
        fetched = f"`rayfl data get {self.folder} --from ARCHIVE`"
        return f"Set data.path to your images, which lie in a folder a class; or run {fetched}"

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        files = _list_files(folder, flat=self.sites is not None)
        if not len(files.names):
            rule = f"{folder} must hold folders of images, one a class"
            raise DataError(broken(rule, "none", self.remedy))
        records = self._describe(folder, files)
        train, test = records.take(~files.tested), records.take(files.tested)
        classes = _name_classes(folder, train, test)
        skip = self.damaged == "skip"
        how = Reading(self.side, self.channels, self.test_fraction, self.seed, skip)
        return how.build(folder.name, records, files.tested, classes)

    def _describe(self, folder: Path, files: _Files) -> Records:
        """What is known of every file: label, site, truth."""
        # Without a rule of sites, the first folder is the class.
        labels = np.array([Path(place).parts[0] for place in files.places], dtype=np.str_)
        sources = [folder / name for name in files.names.tolist()]
        places = [str(source) for source in sources]
        if self.sites is None:
            return Records(sources, places, files.names, labels)
        known = find_provenance(self.sites, folder, files.names, files.places, self.truth)
        if known.labels is None:
            _refuse_without_class(folder, files)
        own = labels if known.labels is None else known.labels
        return Records(sources, places, files.names, own, known.sites, known.truth)


@dataclass(frozen=True)
class _Files:
    """Image files: paths below the dataset's folder, and below `train` or `test` where there are
    such, and which are test images."""

    names: Strings
    places: Strings
    tested: Bools


def _list_files(folder: Path, flat: bool) -> _Files:
    """All images, in the order of their paths; with `flat`, those without a class folder too."""
    train = folder / "train"
    parts = [train, _find_test_folder(folder)] if train.is_dir() else [folder]
    names: list[str] = []
    places: list[str] = []
    sizes = []
    for part in parts:
        found = [file.relative_to(part) for file in sorted(filter(is_image, part.rglob("*")))]
        seen = [place for place in found if _is_visible(place, flat)]
        places += [place.as_posix() for place in seen]
        names += [(part / place).relative_to(folder).as_posix() for place in seen]
        sizes.append(len(seen))
    tested = np.repeat(np.arange(len(parts)) > 0, sizes)
    return _Files(np.array(names, dtype=np.str_), np.array(places, dtype=np.str_), tested)


def _is_visible(place: Path, flat: bool) -> bool:
    """Whether a file is an image of the dataset, by its path."""
    folders = place.parts[:-1]
    if flat:
        return not any(name.startswith(".") for name in folders)
    return bool(folders) and not folders[0].startswith(".")


def _find_test_folder(folder: Path) -> Path:
    """The folder beside `train` that holds the test set, under any of its names."""
    for name in _TEST_FOLDERS:
        if (folder / name).is_dir():
            return folder / name
    train = folder / "train"
    rule = f"beside {train} there is one of {', '.join(_TEST_FOLDERS)}"
    raise DataError(broken(rule, "none", f"Name {train} as `path` for a seeded split"))


def _refuse_without_class(folder: Path, files: _Files) -> None:
    for name, place in zip(files.names.tolist(), files.places.tolist(), strict=True):
        if "/" not in place:
            rule = f"{folder}: an image lies in the folder of its class"
            remedy = "Move it, or let a table's column 'label' say its class"
            raise DataError(broken(rule, f"'{name}'", remedy))


def _name_classes(
    folder: Path,
    train: Records,
    test: Records,
) -> tuple[str, ...]:
    """The classes in alphabetical order, as everybody numbers them."""
    known = [train.labels] if train.truth is None else [train.labels, train.truth]
    if not len(train.labels):
        rule = f"{folder} must hold training images"
        raise DataError(broken(rule, "none"))
    classes = number_texts(known)
    # A class that only the test set has could never be learnt, and would shift the numbers of the
    # others.
    strangers = set(test.labels.tolist()) - set(classes)
    if test.truth is not None:
        strangers |= set(test.truth.tolist()) - set(classes)
    if strangers:
        rule = f"the classes of {_find_test_folder(folder)} are those of train"
        raise DataError(broken(rule, ", ".join(sorted(strangers))))
    return classes
