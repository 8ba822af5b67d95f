"""Street View House Numbers (Netzer et al. 2011): 32x32 digits in MATLAB files, where the digit 0
is label 10."""

from __future__ import annotations

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
    require_file,
    verify_dataset,
)


@component
class Svhn(OnDisk):
    """73,257 training and 26,032 test digits; the `extra` images are not used."""

    folder: ClassVar[str] = "svhn"
    form: ClassVar[str] = "train_32x32.mat and test_32x32.mat"
    classes: ClassVar[tuple[str, ...]] = tuple("0123456789")
    expected: ClassVar[tuple[Expected, Expected]] = (
        (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        26032,
    )

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        train = _read_mat(require_file(self, folder, "train_32x32.mat"))
        test = _read_mat(require_file(self, folder, "test_32x32.mat"))
        return verify_dataset(self, folder, train, test, self.classes, self.expected)


def _read_mat(file: Path) -> Images:
    """X is (height, width, channel, N), y is (N, 1) in 1..10."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        # Named variables only: the files carry nothing else, and a stranger might.
        content = loadmat(file, variable_names=("X", "y"))
        x = content["X"]
        labels = content["y"].reshape(-1)
    except (MatReadError, KeyError, ValueError, TypeError, OSError, EOFError) as error:
        raise damaged_file(file, "a whole .mat file with X and y", error, "svhn") from error
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
