"""What holds for every partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from rayfl.errors import ConfigError
from rayfl.federation.interfaces import Pool
from rayfl.federation.partition import PARTITIONS

from .pools import assign, held, pool_of, sizes_of

COVERING: list[Any] = [
    "iid",
    {"name": "iid", "remainder": "last"},
    {"name": "dirichlet", "alpha": 0.5, "min_size": 0},
    {"name": "dirichlet", "alpha": 0.5, "min_size": 0, "cap": False},
    {"name": "dirichlet", "alpha": 0.5, "min_size": 0, "label_blind": True},
    {"name": "quantity", "alpha": 0.5, "min_size": 0},
    {"name": "bernoulli_dirichlet", "min_size": 0},
    {"name": "tasks", "tasks": [[0, 1], [2, 3, 4, 5, 6, 7, 8, 9]]},
    "groups",
    {"name": "groups", "over": {"name": "bernoulli_dirichlet", "min_size": 0}},
]
PARTIAL: list[Any] = [
    {"name": "iid", "remainder": "drop"},
    "iid_per_class",
    {"name": "shards", "per_client": 2},
    {"name": "classes", "per_client": 2},
    "fedmatch10",
]


def big_pool() -> Pool:
    groups = np.random.default_rng(3).integers(0, 400, 4000)
    return pool_of([400] * 10, clients=12, groups=groups)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=10, max_size=10),
    clients=st.integers(2, 9),
    which=st.sampled_from(COVERING),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_has_exactly_one_owner(
    sizes: list[int], clients: int, which: Any, seed: int
) -> None:
    pool = pool_of(sizes, clients, groups=np.arange(sum(sizes)))
    owner = assign(which, pool, seed).owner
    assert owner.dtype == np.int64
    assert owner.min() >= 0
    assert owner.max() < clients
    assert held(pool, owner).sum(axis=0).tolist() == sizes


@given(
    sizes=st.lists(st.integers(40, 90), min_size=10, max_size=10),
    clients=st.integers(2, 9),
    which=st.sampled_from(PARTIAL),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_owners_are_clients_or_nobody_and_nobody_goes_empty(
    sizes: list[int], clients: int, which: Any, seed: int
) -> None:
    pool = pool_of(sizes, clients)
    owner = assign(which, pool, seed).owner
    assert owner.shape == pool.labels.shape
    assert owner.min() >= -1
    assert owner.max() < clients
    assert sizes_of(pool, owner).min() > 0


@pytest.mark.parametrize("spec", COVERING + PARTIAL, ids=str)
def test_the_seed_decides(spec: Any) -> None:
    pool = big_pool()
    first, again, other = (assign(spec, pool, seed).owner for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("spec", COVERING + PARTIAL, ids=str)
def test_the_pool_is_left_alone(spec: Any) -> None:
    pool = big_pool()
    pool.labels.setflags(write=False)
    assign(spec, pool)
    assert (pool.labels == big_pool().labels).all()


@pytest.mark.parametrize("spec", COVERING + PARTIAL, ids=str)
def test_a_partition_can_be_written_down_and_built_again(spec: Any) -> None:
    part = PARTITIONS.build(spec)
    assert PARTITIONS.build(PARTITIONS.describe(part)) == part


def test_every_registered_name_leads_to_a_component() -> None:
    assert all(hasattr(PARTITIONS.find(name), "assign") for name in PARTITIONS.names())


@pytest.mark.parametrize(
    "spec",
    [
        "iid",
        {"name": "dirichlet", "alpha": 0.5},
        {"name": "dirichlet", "alpha": 0.001},
        {"name": "quantity", "alpha": 0.001},
        "bernoulli_dirichlet",
        "shards",
        "classes",
        {"name": "tasks", "tasks": "cifar10-2"},
        {"name": "groups", "over": {"name": "dirichlet", "alpha": 0.001}},
    ],
    ids=str,
)
@pytest.mark.parametrize(("each", "clients"), [(1, 100), (120, 1150)])
def test_impossible_requests_end_with_a_refusal(spec: Any, each: int, clients: int) -> None:
    pool = pool_of([each] * 10, clients, groups=np.arange(10 * each))
    if each > 1 and not (
        isinstance(spec, dict) and spec["name"] in {"dirichlet", "quantity", "groups"}
    ):
        pool = pool_of([each] * 10, 1201, groups=np.arange(10 * each))
    with pytest.raises(ConfigError, match=r"; got "):
        assign(spec, pool)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"name": "dirichlet", "alpha": 0}, "alpha"),
        ({"name": "dirichlet", "alpha": 1, "min_size": -1}, "min_size"),
        ({"name": "quantity", "alpha": float("inf")}, "alpha"),
        ({"name": "bernoulli_dirichlet", "phi": 0}, "phi"),
        ({"name": "bernoulli_dirichlet", "phi": 1.1}, "phi"),
        ({"name": "shards", "per_client": 0}, "per_client"),
        ({"name": "tasks", "tasks": "svhn-2", "impurity": 1.5}, "impurity"),
        ({"name": "iid", "remainder": "first"}, "remainder"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(spec: Any, field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        PARTITIONS.build(spec)


@pytest.mark.parametrize(
    "spec", [s for s in [*COVERING, *PARTIAL] if "quantity" not in str(s)], ids=str
)
def test_a_million_samples_over_ten_thousand_clients_are_dealt(spec: Any) -> None:
    pool = pool_of([100_000] * 10, clients=10_000, groups=np.arange(1_000_000) // 5)
    owner = assign(spec, pool).owner
    assert owner.max() == 9_999
