"""Mini-WebVision (Li et al. 2017; Jiang et al. 2018): the first 50 classes of WebVision 1.0's
Google images, labelled by the search that found them, with the validation images of these classes
as the test set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from rayfl.component import Count, Natural, component, neutral
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.image_files import decode_images
from rayfl.federation.datasets.on_disk import (
    Expected,
    OnDisk,
    damaged_file,
    read_lines,
    require_file,
    verify_dataset,
)

_CLASSES = 50
# Those of the whole WebVision, whose lists the files are.
_ALL_CLASSES = 1000
_MOST_DIGITS = 9


@component
class WebVision(OnDisk):
    """65,944 and 2,500 images, scaled and cut to squares of `side` pixels. About a fifth of the
    labels are wrong.

    `margin` pixels stay around the square when the shorter edge is scaled: with 1, validation
    images are those of FedRN's release (shorter edge 33, middle 32). Its training crops are taken
    out of the whole rectangle; here they come out of the middle square, because images of one
    dataset lie in one array. What lies beside the middle of a wide photo is never seen."""

    side: Count = 32
    margin: Annotated[Natural, neutral(0)] = 0

    folder: ClassVar[str] = "webvision"
    holds: ClassVar[int] = 20_000_000_000
    form: ClassVar[str] = "info, google and val_images_256"
    sourced: ClassVar[bool] = False
    expected: ClassVar[tuple[Expected, Expected]] = (65944, (50,) * _CLASSES)

    def load(self, root: Path) -> Dataset:
        listing = require_file(self, self.where(root), "train_filelist_google.txt")
        info = listing.parent
        base = info.parent
        train = self._read(base, listing)
        test_listing = require_file(self, info, "val_filelist.txt")
        test = self._read(base / "val_images_256", test_listing)
        titles = _read_class_titles(info / "synsets.txt")
        return verify_dataset(self, base, train, test, titles, self.expected)

    def _read(self, folder: Path, listing: Path) -> Images:
        files = []
        labels = []
        for name, label in _parse_entries(listing, self.folder):
            if label < _CLASSES:
                files.append(folder / name)
                labels.append(label)
        pixels = decode_images(files, 3, self.side, margin=self.margin)
        return Images(pixels, np.array(labels, dtype=np.int64))


def _parse_entries(listing: Path, dataset: str) -> Iterator[tuple[str, int]]:
    """(file, label) of each line of a list."""
    for row, line in enumerate(read_lines(listing, dataset), start=1):
        # From the right: names of files may contain blanks.
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdecimal() or len(label) > _MOST_DIGITS:
            raise damaged_file(listing, "lines of file and label", f"line {row}: {line!r}", dataset)
        if int(label) >= _ALL_CLASSES:
            rule = f"lines whose label lies in [0, {_ALL_CLASSES})"
            raise damaged_file(listing, rule, f"line {row}: {line!r}", dataset)
        yield name, int(label)


def _read_class_titles(file: Path) -> tuple[str, ...]:
    """The first name of each synset, or the class's number."""
    # The names are a courtesy; the labels do not hang on them.
    lines = read_lines(file)[:_CLASSES] if file.is_file() else []
    if len(lines) < _CLASSES:
        return tuple(map(str, range(_CLASSES)))
    synsets = [line.partition(" ")[2] for line in lines]
    return tuple(names.split(",")[0] for names in synsets)
