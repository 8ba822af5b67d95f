"""MNIST and Fashion-MNIST in the IDX format, raw or gzipped (LeCun et al. 1998; Xiao et al.
2017)."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

import numpy as np

from rayfl.component import component
from rayfl.federation.arrays import Pixels
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.on_disk import (
    Expected,
    OnDisk,
    damaged_file,
    refuse_damage,
    require_file,
    verify_dataset,
)
from rayfl.regular_files import open_regular

# The type code of the format; the other ones (shorts, floats) never occur in these datasets.
_UNSIGNED_BYTES = 0x08
_MOST_BYTES = 1 << 30


@component
class Mnist(OnDisk):
    """Handwritten digits, 28x28 grey: 60,000 and 10,000."""

    folder: ClassVar[str] = "mnist"
    form: ClassVar[str] = "the four IDX files (train-images-idx3-ubyte and so on, raw or .gz)"
    holds: ClassVar[int] = 54_950_048
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
        pixels = read_idx(images, 3, self.folder, self.most_bytes)
        listing = require_file(self, folder, *_list_spellings(f"{prefix}-labels", "idx1-ubyte"))
        labels = read_idx(listing, 1, self.folder, self.most_bytes)
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
    most_bytes: int = _MOST_BYTES,
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
    most_bytes
        How large an array may be.
    """
    kind = "gzip" if file.suffix == ".gz" else "IDX"
    with refuse_damage(file, f"a whole {kind} file", dataset), _open_unpacked(file) as stream:
        header = stream.read(4 + 4 * dimensions)
        shape = _parse_shape(file, header, dimensions, dataset)
        # Counted in whole numbers of any size: a damaged header may claim more than 2^63 pixels.
        due = math.prod(shape)
        if due > most_bytes:
            rule = f"an array of at most {most_bytes:,} bytes"
            raise damaged_file(file, rule, f"a header that claims {due:,}", dataset)
        # One more, to see that there is none.
        content = stream.read(due + 1)
    if len(content) != due:
        whole = len(header) + due
        found = f"{len(header) + len(content)}{' at least' if len(content) > due else ''}"
        raise damaged_file(file, f"{whole} bytes long, by its header", found, dataset)
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _parse_shape(
    file: Path,
    header: bytes,
    dimensions: int,
    dataset: str,
) -> tuple[int, ...]:
    """The sizes that a header claims."""
    magic = bytes((0, 0, _UNSIGNED_BYTES, dimensions))
    if header[:4] != magic or len(header) < 4 + 4 * dimensions:
        rule = f"IDX of {dimensions} dimensions (first bytes {magic.hex()})"
        raise damaged_file(file, rule, header[:4].hex(), dataset)
    return tuple(map(int, np.frombuffer(header[4:], dtype=">u4")))


@contextmanager
def _open_unpacked(file: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, gunzipped if need be."""
    with open_regular(file) as packed:
        if file.suffix == ".gz":
            with gzip.open(packed) as stream:
                yield cast(BinaryIO, stream)
        else:
            yield packed
