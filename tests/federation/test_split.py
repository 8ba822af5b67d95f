"""Splits: exact stratified counts, disjoint sets, nested public sets, and refusals that name the
class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter, ValidationError

from rayfl.errors import ConfigError
from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import UNUSED
from rayfl.federation.split import (
    Amount,
    Cap,
    Role,
    SplitPlan,
    TrainingSplit,
    apportion_total,
    cap_rows,
    split_training_set,
)

MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
SVHN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)
CIFAR10 = (5000,) * 10
CIFAR100 = (500,) * 100


def labels_of(sizes: tuple[int, ...]) -> Ints:
    """A shuffled label vector with these class sizes."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


def plan_of(**settings: Any) -> SplitPlan:
    return TypeAdapter(SplitPlan).validate_python(settings)


def cut(sizes: tuple[int, ...], seed: int = 0, **settings: Any) -> tuple[Ints, TrainingSplit]:
    labels = labels_of(sizes)
    names = [f"c{number}" for number in range(len(sizes))]
    return labels, split_training_set(
        labels, names, plan_of(**settings), np.random.default_rng(seed)
    )


def per_class(labels: Ints, rows: Ints) -> list[int]:
    return [int(n) for n in np.bincount(labels[rows], minlength=labels.max() + 1)]


@pytest.mark.parametrize(
    ("sizes", "public", "clients"), [(CIFAR10, [500] * 10, 45_000), (CIFAR100, [50] * 100, 45_000)]
)
def test_a_public_tenth_of_equal_classes_is_equal(
    sizes: tuple[int, ...], public: list[int], clients: int
) -> None:
    labels, parts = cut(sizes, public=0.1)
    assert per_class(labels, parts.public) == public
    assert len(parts.pool) == clients


def test_a_public_tenth_of_mnist_is_six_thousand_within_one_of_each_tenth() -> None:
    labels, parts = cut(MNIST, public=0.1)
    assert len(parts.public) == 6_000
    assert len(parts.pool) == 54_000
    assert np.abs(np.array(per_class(labels, parts.public)) - np.array(MNIST) / 10).max() < 1


@pytest.mark.parametrize(
    ("sizes", "each", "server", "left"), [(CIFAR10, 200, 2_000, 48_000), (SVHN, 300, 3_000, 70_257)]
)
def test_fb_nll_servers_hold_balanced_classes(
    sizes: tuple[int, ...], each: int, server: int, left: int
) -> None:
    labels, parts = cut(sizes, validation={"per_class": each})
    assert per_class(labels, parts.validation) == [each] * 10
    assert (len(parts.validation), len(parts.pool)) == (server, left)


@pytest.mark.parametrize(
    ("sizes", "amount", "each"),
    [
        (CIFAR10, {"per_class": 500}, 500),
        (CIFAR10, {"total": 5_000}, 500),
        (CIFAR100, {"total": 5_000}, 50),
    ],
)
def test_fedcr_servers_hold_five_thousand_labels(
    sizes: tuple[int, ...], amount: dict[str, int], each: int
) -> None:
    labels, parts = cut(sizes, labelled=amount)
    assert per_class(labels, parts.labelled) == [each] * len(sizes)
    assert len(parts.pool) == 45_000
    assert not np.intersect1d(parts.pool, parts.labelled).size


@pytest.mark.parametrize("public", [0.05, 0.1])
def test_public_sets_are_nested_and_leave_a_fixed_client_pool(public: float) -> None:
    labels, small = cut(CIFAR10, public=public, client_samples={"total": 40_000})
    _, large = cut(CIFAR10, public=0.2, client_samples={"total": 40_000})
    assert per_class(labels, small.pool) == [4_000] * 10
    assert len(small.public) == round(public * 50_000)
    assert np.isin(small.public, large.public).all()
    np.testing.assert_array_equal(small.pool, large.pool)


def test_all_three_server_sets_are_disjoint_sorted_and_leave_the_rest_to_clients() -> None:
    _, parts = cut(SVHN, public=0.1, validation={"per_class": 20}, labelled={"total": 501})
    sets = [parts.pool, *parts.server().values()]
    assert np.array_equal(np.sort(np.concatenate(sets)), np.arange(73_257))
    assert all((np.diff(rows) > 0).all() for rows in sets)
    assert [len(rows) for rows in sets[1:]] == [7_326, 200, 501]


