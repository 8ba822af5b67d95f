"""Sums that have the same bits in any order and any grouping.

Floating-point addition is not associative, so partial sums at 1, 2 or 8 actors would differ in the last bits. Here
every product `weight * value` is split over two fixed grids, coarse and fine, on which float64 additions are exact
(pre-rounding, as in J. Demmel and H. D. Nguyen, "Fast reproducible floating-point summation", ARITH 2013). Exact
additions commute, so grouping cannot show. The grids depend only on a bound of the whole sum, known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 15  # float64 scratch of 256 KiB stays in a core's second-level cache


@dataclass(frozen=True)
class Grid:
    """The two magic constants: adding and subtracting one rounds to its grid."""

    coarse: float
    fine: float

    @classmethod
    def bounded(cls, bound: float, terms: int) -> Grid:
        """Grids for sums of at most `terms` products whose absolute values add up to at most `bound`."""
        exponent = math.frexp(max(bound, 1e-300))[1] + 1
        # A remainder is at most half a coarse step, 2**(exponent - 52); `terms` of them must fit the fine grid.
        remainder = exponent - 52 + math.frexp(terms)[1] + 1
        return cls(math.ldexp(1.5, exponent + 1), math.ldexp(1.5, max(remainder + 1, -1000)))


def partial_sum(
    vectors: Mapping[int, NDArray[np.float32]], weights: Mapping[int, float], grid: Grid
) -> NDArray[np.float64]:
    """Rows `coarse` and `fine` of the sum of `weights[c] * vectors[c]`; partial sums add up exactly."""
    size = len(next(iter(vectors.values())))
    total = np.zeros((2, size))
    product, rounded = np.empty(min(CHUNK, size)), np.empty(min(CHUNK, size))
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        coarse, fine = total[0, start:stop], total[1, start:stop]
        p, r = product[: stop - start], rounded[: stop - start]
        for client, weight in weights.items():
            np.multiply(vectors[client][start:stop], weight, out=p, dtype=np.float64)
            np.add(p, grid.coarse, out=r)
            r -= grid.coarse
            coarse += r
            p -= r
            p += grid.fine
            p -= grid.fine
            fine += p
    return total


def merged(partials: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Partial sums as one."""
    total = np.array(partials[0])
    for part in partials[1:]:
        total += part
    return total


def finish(partials: list[NDArray[np.float64]], total_weight: float) -> NDArray[np.float32]:
    """The mean: all partial sums together, divided and rounded once."""
    size = partials[0].shape[1]
    mean = np.empty(size, np.float32)
    both = np.empty((2, min(CHUNK, size)))
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        total = both[:, : stop - start]
        np.copyto(total, partials[0][:, start:stop])
        for part in partials[1:]:
            total += part[:, start:stop]
        total[0] += total[1]
        total[0] /= total_weight
        mean[start:stop] = total[0]
    return mean
