"""Tiny ImageNet (Le and Yang 2015): 200 classes at 64x64; its labelled validation images serve as
the test set."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.files import (
    Expected,
    OnDisk,
    damaged_file,
    require_file,
    verify_dataset,
)
from rayfl.federation.datasets.images import decode_images, is_image


@component
class TinyImageNet(OnDisk):
    """100,000 training and 10,000 validation images, in the published folders. Grey ones become
    colour."""

    folder: ClassVar[str] = "tiny-imagenet"
    form: ClassVar[str] = "the folder tiny-imagenet-200 with wnids.txt, train and val"
    expected: ClassVar[tuple[Expected, Expected]] = ((500,) * 200, (50,) * 200)

    def load(self, root: Path) -> Dataset:
        listing = require_file(self, self.where(root), "wnids.txt")
        base = listing.parent
        # By id, as image folders are numbered everywhere, not in the order of wnids.txt.
        ids = sorted(listing.read_text().split())
        train = [
            (file, c)
            for c, wnid in enumerate(ids)
            for file in _list_pictures(base / "train" / wnid)
        ]
        images = _read_listed(train), _read_listed(_read_annotations(base / "val", ids))
        return verify_dataset(self, base, *images, _read_class_titles(base, ids), self.expected)


def _list_pictures(folder: Path) -> list[Path]:
    """The images of a class; the boxes' text files beside them are left alone."""
    return sorted(filter(is_image, folder.rglob("*")))


def _read_listed(listed: list[tuple[Path, int]]) -> Images:
    pixels = decode_images([file for file, _ in listed], 3, None)
    return Images(pixels, np.array([c for _, c in listed], dtype=np.int64))


def _read_annotations(folder: Path, ids: list[str]) -> list[tuple[Path, int]]:
    """What val_annotations.txt says: a file, its class, and a box that is of no use here."""
    number = {wnid: c for c, wnid in enumerate(ids)}
    listing = folder / "val_annotations.txt"
    if not listing.is_file():
        raise DataError(
            broken(f"{listing} must say the validation images' classes", "no such file")
        )
    found = []
    for row, line in enumerate(listing.read_text().splitlines()):
        name, wnid = (*line.split("\t"), "", "")[:2]
        if wnid not in number:
            raise damaged_file(
                listing,
                "lines of file and known class, parted by tabs",
                f"line {row + 1}: {line!r}",
            )
        found.append((folder / "images" / name, number[wnid]))
    return found


def _read_class_titles(base: Path, ids: list[str]) -> tuple[str, ...]:
    """The first word of words.txt for each class, or its id."""
    words = base / "words.txt"
    lines = words.read_text().splitlines() if words.is_file() else []
    known = {wnid: text.split(",")[0] for wnid, _, text in (line.partition("\t") for line in lines)}
    return tuple(known.get(wnid, wnid) for wnid in ids)
