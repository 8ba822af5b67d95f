"""The arrays of this room, by what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Pixels = NDArray[np.uint8]
"""Images, (N, height, width, channels), or what images are made of."""
Strings = NDArray[np.str_]
"""Names, of samples or of what they come from."""
