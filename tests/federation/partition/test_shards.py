from __future__ import annotations

import numpy as np
import pytest

from rayfl.errors import ConfigError

from .pools import assign, held, pool_of


@pytest.mark.parametrize(("classes", "per_client"), [(10, 2), (10, 5), (100, 20)])
def test_fedrn_shards_have_one_class_each_and_clients_500_samples(
    classes: int, per_client: int
) -> None:
    pool = pool_of([50_000 // classes] * classes, clients=100)
    counts = held(pool, assign({"name": "shards", "per_client": per_client}, pool).owner)
    assert set(counts.sum(axis=1)) == {500}
    assert (counts > 0).sum(axis=1).max() <= per_client
    assert (counts % (500 // per_client) == 0).all()


def test_fedrn_webvision_drops_the_tail_of_its_last_shard() -> None:
    pool = pool_of([1319] * 49 + [1313], clients=100)
    owner = assign({"name": "shards", "per_client": 10}, pool).owner
    assert len(owner) == 65_944
    assert set(held(pool, owner).sum(axis=1)) == {650}
    assert np.sum(owner < 0) == 944
    assert set(pool.labels[owner < 0]) == {49}


def test_client_ids_and_classes_are_independent() -> None:
    pool = pool_of([500] * 10, clients=100)
    counts = held(pool, assign({"name": "shards", "per_client": 2}, pool).owner)
    mean_class = counts @ np.arange(10) / 50
    # a correlation of 100 independent pairs has a standard deviation of .1
    assert abs(np.corrcoef(np.arange(100), mean_class)[0, 1]) < 0.4


def test_ties_are_broken_by_the_seed() -> None:
    pool = pool_of([100], clients=2)
    owners = [assign({"name": "shards", "per_client": 1}, pool, seed).owner for seed in (0, 1, 0)]
    assert (owners[0] == owners[2]).all()
    assert 0 < np.mean(owners[0] == owners[1]) < 1


def test_more_shards_than_samples_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"3 clients of at least 4 samples need 12 samples; got 11"
    ):
        assign({"name": "shards", "per_client": 4}, pool_of([11], clients=3))
