from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfl.errors import ConfigError
from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import Pool
from rayfl.federation.partition.groups import find_majorities, give_to_smallest

from .pools import assign, sizes_of


def patients(count: int, clients: int) -> Pool:
    """Patients with one to five images of one main body part and, now and then, another; ids with
    gaps."""
    rng = np.random.default_rng(5)
    groups = np.repeat(rng.permutation(10 * count)[:count], rng.integers(1, 6, count))
    labels = np.where(rng.random(len(groups)) < 0.9, groups % 7, rng.integers(0, 7, len(groups)))
    order = rng.permutation(len(groups))
    return Pool(labels[order], 7, clients, groups[order])


def clients_per_group(groups: Ints | None, owner: Ints) -> set[int]:
    assert groups is not None
    return {len(set(owner[groups == group])) for group in np.unique(groups)}


@pytest.mark.parametrize(
    "over", [None, "bernoulli_dirichlet", "iid", {"name": "dirichlet", "alpha": 1}]
)
def test_mura_no_patient_is_on_two_clients(over: Any) -> None:
    pool = patients(600, clients=20)
    owner = assign({"name": "groups", "over": over}, pool).owner
    assert clients_per_group(pool.groups, owner) == {1}
    assert sizes_of(pool, owner).sum() == len(owner)


def test_iid_groups_even_out_the_sizes() -> None:
    pool = patients(600, clients=20)
    assert np.ptp(sizes_of(pool, assign("groups", pool).owner)) <= 5


def test_the_smallest_client_is_next() -> None:
    owner = give_to_smallest(np.array([100, 1, 1, 1, 1]), 2, np.random.default_rng(0))
    small = [c for c in owner[1:] if c != owner[0]]
    assert len(small) >= 3


@pytest.mark.parametrize(
    ("member", "labels", "expected"),
    [
        ([0, 0, 0, 1], [2, 2, 1, 0], [2, 0]),
        ([0, 0, 1, 1], [2, 1, 3, 3], [1, 3]),
        ([1, 0, 1, 1, 0], [3, 0, 3, 0, 0], [0, 3]),
    ],
)
def test_majority_is_the_most_frequent_class_and_of_equals_the_lowest(
    member: list[int], labels: list[int], expected: list[int]
) -> None:
    assert find_majorities(np.array(member), Pool(np.array(labels), 4, 1)).tolist() == expected


def test_a_dataset_without_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs a dataset with group ids; got none"):
        assign("groups", Pool(np.zeros(9, np.int64), 1, 2))


def test_more_clients_than_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 clients need as many groups; got 3"):
        assign("groups", Pool(np.zeros(9, np.int64), 1, 4, np.arange(9) % 3))
