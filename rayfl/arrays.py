"""The arrays that travel between rooms, by what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""The weights of a network, or anything shaped like them: flat, in single precision."""
Images = NDArray[np.uint8]
"""Raw images (N, height, width, channels)."""
Labels = NDArray[np.int64]
"""One class a sample."""
Floats = NDArray[np.float64]
"""Numbers in double precision, of any shape."""
Bools = NDArray[np.bool_]
"""A mask."""
Ints = NDArray[np.int64]
"""Whole numbers, of any shape."""
Features = NDArray[np.float32]
"""What a frozen encoder sees: a row an image, or vectors that span such rows."""