def test_without_a_plan_everything_goes_to_the_clients() -> None:
    _, parts = cut((3, 4))
    np.testing.assert_array_equal(parts.pool, np.arange(7))
    assert not any(len(rows) for rows in parts.server().values())


def test_fractions_refer_to_the_capped_training_set() -> None:
    labels, parts = cut(CIFAR10, train_samples={"total": 1_000}, public=0.1)
    assert per_class(labels, parts.public) == [10] * 10
    assert per_class(labels, parts.pool) == [90] * 10


def test_the_first_rows_are_the_first_rows() -> None:
    labels, parts = cut(CIFAR10, train_samples={"first": 100})
    np.testing.assert_array_equal(parts.pool, np.arange(100))
    rows = cap_rows(
        labels, ["c"] * 10, Cap(first=7), np.random.default_rng(0), "split.test_samples"
    )
    np.testing.assert_array_equal(rows, np.arange(7))


def test_the_seed_decides_which_samples_and_not_how_many() -> None:
    labels, one = cut(MNIST, seed=1, public=0.1)
    _, again = cut(MNIST, seed=1, public=0.1)
    _, other = cut(MNIST, seed=2, public=0.1)
    np.testing.assert_array_equal(one.public, again.public)
    assert not np.array_equal(one.public, other.public)
    assert per_class(labels, one.public) == per_class(labels, other.public)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"validation": {"per_class": 4}},
            r"split.validation takes .* \(3 of class 'c0'\); got a need of 4",
        ),
        (
            {"public": {"per_class": 2}, "labelled": {"per_class": 2}},
            r"split.labelled .* \(1 of class 'c0'\)",
        ),
        (
            {"public": 0.5, "client_samples": 0.8},
            r"split.client_samples takes at most what is left",
        ),
        (
            {"train_samples": {"first": 9}},
            r"split.train_samples.first is at most the 8 samples there are; got 9",
        ),
        (
            {"train_samples": {"total": 9}},
            r"split.train_samples takes at most what is left of each class",
        ),
    ],
)
def test_more_than_there_is_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cut((3, 5), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"public": {}}, "exactly one of fraction, per_class, total; got none of them"),
        (
            {"public": {"fraction": 0.1, "total": 5}},
            r"exactly one of .*; got \['fraction', 'total'\]",
        ),
        ({"public": {"first": 5}}, "first"),
        ({"public": 1.5}, "less than or equal to 1"),
        ({"validation": {"per_class": 0}}, "greater than or equal to 1"),
        ({"valid": 0.1}, "valid"),
    ],
)
def test_ill_formed_plans_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        plan_of(**settings)


def test_overlapping_sets_cannot_be_made() -> None:
    none = np.arange(0)
    with pytest.raises(AssertionError, match="two roles"):
        TrainingSplit(5, np.arange(3), np.array([2]), none, none)
    with pytest.raises(AssertionError, match="does not have"):
        TrainingSplit(2, np.arange(3), none, none, none)


def test_roles_are_negative_and_unused_is_what_partitions_call_unused() -> None:
    assert max(Role) == Role.UNUSED == UNUSED < 0


@pytest.mark.parametrize(
    ("total", "sizes", "expected"),
    [
        (10, (1, 1, 1), [4, 3, 3]),
        (3, (5, 3, 2), [1, 1, 1]),
        (0, (4, 4), [0, 0]),
        (7, (0, 7), [0, 7]),
    ],
)
def test_largest_remainder_by_hand(total: int, sizes: tuple[int, ...], expected: list[int]) -> None:
    assert apportion_total(total, np.array(sizes)).tolist() == expected


@given(st.lists(st.integers(0, 500), min_size=1, max_size=12).filter(any), st.floats(0, 1))
def test_shares_are_exact_in_total_and_within_one_in_each_class(
    sizes: list[int], fraction: float
) -> None:
    counts = Amount(fraction=fraction).counts(np.array(sizes))
    total = round(fraction * sum(sizes))
    assert counts.sum() == total
    assert (counts <= sizes).all()
    assert np.abs(counts - total * np.array(sizes) / sum(sizes)).max() < 1
