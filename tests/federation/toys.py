"""A made-up dataset of any size, and settings that the tests of scenarios share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rayfl.component import component
from rayfl.federation.dataset import Dataset, Images

SYMMETRIC = {"name": "symmetric", "rate": 0.4}
SERVER = {"public": 0.1, "validation": {"per_class": 5}, "labelled": {"per_class": 10}}


@component
class Toy:
    """Balanced classes in random order; the pixel is the label, so that a noise model can be seen
    to look at it."""

    samples: int = 1000
    classes: int = 10

    def load(self, root: Path) -> Dataset:
        y = np.random.default_rng(0).permutation(np.arange(self.samples) % self.classes)
        images = Images(y.astype(np.uint8).reshape(-1, 1, 1, 1), y)
        return Dataset("toy", images, images, tuple(f"c{i}" for i in range(self.classes)))
