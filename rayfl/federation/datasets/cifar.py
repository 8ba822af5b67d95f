"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in the forms that people have: binary, Python pickles,
Parquet, and, for CIFAR-10, one PNG a batch with an image per row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.array_pickles import read_pickle
from rayfl.federation.datasets.cifar_names import CIFAR10, CIFAR100
from rayfl.federation.datasets.image_files import decode_image
from rayfl.federation.datasets.on_disk import (
    Expected,
    OnDisk,
    damaged_file,
    find_file,
    refuse_damage,
    require_file,
    verify_dataset,
)
from rayfl.federation.datasets.parquet import list_split_files, read_parquet
from rayfl.regular_files import read_regular

_SIDE = 32
_BYTES = 3 * _SIDE * _SIDE


@component
class Cifar10(OnDisk):
    """Ten classes of 32x32 colour photographs: 50,000 and 10,000, in the publisher's order."""

    folder: ClassVar[str] = "cifar10"
    form: ClassVar[str] = (
        "data_batch_1 .. 5 and test_batch (pickles or .bin) or train-*.parquet and test-*.parquet"
    )
    classes: ClassVar[tuple[str, ...]] = CIFAR10
    expected: ClassVar[tuple[Expected, Expected]] = ((5000,) * 10, (1000,) * 10)
    train_files: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{i}" for i in range(1, 6))
    test_files: ClassVar[tuple[str, ...]] = ("test_batch",)
    holds: ClassVar[int] = 186_000_000
    label_bytes: ClassVar[int] = 1
    label_key: ClassVar[str] = "labels"
    label_columns: ClassVar[tuple[str, ...]] = ("label",)

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        read = self.reader(folder)
        train = read(self, folder, self.train_files)
        test = read(self, folder, self.test_files)
        return verify_dataset(self, folder, train, test, self.classes, self.expected)

    def reader(self, folder: Path) -> Callable[[Cifar10, Path, Sequence[str]], Images]:
        """How to read the form that is in `folder`."""
        first = self.train_files[0]
        # The quickest form first, in case there are several.
        forms = {
            f"{first}.bin": _read_binary,
            first: _read_pickles,
            f"{first}.png": _read_pictures,
        }
        for marker, read in forms.items():
            if find_file(folder, marker):
                return read
        if list_split_files(folder, "train"):
            return _read_hub_form
        raise DataError(broken(f"{folder} must hold {self.form}", "none of them", self.remedy))


@component
class Cifar100(Cifar10):
    """A hundred (fine) classes of 32x32 colour photographs: 50,000 and 10,000, in the publisher's
    order."""

    folder: ClassVar[str] = "cifar100"
    form: ClassVar[str] = (
        "train and test (Python pickles or .bin) or train-*.parquet and test-*.parquet"
    )
    classes: ClassVar[tuple[str, ...]] = CIFAR100
    expected: ClassVar[tuple[Expected, Expected]] = ((500,) * 100, (100,) * 100)
    train_files: ClassVar[tuple[str, ...]] = ("train",)
    test_files: ClassVar[tuple[str, ...]] = ("test",)
    label_bytes: ClassVar[int] = 2
    label_key: ClassVar[str] = "fine_labels"
    label_columns: ClassVar[tuple[str, ...]] = ("fine_label", "label")


def _read_binary(
    part: Cifar10,
    folder: Path,
    names: Sequence[str],
) -> Images:
    """Records of label bytes (the fine label comes last), then the red, green and blue planes."""
    record = part.label_bytes + _BYTES
    rows = []
    labels = []
    for name in names:
        file = require_file(part, folder, f"{name}.bin")
        with refuse_damage(file, "a batch of records", part.folder):
            content = read_regular(file, part.most_bytes)
        if len(content) % record:
            rule = f"a multiple of {record} bytes long"
            raise damaged_file(file, rule, len(content), part.folder)
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
        rows.append(records[:, part.label_bytes :])
        labels.append(records[:, part.label_bytes - 1])
    return Images(_interleave_planes(rows), np.concatenate(labels).astype(np.int64))


def _read_pickles(
    part: Cifar10,
    folder: Path,
    names: Sequence[str],
) -> Images:
    """Mappings with `data`, one row of planes an image, and a list of labels."""
    rows = []
    labels = []
    for name in names:
        file = require_file(part, folder, name)
        batch_rows, batch_labels = _read_pickled_batch(part, file)
        rows.append(batch_rows)
        labels.append(batch_labels)
    return Images(_interleave_planes(rows), np.concatenate(labels))


