"""Sums of weighted vectors have one value, however they are grouped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from rayfl.fleet.sums import exact_sums as exact
from rayfl.fleet.sums.exact_sums import (
    CHUNK,
    Grid,
    Partial,
    Term,
    add_up,
    finish_mean,
    merge_partials,
    partial_sum,
    whole_sum,
)
from rayfl.fleet.sums.peaks import find_peak

Vectors = dict[int, NDArray[np.float32]]


def mean(
    vectors: Vectors, weights: dict[int, float], groups: Sequence[Sequence[int]]
) -> NDArray[np.float32]:
    """The mean by way of one partial sum a group."""
    grid = Grid.bounded(sum(weights[c] * find_peak(v) for c, v in vectors.items()), len(vectors))
    parts = [
        partial_sum({c: vectors[c] for c in group}, {c: weights[c] for c in group}, grid)
        for group in groups
    ]
    return finish_mean(parts, sum(weights[c] for c in sorted(weights)))


def reference(vectors: Vectors, weights: dict[int, float]) -> NDArray[np.longdouble]:
    """The mean in extended precision."""
    total = sum(np.longdouble(weights[c]) * v.astype(np.longdouble) for c, v in vectors.items())
    return np.asarray(total / sum(np.longdouble(w) for w in weights.values()))


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Vectors, dict[int, float], list[list[int]], list[list[int]]]:
    """Vectors of any magnitude with weights, and two ways to group the clients."""
    count, size = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    powers = draw(st.lists(st.integers(-40, 37), min_size=count, max_size=count))
    vectors = {
        c: (rng.normal(size=size) * 10.0 ** rng.integers(-3, 1, size) * 10.0**p).astype(np.float32)
        for c, p in enumerate(powers)
    }
    weights = {c: float(w) for c, w in enumerate(rng.lognormal(0, 4, count))}
    return vectors, weights, draw(groupings(count)), draw(groupings(count))


@st.composite
def groupings(draw: st.DrawFn, count: int) -> list[list[int]]:
    """The clients in any order, cut at any places."""
    order = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.sets(st.integers(1, count - 1)))) if count > 1 else []
    return [list(order[a:b]) for a, b in zip([0, *cuts], [*cuts, count], strict=True)]


@given(cohorts())
@settings(max_examples=300, deadline=None)
def test_any_grouping_and_order_gives_the_same_bits(
    drawn: tuple[Vectors, dict[int, float], list[list[int]], list[list[int]]],
) -> None:
    vectors, weights, one, other = drawn
    assert mean(vectors, weights, one).tobytes() == mean(vectors, weights, other).tobytes()


@given(cohorts())
@settings(max_examples=200, deadline=None)
def test_agrees_with_extended_precision(
    drawn: tuple[Vectors, dict[int, float], list[list[int]], list[list[int]]],
) -> None:
    vectors, weights, groups, _ = drawn
    expected = reference(vectors, weights)
    # Cancellation leaves what float64 products lose, relative to the largest term.
    terms = np.max(
        [w * np.abs(vectors[c]).astype(np.longdouble) for c, w in weights.items()], axis=0
    )
    allowed = np.spacing(np.abs(expected).astype(np.float32)) + terms * 2.0**-50 / sum(
        weights.values()
    )
    assert np.all(
        np.abs(mean(vectors, weights, groups).astype(np.longdouble) - expected) <= allowed
    )


@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 1e-20, 1.0, 1e20, 3e38])
@pytest.mark.parametrize("weight", [1e-60, 1.0, 1e60])
def test_equal_vectors_are_their_own_mean_at_any_magnitude(magnitude: float, weight: float) -> None:
    vector = np.array([magnitude, -magnitude, magnitude / 2, 0.0], np.float32)
    found = mean(
        dict.fromkeys(range(7), vector), dict.fromkeys(range(7), weight), [[3, 1], [0, 2, 4, 5, 6]]
    )
    assert np.array_equal(found, vector)


def test_entries_twenty_orders_below_the_largest_keep_their_digits() -> None:
    vectors = {c: np.array([1e10, 1.0 + c, 1e-10 * (1 + c)], np.float32) for c in range(3)}
    found = mean(vectors, {0: 1.0, 1: 2.0, 2: 5.0}, [[0], [1], [2]])
    assert np.array_equal(found, reference(vectors, {0: 1.0, 1: 2.0, 2: 5.0}).astype(np.float32))


def test_cancellation_is_exact_where_products_are() -> None:
    vectors = {c: np.array([value], np.float32) for c, value in enumerate((1e8, 1.0, -1e8))}
    assert mean(vectors, dict.fromkeys(range(3), 1.0), [[0], [1], [2]]).tolist() == [
        np.float32(1 / 3)
    ]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_length_of_the_vectors_does_not_matter(size: int) -> None:
    rng = np.random.default_rng(size)
    vectors = {c: rng.normal(size=size).astype(np.float32) for c in range(3)}
    weights = {0: 1.0, 1: 3.0, 2: 4.0}
    found = mean(vectors, weights, [[1], [2, 0]])
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, reference(vectors, weights).astype(np.float64), rtol=1e-6, atol=1e-8
    )


def test_plain_summation_would_not_do() -> None:
    """The vectors that other tests use do tell groupings apart when they are summed in float64."""
    rng = np.random.default_rng(0)
    vectors = {
        c: (rng.normal(size=4000) * 10.0 ** rng.integers(-8, 8)).astype(np.float64)
        for c in range(9)
    }
    forward, backward = (
        sum(vectors[c] / 3 for c in range(9)),
        sum(vectors[c] / 3 for c in reversed(range(9))),
    )
    assert not np.array_equal(forward, backward)


@pytest.mark.parametrize("terms", [1, 2, 200, 100_000])
@pytest.mark.parametrize("bound", [0.0, 1e-300, 1.0, 1e200])
def test_grids_hold_the_whole_sum(bound: float, terms: int) -> None:
    """Both magic constants stay in one binade while a bounded sum is added, so every addition
    rounds alike."""
    grid = Grid.bounded(bound, terms)
    for constant, reach in ((grid.coarse, bound), (grid.fine, terms * math.ulp(grid.coarse) / 2)):
        binade = math.frexp(constant)[1]
        assert math.frexp(constant + reach)[1] == math.frexp(constant - reach)[1] == binade
        assert reach < 2**52 * math.ulp(constant)


@given(cohorts())
@settings(max_examples=100, deadline=None)
def test_parts_may_be_merged_before_they_are_finished(
    drawn: tuple[Vectors, dict[int, float], list[list[int]], list[list[int]]],
) -> None:
    vectors, weights, groups, _ = drawn
    grid = Grid.bounded(sum(weights[c] * find_peak(v) for c, v in vectors.items()), len(vectors))
    parts = [
        partial_sum({c: vectors[c] for c in group}, {c: weights[c] for c in group}, grid)
        for group in groups
    ]
    total = sum(weights[c] for c in sorted(weights))
    assert (
        finish_mean([merge_partials(parts)], total).tobytes() == finish_mean(parts, total).tobytes()
    )


@pytest.mark.parametrize(("weight", "chunks"), [(5.0, []), (0.1, [0, CHUNK, 2 * CHUNK])])
def test_sample_counts_leave_nothing_to_the_fine_grid(weight: float, chunks: list[int]) -> None:
    """Half of what a partial sum would weigh."""
    values = np.random.default_rng(0).uniform(0.5, 1, 2 * CHUNK + 5).astype(np.float32)
    found = partial_sum({0: values}, {0: weight}, Grid.bounded(5.0, 1))
    assert sorted(found.fine) == chunks
    assert found.nbytes == 8 * len(values) * (2 if chunks else 1)


@st.composite
def edges(draw: st.DrawFn) -> tuple[Vectors, dict[int, float], int]:
    """Values at the edge of the grid, signed zeros and subnormal numbers among them; weights of few
    bits or many."""
    count, size = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    mantissas, exponents = (
        st.integers(-(2**24) + 1, 2**24 - 1),
        st.integers(-60, 4) | st.integers(-149, 104),
    )
    value = st.builds(math.ldexp, mantissas, exponents) | st.sampled_from(
        [0.0, -0.0, 1e-45, -1e-45]
    )
    row = st.lists(value, min_size=size, max_size=size)
    vectors = {c: np.array(draw(row), np.float32) for c in range(count)}
    weight = (
        st.integers(1, 700).map(lambda n: n / 1024)
        | st.floats(1e-3, 1)
        | st.sampled_from([1e-60, 1.0])
    )
    return vectors, {c: draw(weight) for c in range(count)}, draw(st.integers(1, 9))


@given(edges())
@settings(max_examples=500, deadline=None)
def test_plain_additions_are_made_only_where_they_have_the_same_bits(
    drawn: tuple[Vectors, dict[int, float], int],
) -> None:
    vectors, weights, more = drawn
    grid = Grid.bounded(
        sum(weights[c] * find_peak(v) for c, v in vectors.items()), len(vectors) + more
    )
    found = partial_sum(vectors, weights, grid)
    terms = [Term(vectors[c], np.float64(weight), 0) for c, weight in weights.items()]
    everything = slice(0, len(vectors[0]))
    coarse, fine = add_up(terms, everything, grid, *np.empty((3, len(vectors[0]))))
    # Of a product half way between two points of the coarse grid, either may be taken: the rest
    # makes up for it.
    left = found.fine.get(0, np.zeros(len(coarse)))
    assert [*map(exactly, found.coarse, left)] == [
        *map(exactly, coarse - grid.coarse, np.zeros(len(coarse)) if fine is None else fine)
    ]
    slow = Partial(coarse - grid.coarse, {} if fine is None else {0: fine})
    assert finish_mean([found], 1.0).tobytes() == finish_mean([slow], 1.0).tobytes()


def exactly(coarse: float, fine: float) -> Fraction:
    return Fraction(coarse) + Fraction(fine)


@given(edges() | cohorts().map(lambda drawn: (drawn[0], drawn[1], 0)))
@settings(max_examples=200, deadline=None)
def test_a_mean_made_at_once_is_the_one_of_partial_sums(
    drawn: tuple[Vectors, dict[int, float], int],
) -> None:
    vectors, weights, more = drawn
    grid = Grid.bounded(
        sum(weights[c] * find_peak(v) for c, v in vectors.items()), len(vectors) + more
    )
    total, at_once = sum(weights.values()), np.full(len(vectors[0]), np.nan, np.float32)
    whole_sum(vectors, weights, grid, total, at_once)
    assert at_once.tobytes() == finish_mean([partial_sum(vectors, weights, grid)], total).tobytes()


@pytest.mark.parametrize("odd", [0, 1, 300, CHUNK // 2])
@pytest.mark.parametrize("clients", [1, 3, 9, 20])
def test_a_few_odd_numbers_among_many(odd: int, clients: int) -> None:
    """Whether a chunk is taken apart as a whole, number by number or not at all: the same bits, in
    any grouping."""
    rng = np.random.default_rng(odd)
    vectors = {c: rng.uniform(0.5, 1, CHUNK + 7).astype(np.float32) for c in range(clients)}
    for vector in vectors.values():
        at = rng.integers(0, len(vector), odd)
        vector[at] *= np.float32(10.0) ** rng.integers(-30, 1, odd).astype(np.float32)
        vector[rng.integers(0, len(vector), odd)] *= 0
    weights = {c: float(20 + c) / 1024 for c in range(clients)}
    whole = mean(vectors, weights, [range(clients)])
    assert (
        whole.tobytes() == mean(vectors, weights, [[c] for c in reversed(range(clients))]).tobytes()
    )
    assert np.allclose(whole, reference(vectors, weights).astype(np.float32), rtol=1e-6)


def test_most_of_a_network_is_added_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What samples count for leaves room for weights of the usual size."""
    rng, plain = np.random.default_rng(0), Counter[str]()
    for name in ("add_up", "_add_plainly"):
        monkeypatch.setattr(exact, name, counted(getattr(exact, name), plain, name))
    vectors = {c: rng.normal(0, 0.05, 40 * CHUNK).astype(np.float32) for c in range(4)}
    partial_sum(vectors, dict.fromkeys(vectors, 20 / 128), Grid.bounded(0.3, 4))
    assert plain["_add_plainly"] == 40
    assert "add_up" not in plain
    partial_sum(vectors, dict.fromkeys(vectors, 0.1), Grid.bounded(0.3, 4))
    assert plain == {"_add_plainly": 40, "add_up": 40}


