"""Datasets that need no files: scikit-learn's digits, and made-up images of any number and size."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from rayfl.component import Count, Natural, NonNegative, component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.on_disk import hold_out

_DIGITS_TEST = 360
# Part of the dataset: another seed would be another test set, and no longer comparable.
_DIGITS_SEED = 1998
_CHUNK_VALUES = 1 << 24


@component
class Digits:
    """The 1,797 handwritten digits inside scikit-learn (8x8 grey; Alpaydin and Kaynak 1998), split
    once for all."""

    def load(self, root: Path) -> Dataset:
        rows = np.loadtxt(_find_digits(), delimiter=",")
        # The grey levels run from 0 to 16: stretched, so that 255 is white as in every other
        # dataset.
        levels = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16))
        x = levels.astype(np.uint8)[..., None]
        y = rows[:, -1].astype(np.int64)
        rng = np.random.default_rng(_DIGITS_SEED)
        train, test = hold_out(y, _DIGITS_TEST, rng)
        return Dataset(
            name="digits",
            train=Images(x[train], y[train]),
            test=Images(x[test], y[test]),
            classes=tuple("0123456789"),
        )


def _find_digits() -> Path:
    """Its file inside scikit-learn, whose import would take longer than all that is done with
    it."""
    package = find_spec("sklearn")
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return path
    raise DataError(broken("digits lie inside scikit-learn", "none", "pip install scikit-learn"))


@component
class Blobs:
    """Images that are one random pattern a class plus Gaussian noise of standard deviation `spread`
    (white is 1).

    Classes are equally frequent up to one image. Small spreads are separable, large ones are not.
    """

    samples: Count = 1000
    test_samples: Count = 200
    classes: Count = 10
    side: Count = 8
    channels: Count = 1
    spread: NonNegative = 0.15
    seed: Natural = 0

    def load(self, root: Path) -> Dataset:
        rng = np.random.default_rng(self.seed)
        pixels = self.side * self.side * self.channels
        # Away from black and white, so that clipping hardly bends the noise.
        patterns = rng.uniform(0.2, 0.8, (self.classes, pixels)).astype(np.float32)
        train = self._draw(patterns, self.samples, rng)
        test = self._draw(patterns, self.test_samples, rng)
        names = tuple(f"class {c}" for c in range(self.classes))
        return Dataset("blobs", train, test, names)

    def _draw(
        self,
        patterns: NDArray[np.float32],
        count: int,
        rng: Generator,
    ) -> Images:
        balanced = np.arange(count) % self.classes
        labels: Ints = rng.permutation(balanced)
        pixels = patterns.shape[1]
        out: Pixels = np.empty((count, pixels), dtype=np.uint8)
        # In pieces, so that a million large images never exist as floats.
        rows = max(1, _CHUNK_VALUES // pixels)
        for start in range(0, count, rows):
            part = patterns[labels[start : start + rows]]
            part += self.spread * rng.standard_normal(part.shape, dtype=np.float32)
            part *= 255
            np.rint(part, out=part)
            out[start : start + rows] = np.clip(part, 0, 255, out=part)
        shape = (count, self.side, self.side, self.channels)
        return Images(out.reshape(shape), labels)
