"""What the tests of the readers share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def picture() -> Callable[[Path, Pixels], Path]:
    """Writes pixels as an image file, with the folders above it."""

    def write(file: Path, pixels: Pixels) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
        return file

    return write