def counted(
    function: Callable[..., object], counts: Counter[str], name: str
) -> Callable[..., object]:
    def called(*arguments: object) -> object:
        counts[name] += 1
        return function(*arguments)

    return called


@pytest.mark.parametrize("weight", [1.0, 0.75, 5 / 128])
def test_the_least_value_that_is_whole_for_certain(weight: float) -> None:
    """Neighbours of it, each alone in its vector: what is added plainly has nothing for the fine
    grid."""
    grid = Grid.bounded(1.0, 4)
    least = np.float32(grid.whole_from(weight))
    for value in (least, np.nextafter(least, np.float32(2)), np.nextafter(least, np.float32(0))):
        vector = np.array([value, -value], np.float32)
        _, fine = add_up(
            [Term(vector, np.float64(weight), 0)], slice(0, 2), grid, *np.empty((3, 2))
        )
        assert (fine is None) == (value >= least)
        odd = Term.of(vector, weight, grid).odd(slice(0, 2), np.empty(2, np.uint32))
        assert odd.tolist() == ([] if value >= least else [0, 1])


def test_a_weight_of_many_bits_leaves_no_value_whole() -> None:
    vector = np.array([1.0, -1.0], np.float32)
    assert Term.of(vector, 0.1, Grid.bounded(1.0, 4)).odd(
        slice(0, 2), np.empty(2, np.uint32)
    ).tolist() == [0, 1]


def test_zeros_are_not_odd_and_add_up_to_a_positive_one() -> None:
    vector = np.array([0.0, -0.0], np.float32)
    assert not len(
        Term.of(vector, 0.5, Grid.bounded(1.0, 4)).odd(slice(0, 2), np.empty(2, np.uint32))
    )
    found = mean({0: vector, 1: vector}, {0: 0.5, 1: 0.5}, [[0, 1]])
    assert found.tobytes() == np.zeros(2, np.float32).tobytes()
