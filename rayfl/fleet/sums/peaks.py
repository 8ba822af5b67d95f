"""The largest absolute value of an update, exact wherever it is found."""

from __future__ import annotations

import math

from rayfl.fleet.sums.exact_sums import CHUNK
from rayfl.protocol import Vector


def find_peak(vector: Vector) -> float:
    """The largest absolute value; not finite if any element is not."""
    if not vector.size:
        return 0.0
    flat = vector.reshape(-1)  # an update that is only examined may be a matrix
    if len(flat) <= CHUNK:
        return _peak_of_chunk(flat)
    # Chunk by chunk, the second look finds the numbers in the cache.
    starts = range(0, len(flat), CHUNK)
    peaks = (_peak_of_chunk(flat[start : start + CHUNK]) for start in starts)
    return max(peaks, key=lambda found: math.inf if math.isnan(found) else found)


def _peak_of_chunk(flat: Vector) -> float:
    # Where they are is found in half the time that it takes to find what they are.
    return max(abs(float(flat[flat.argmax()])), abs(float(flat[flat.argmin()])))