def _read_pickled_batch(part: Cifar10, file: Path) -> tuple[Pixels, Ints]:
    batch = read_pickle(file, part.folder, part.most_bytes)
    with refuse_damage(file, "a batch of rows and labels", part.folder):
        rows = np.asarray(batch.get("data"))
        labels = np.asarray(batch.get(part.label_key, [])).reshape(-1)
    has_rows = rows.dtype == np.uint8 and rows.shape == (len(labels), _BYTES)
    if not has_rows or not np.issubdtype(labels.dtype, np.integer):
        rule = f"a batch of `data` uint8 (n, {_BYTES}) with n `{part.label_key}`"
        found = f"data {rows.dtype} {rows.shape} with {len(labels)} labels"
        raise damaged_file(file, rule, found, part.folder)
    return rows, labels.astype(np.int64)


def _read_pictures(
    part: Cifar10,
    folder: Path,
    names: Sequence[str],
) -> Images:
    """PNG batches of 1024 x n pixels, whose row i is image i; labels in a JSON list (whose file
    name is spelt so)."""
    pictures = []
    for name in names:
        file = require_file(part, folder, f"{name}.png")
        pictures.append(_read_picture_batch(file, part.folder))
    images = np.concatenate(pictures)
    split = "test" if tuple(names) == part.test_files else "train"
    listing = require_file(part, folder, f"{split}_lables.json")
    with refuse_damage(listing, "JSON with a list of labels", part.folder):
        content = read_regular(listing, part.most_bytes)
        labels = np.asarray(json.loads(content))
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
        rule = f"a list of {len(images)} labels"
        raise damaged_file(listing, rule, f"{labels.dtype} {labels.shape}", part.folder)
    return Images(images, labels.astype(np.int64))


def _read_picture_batch(file: Path, dataset: str) -> Pixels:
    strip = decode_image(file, channels=3)
    wide = strip.shape[1]
    if wide != _SIDE * _SIDE:
        raise damaged_file(file, f"a picture {_SIDE * _SIDE} pixels wide", wide, dataset)
    return strip.reshape(-1, _SIDE, _SIDE, 3)


def _read_hub_form(
    part: Cifar10,
    folder: Path,
    names: Sequence[str],
) -> Images:
    """The Parquet files of the Hugging Face Hub."""
    split = "test" if tuple(names) == part.test_files else "train"
    files = list_split_files(folder, split)
    images, _ = read_parquet(files, label_columns=part.label_columns)
    return images


def _interleave_planes(batches: Sequence[Pixels]) -> Pixels:
    """(n, planes) rows of several files as one (N, height, width, channel) array, without a second
    copy of all."""
    count = sum(map(len, batches))
    out = np.empty((count, _SIDE, _SIDE, 3), dtype=np.uint8)
    start = 0
    for rows in batches:
        stop = start + len(rows)
        planes = rows.reshape(-1, 3, _SIDE, _SIDE)
        # The planes are apart on disk; every reader downstream wants the channels of a pixel side
        # by side.
        out[start:stop] = planes.transpose(0, 2, 3, 1)
        start = stop
    return out


def compact_cifar10(part: Cifar10, folder: Path) -> None:
    """Turn CIFAR-10's encoded forms, slow to read, into the publisher's binary form; leave any
    other alone.

    Parameters
    ----------
    part
        The component that reads the folder.
    folder
        Where the files lie, and where the new ones go.
    """
    # CIFAR-100's binary form has coarse labels too, which would have to be invented.
    if part.label_bytes > 1:
        return
    read = part.reader(folder)
    if read not in (_read_pictures, _read_hub_form):
        return
    for names in (part.train_files, part.test_files):
        images = read(part, folder, names)
        planes = images.x.transpose(0, 3, 1, 2).reshape(len(images), -1)
        labels = images.y[:, None].astype(np.uint8)
        records = np.concatenate([labels, planes], axis=1)
        batches = np.array_split(records, len(names))
        for name, batch in zip(names, batches, strict=True):
            batch.tofile(folder / f"{name}.bin")
    for pattern in ("*.png", "*_lables.json", "*.parquet"):
        # Listed before the first of them goes.
        for file in list(folder.rglob(pattern)):
            file.unlink()
