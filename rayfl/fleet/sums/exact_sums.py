"""Sums that have the same bits in any order and any grouping.

Floating-point addition is not associative, so partial sums at 1, 2 or 8 actors would differ in the
last bits. Here every product `weight * value` is split over two fixed grids, coarse and fine, on
which float64 additions are exact (pre-rounding, as in J. Demmel and H. D. Nguyen, "Fast
reproducible floating-point summation", ARITH 2013). Exact additions commute, so grouping cannot
show. The grids depend only on a bound of the whole sum, known beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Summand = TypeVar("Summand")
"""What names a vector, and its weight, in a sum."""

# Few enough numbers to stay in a core's caches and, eight rows of them, below what a BLAS deals out
# to several threads; enough that calls of numpy do not show.
CHUNK = 7 << 13
FEW = (
    1 / 64
)  # share of a chunk that is better taken apart number by number than with all the others
NOWHERE: NDArray[np.int64] = np.empty(0, np.int64)
ROWS = 8  # vectors that are added up in one product
MANTISSA = 23  # bits of a float32 behind its leading one
TINY, HUGE = (
    math.ldexp(1.0, -126),
    math.ldexp(1.0, 127),
)  # the powers of two at the ends of float32's normal range
ANYTHING, NOTHING = (
    2,
    1 << 32,
)  # twice the bits of float32's least value above zero, and more than those of any


@dataclass(frozen=True)
class Grid:
    """The two magic constants: adding and subtracting one rounds to its grid."""

    coarse: float
    fine: float

    @classmethod
    def bounded(cls, bound: float, terms: int) -> Grid:
        """Grids for sums of at most `terms` products whose absolute values add up to at most
        `bound`."""
        exponent = math.frexp(max(bound, 1e-300))[1] + 1
        # A remainder is at most half a coarse step, 2**(exponent - 52); `terms` of them must fit
        # the fine grid.
        remainder = exponent - 52 + math.frexp(terms)[1] + 1
        return cls(math.ldexp(1.5, exponent + 1), math.ldexp(1.5, max(remainder + 1, -1000)))

    def whole_from(self, weight: float) -> float:
        """The least absolute value of a float32 whose product with `weight` lies on the coarse grid
        for certain."""
        numerator = int(math.ldexp(math.frexp(weight)[0], 53))
        last_bit = math.frexp(weight)[1] - 53 + (numerator & -numerator).bit_length() - 1
        coarse_step = math.frexp(self.coarse)[1] - 53
        return math.ldexp(1.0, min(coarse_step - last_bit + MANTISSA, 1023))

    def whole_bits(self, weight: float) -> int:
        """Twice the bits of that value, which values without their sign are compared with."""
        least = self.whole_from(weight)
        if least > HUGE or least * weight > self.coarse:
            return NOTHING
        # No float32 has a last bit below that of the normal ones.
        return ANYTHING if least < TINY else int(np.float32(least).view(np.uint32)) << 1


@dataclass(frozen=True)
class Term:
    """One client's product: a vector, its weight, and twice the bits of the least value that is
    whole on the grid."""

    vector: NDArray[np.float32]
    weight: np.float64
    whole_from: int

    @classmethod
    def of(cls, vector: NDArray[np.float32], weight: float, grid: Grid) -> Term:
        return cls(vector, np.float64(weight), grid.whole_bits(weight))

    def odd(self, chunk: slice, spare: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Where products of this chunk may leave something for the fine grid. Bits sort as absolute
        values do, once the sign is shifted out."""
        np.left_shift(self.vector[chunk].view(np.uint32), 1, out=spare)
        # Nearly always there is none, which the least of them tells in the least time.
        if spare[spare.argmin()] >= self.whole_from:
            return NOWHERE
        spare -= 1  # zeros, which leave nothing, become the largest
        return np.flatnonzero(spare < self.whole_from - 1)


@dataclass(frozen=True)
class Partial:
    """A part of a sum. Weights that are sample counts leave next to nothing for the fine grid, so
    what falls on it is kept for those chunks alone where there is something, by the position at
    which the chunk begins."""

    coarse: NDArray[np.float64]
    fine: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.coarse.nbytes + sum(chunk.nbytes for chunk in self.fine.values())


def partial_sum(
    vectors: Mapping[Summand, NDArray[np.float32]], weights: Mapping[Summand, float], grid: Grid
) -> Partial:
    """The sum of `weights[c] * vectors[c]`; partial sums add up exactly."""
    total = Partial(np.empty(len(next(iter(vectors.values())))))
    for chunk, coarse, fine in iterate_chunks(vectors, weights, grid):
        total.coarse[chunk] = coarse
        if fine is not None:
            total.fine[chunk.start] = fine
    return total


def whole_sum(
    vectors: Mapping[Summand, NDArray[np.float32]],
    weights: Mapping[Summand, float],
    grid: Grid,
    total_weight: float,
    mean: NDArray[np.float32],
) -> None:
    """The mean of all there are, into `mean`: what `finish_mean` makes of their partial sum, which
    never exists."""
    for chunk, total, fine in iterate_chunks(vectors, weights, grid):
        if fine is not None:
            total += fine
        total /= total_weight
        mean[chunk] = total


