"""The arrays of this room, by what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Bools as Bools, Floats as Floats, Ints as Ints

Pixels = NDArray[np.uint8]
"""Images, (N, height, width, channels), or what images are made of."""
Strings = NDArray[np.str_]
"""Names, of samples or of what they come from."""
