"""Street View House Numbers (Netzer et al. 2011): 32x32 digits in MATLAB files, where the digit 0
is label 10."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from rayfl.component import component
from rayfl.federation.bounds import check_bounds, check_whole
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.on_disk import (
    Expected,
    OnDisk,
    damaged_file,
    refuse_damage,
    require_file,
    verify_dataset,
)
from rayfl.federation.decoding import silence_warnings
from rayfl.regular_files import read_regular

_MAT_HEADER = 128
_COMPRESSED = 15


@component
class Svhn(OnDisk):
    """73,257 training and 26,032 test digits; the `extra` images are not used."""

    folder: ClassVar[str] = "svhn"
    form: ClassVar[str] = "train_32x32.mat and test_32x32.mat"
    holds: ClassVar[int] = 305_000_000
    classes: ClassVar[tuple[str, ...]] = tuple("0123456789")
    expected: ClassVar[tuple[Expected, Expected]] = (
        (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        26032,
    )

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        train = _read_mat(require_file(self, folder, "train_32x32.mat"), self.most_bytes)
        test = _read_mat(require_file(self, folder, "test_32x32.mat"), self.most_bytes)
        return verify_dataset(self, folder, train, test, self.classes, self.expected)


def inflate_mat(content: bytes, most_bytes: int) -> bytes:
    """A .mat file of level 5 with its elements unpacked, which are not more than was agreed on.

    Parameters
    ----------
    content
        The file; of another level it is returned as it is.
    most_bytes
        How much may come out.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[_MAT_HEADER - 2 : _MAT_HEADER])
    if order is None:
        return content
    parts = [content[:_MAT_HEADER]]
    left = most_bytes
    at = _MAT_HEADER
    while at + 8 <= len(content):
        kind, size = struct.unpack(f"{order}II", content[at : at + 8])
        part = content[at : at + 8 + size]
        if kind == _COMPRESSED:
            # No more comes out than is still allowed, and one byte that tells.
            part = zlib.decompressobj().decompress(part[8:], left + 1)
        left -= len(part)
        if left < 0:
            raise ValueError(f"more than {most_bytes:,} bytes, unpacked")
        parts.append(part)
        at += 8 + size
    return b"".join([*parts, content[at:]])


def _read_mat(file: Path, most_bytes: int) -> Images:
    """X is (height, width, channel, N), y is (N, 1) in 1..10."""
    from scipy.io import loadmat

    with refuse_damage(file, "a whole .mat file with X and y", "svhn"), silence_warnings():
        plain = inflate_mat(read_regular(file, most_bytes), most_bytes)
        # Named variables only: the files carry nothing else, and a stranger might.
        content = loadmat(io.BytesIO(plain), variable_names=("X", "y"))
        x = np.asarray(content["X"])
        labels = np.asarray(content["y"]).reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] != len(labels):
        rule = "uint8 X (height, width, channel, N) with N labels"
        raise damaged_file(file, rule, f"{x.dtype} {x.shape}, {len(labels)}", "svhn")
    y = check_whole(f"{file}: y", labels)
    # A 0 in the file would pass for the digit 0, which is written 10.
    remedy = "Remove it and fetch it again with `rayfl data get svhn`"
    check_bounds(f"{file}: labels lie", y, 1, 11, remedy=remedy)
    pixels = np.ascontiguousarray(x.transpose(3, 0, 1, 2))
    # MATLAB counts from one, so the class of the digit 0 got the number 10.
    return Images(pixels, y % 10)