def iterate_chunks(
    vectors: Mapping[Summand, NDArray[np.float32]], weights: Mapping[Summand, float], grid: Grid
) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.float64] | None]]:
    """Chunk by chunk, the coarse sum, in memory that the next chunk uses again, and the fine one if
    there is any."""
    size = len(next(iter(vectors.values())))
    # Weights are commonly few: sample counts.
    least = {weight: grid.whole_bits(weight) for weight in set(weights.values())}
    terms = [
        Term(vectors[client], np.float64(weight), least[weight])
        for client, weight in weights.items()
    ]
    hopeless = NOTHING in least.values()
    scratch = np.empty((3, min(CHUNK, size)))
    rows = np.empty((0 if hopeless else min(ROWS, len(terms)), min(CHUNK, size)))
    for start in range(0, size, CHUNK):
        chunk = slice(start, min(start + CHUNK, size))
        spare = scratch[:, : chunk.stop - start]
        odd = (
            None if hopeless else _add_plainly(terms, chunk, rows[:, : chunk.stop - start], *spare)
        )
        if odd is None:
            coarse, fine = add_up(terms, chunk, grid, *spare)
            coarse -= grid.coarse
            yield chunk, coarse, fine
        else:
            yield chunk, spare[0], _add_odd(terms, odd, chunk, grid, spare[0])


def _add_plainly(
    terms: Sequence[Term],
    chunk: slice,
    rows: NDArray[np.float64],
    total: NDArray[np.float64],
    spare: NDArray[np.float64],
    bits: NDArray[np.float64],
) -> list[NDArray[np.int64]] | None:
    """One chunk's sum without the odd numbers, whose positions are answered; None where these are
    many. What is left lies on the coarse grid: plain additions are exact, in whatever order a
    matrix product makes them."""
    odd, spare_bits = [], bits.view(np.uint32)[: len(total)]
    for start in range(0, len(terms), len(rows)):
        some = terms[start : start + len(rows)]
        for row, term in zip(rows, some, strict=False):
            np.copyto(row, term.vector[chunk])
            odd.append(term.odd(chunk, spare_bits))
            if len(odd[-1]):
                row[odd[-1]] = 0
        # Where they are many, the first rows show it.
        if sum(map(len, odd)) > FEW * len(total):
            return None
        np.dot(
            np.array([term.weight for term in some]),
            rows[: len(some)],
            out=spare if start else total,
        )
        if start:
            np.add(total, spare, out=total)
    total += 0.0  # of zeros alone, some products would make a negative one
    return odd


def _add_odd(
    terms: Sequence[Term],
    odd: Sequence[NDArray[np.int64]],
    chunk: slice,
    grid: Grid,
    total: NDArray[np.float64],
) -> NDArray[np.float64] | None:
    """Add the few that were left out, each taken apart; the fine sum, if there is any."""
    fine = None
    for term, positions in zip(terms, odd, strict=True):
        if not len(positions):
            continue
        products = term.vector[chunk][positions] * term.weight
        coarse = (products + grid.coarse) - grid.coarse
        total[positions] += coarse
        remainders = ((products - coarse) + grid.fine) - grid.fine
        if remainders.any():
            fine = np.zeros_like(total) if fine is None else fine
            fine[positions] += remainders
    return fine


def add_up(
    terms: Sequence[Term],
    chunk: slice,
    grid: Grid,
    held: NDArray[np.float64],
    spare: NDArray[np.float64],
    product: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """One chunk's sums: the coarse one, still with the grid's constant in it, and the fine one if
    there is any."""
    fine = None
    bits = product.view(np.uint64)
    held.fill(grid.coarse)
    for term in terms:
        np.copyto(product, term.vector[chunk])
        np.multiply(product, term.weight, out=product)
        # The constant's binade rounds the sum to the grid; what that leaves of the product is
        # exact.
        np.add(held, product, out=spare)
        np.subtract(spare, held, out=held)
        np.subtract(product, held, out=product)
        held, spare = spare, held
        if bits[bits.argmax()]:
            product += grid.fine
            product -= grid.fine
            fine = np.array(product) if fine is None else np.add(fine, product, out=fine)
    return held, fine


def merge_partials(partials: Sequence[Partial]) -> Partial:
    """Partial sums as one."""
    total = Partial(np.array(partials[0].coarse), dict(partials[0].fine))
    for part in partials[1:]:
        np.add(total.coarse, part.coarse, out=total.coarse)
        for start, chunk in part.fine.items():
            total.fine[start] = total.fine[start] + chunk if start in total.fine else chunk
    return total


def finish_mean(partials: Sequence[Partial], total_weight: float) -> NDArray[np.float32]:
    """The mean: all partial sums together, divided and rounded once."""
    size = len(partials[0].coarse)
    mean = np.empty(size, np.float32)
    scratch = np.empty(min(CHUNK, size))
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        total = scratch[: stop - start]
        np.copyto(total, partials[0].coarse[start:stop])
        for part in partials[1:]:
            total += part.coarse[start:stop]
        fine = [part.fine[start] for part in partials if start in part.fine]
        if fine:
            total += np.sum(fine, axis=0)
        total /= total_weight
        mean[start:stop] = total
    return mean
