"""Tiny ImageNet (Le and Yang 2015): 200 classes at 64x64; its labelled validation images serve as
the test set."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.image_files import decode_images, is_image
from rayfl.federation.datasets.on_disk import (
    Expected,
    OnDisk,
    damaged_file,
    read_lines,
    require_file,
    verify_dataset,
)

_Listed = list[tuple[Path, int]]
"""Files and their classes."""


@component
class TinyImageNet(OnDisk):
    """100,000 training and 10,000 validation images, in the published folders. Grey ones become
    colour."""

    folder: ClassVar[str] = "tiny-imagenet"
    holds: ClassVar[int] = 500_000_000
    form: ClassVar[str] = "the folder tiny-imagenet-200 with wnids.txt, train and val"
    expected: ClassVar[tuple[Expected, Expected]] = ((500,) * 200, (50,) * 200)

    def load(self, root: Path) -> Dataset:
        listing = require_file(self, self.where(root), "wnids.txt")
        base = listing.parent
        # By id, as image folders are numbered everywhere, not in the order of wnids.txt.
        ids = sorted(read_lines(listing, self.folder))
        train = _read_listed(_list_training_images(base / "train", ids))
        test = _read_listed(_read_annotations(base / "val", ids))
        titles = _read_class_titles(base, ids)
        return verify_dataset(self, base, train, test, titles, self.expected)


def _list_training_images(folder: Path, ids: list[str]) -> _Listed:
    """The images of every class with its number."""
    listed = []
    for c, wnid in enumerate(ids):
        entries = (folder / wnid).rglob("*")
        # The boxes' text files beside the images are left alone.
        files = sorted(filter(is_image, entries))
        listed += [(file, c) for file in files]
    return listed


def _read_listed(listed: _Listed) -> Images:
    files = [file for file, _ in listed]
    labels = [label for _, label in listed]
    pixels = decode_images(files, 3, None)
    return Images(pixels, np.array(labels, dtype=np.int64))


def _read_annotations(folder: Path, ids: list[str]) -> _Listed:
    """What val_annotations.txt says: a file, its class, and a box that is of no use here."""
    number = {wnid: c for c, wnid in enumerate(ids)}
    listing = folder / "val_annotations.txt"
    if not listing.is_file():
        rule = f"{listing} must say the validation images' classes"
        raise DataError(broken(rule, "no such file"))
    listed = []
    for row, line in enumerate(read_lines(listing, "tiny-imagenet"), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in number:
            rule = "lines of file and known class, parted by tabs"
            raise damaged_file(listing, rule, f"line {row}: {line!r}")
        listed.append((folder / "images" / name, number[wnid]))
    return listed


def _read_class_titles(base: Path, ids: list[str]) -> tuple[str, ...]:
    """The first word of words.txt for each class, or its id."""
    words = base / "words.txt"
    # The names are a courtesy; the labels do not hang on them.
    if not words.is_file():
        return tuple(ids)
    titles = {}
    for line in read_lines(words):
        wnid, _, text = line.partition("\t")
        titles[wnid] = text.split(",")[0]
    return tuple(titles.get(wnid, wnid) for wnid in ids)
