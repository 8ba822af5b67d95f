from __future__ import annotations

import numpy as np
import pytest

from rayfl.errors import ConfigError

from .pools import SVHN, assign, held, pool_of, sizes_of


@pytest.mark.parametrize(
    ("remainder", "sizes", "unused"),
    [("drop", [3, 3, 3], 2), ("last", [3, 3, 5], 0), ("spread", [4, 4, 3], 0)],
)
def test_iid_deals_with_the_remainder_as_asked(
    remainder: str, sizes: list[int], unused: int
) -> None:
    pool = pool_of([6, 5], clients=3)
    owner = assign({"name": "iid", "remainder": remainder}, pool).owner
    assert sizes_of(pool, owner).tolist() == sizes
    assert np.sum(owner < 0) == unused


def test_fedcorr_iid_on_pathmnist_gives_899_each_and_drops_96() -> None:
    pool = pool_of([9999] * 8 + [10004], clients=100)
    owner = assign({"name": "iid", "remainder": "drop"}, pool).owner
    assert len(owner) == 89_996
    assert set(sizes_of(pool, owner)) == {899}
    assert np.sum(owner >= 0) == 89_900


@pytest.mark.parametrize(("samples", "each"), [(54_000, 540), (45_000, 450)])
def test_fedds_iid_gives_equal_parts(samples: int, each: int) -> None:
    pool = pool_of([samples // 10] * 10, clients=100)
    assert set(sizes_of(pool, assign({"name": "iid", "remainder": "last"}, pool).owner)) == {each}


def test_iid_mixes_the_classes() -> None:
    pool = pool_of([5000] * 10, clients=10)
    # a hypergeometric count around 500 with standard deviation 20: five of them
    assert np.abs(held(pool, assign("iid", pool).owner) - 500).max() < 100


def test_fedcr_iid_cifar100_has_five_images_of_each_class_on_each_client() -> None:
    pool = pool_of([450] * 100, clients=90)
    owner = assign("iid_per_class", pool).owner
    assert (held(pool, owner) == 5).all()
    assert np.sum(owner >= 0) == 45_000


def test_fedcr_iid_svhn_is_limited_by_its_rare_classes() -> None:
    pool = pool_of([n - 500 for n in SVHN], clients=100)
    counts = held(pool, assign({"name": "iid_per_class", "cap": 45}, pool).owner)
    assert (counts == [44, 45, 45, 45, 45, 45, 45, 45, 45, 41]).all()
    assert set(counts.sum(axis=1)) == {445}


def test_iid_per_class_refuses_more_clients_than_any_class_can_serve() -> None:
    with pytest.raises(
        ConfigError, match=r"at least one sample for each of 10 clients; got classes of 9 samples"
    ):
        assign("iid_per_class", pool_of([9, 8], clients=10))
