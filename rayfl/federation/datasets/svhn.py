"""Street View House Numbers (Netzer et al. 2011): 32x32 digits in MATLAB files, where the digit 0
is label 10."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from rayfl.component import component
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.files import (
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
        train, test = (
            _read_mat(require_file(self, folder, f"{name}_32x32.mat")) for name in ("train", "test")
        )
        return verify_dataset(self, folder, train, test, self.classes, self.expected)


def _read_mat(file: Path) -> Images:
    """X is (height, width, channel, N), y is (N, 1) in 1..10."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        # Named variables only: the files carry nothing else, and a stranger might.
        content = loadmat(file, variable_names=("X", "y"))
        x, y = content["X"], content["y"].astype(np.int64).reshape(-1)
    except (MatReadError, KeyError, ValueError, TypeError, OSError, EOFError) as error:
        raise damaged_file(file, "a whole .mat file with X and y", error, "svhn") from error
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] != len(y):
        raise damaged_file(
            file,
            "uint8 X (height, width, channel, N) with N labels",
            f"{x.dtype} {x.shape}, {len(y)}",
            "svhn",
        )
    # MATLAB counts from one, so the class of the digit 0 got the number 10.
    return Images(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), np.where(y == 10, 0, y))
