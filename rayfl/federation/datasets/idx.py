"""MNIST and Fashion-MNIST in the IDX format, raw or gzipped (LeCun et al. 1998; Xiao et al.
2017)."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from rayfl.component import component
from rayfl.federation.arrays import Pixels
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.on_disk import (
    Expected,
    OnDisk,
    damaged_file,
    require_file,
    verify_dataset,
)

# The type code of the format; the other ones (shorts, floats) never occur in these datasets.
_UNSIGNED_BYTES = 0x08


@component
class Mnist(OnDisk):
    """Handwritten digits, 28x28 grey: 60,000 and 10,000."""

    folder: ClassVar[str] = "mnist"
    form: ClassVar[str] = "the four IDX files (train-images-idx3-ubyte and so on, raw or .gz)"
    classes: ClassVar[tuple[str, ...]] = tuple("0123456789")
    # The class sizes differ, so they tell a shuffled or mixed-up label file from the real one.
    expected: ClassVar[tuple[Expected, Expected]] = (
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    )

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        train = self._read_part(folder, "train")
        test = self._read_part(folder, "t10k")
        return verify_dataset(self, folder, train, test, self.classes, self.expected)

    def _read_part(self, folder: Path, prefix: str) -> Images:
        images = require_file(self, folder, *_list_spellings(f"{prefix}-images", "idx3-ubyte"))
        pixels = read_idx(images, 3, self.folder)
        listing = require_file(self, folder, *_list_spellings(f"{prefix}-labels", "idx1-ubyte"))
        labels = read_idx(listing, 1, self.folder)
        return Images(pixels[..., None], labels.astype(np.int64))


@component
class FashionMnist(Mnist):
    """Articles of clothing, 28x28 grey: 60,000 and 10,000, equally many of each class."""

    folder: ClassVar[str] = "fashion-mnist"
    classes: ClassVar[tuple[str, ...]] = (
        "t-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    )
    expected: ClassVar[tuple[Expected, Expected]] = ((6000,) * 10, (1000,) * 10)


def _list_spellings(stem: str, kind: str) -> tuple[str, ...]:
    """The names under which an IDX file goes around."""
    plain = (f"{stem}-{kind}", f"{stem}.{kind}")
    return tuple(name + suffix for name in plain for suffix in ("", ".gz"))


def read_idx(
    file: Path,
    dimensions: int,
    dataset: str = "",
) -> Pixels:
    """The array of unsigned bytes in an IDX file.

    Parameters
    ----------
    file
        Raw, or with the suffix `.gz`.
    dimensions
        How many the array must have.
    dataset
        The name under which `rayfl data get` fetches a damaged file again.
    """
    content = _read_bytes(file, dataset)
    magic = bytes((0, 0, _UNSIGNED_BYTES, dimensions))
    header = 4 + 4 * dimensions
    if content[:4] != magic or len(content) < header:
        rule = f"IDX of {dimensions} dimensions (first bytes {magic.hex()})"
        raise damaged_file(file, rule, content[:4].hex(), dataset)
    sizes = np.frombuffer(content[4:header], dtype=">u4")
    shape = tuple(map(int, sizes))
    # Counted in 64 bits: a damaged header may claim more than 2^31 pixels.
    due = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != due:
        raise damaged_file(file, f"{due} bytes long, by its header", len(content), dataset)
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _read_bytes(file: Path, dataset: str) -> bytes:
    """The bytes of a file, gunzipped if need be."""
    try:
        if file.suffix == ".gz":
            with gzip.open(file) as stream:
                return stream.read()
        return file.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged_file(file, "a whole gzip file", error, dataset) from error
