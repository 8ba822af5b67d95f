from __future__ import annotations

import numpy as np
import pytest

from rayfl.errors import ConfigError

from .pools import assign, held, pool_of


@pytest.mark.parametrize(
    ("classes", "clients", "per_client"),
    [(10, 20, 1), (10, 20, 3), (10, 3, 4), (10, 10, 10), (7, 2, 5)],
)
def test_every_client_has_its_number_of_classes_and_every_class_a_holder(
    classes: int, clients: int, per_client: int
) -> None:
    pool = pool_of([200] * classes, clients)
    counts = held(pool, assign({"name": "classes", "per_client": per_client}, pool).owner)
    assert set((counts > 0).sum(axis=1)) == {per_client}
    assert (counts.sum(axis=0) == 200).all()


def test_a_class_is_shared_evenly() -> None:
    pool = pool_of([100] * 4, clients=12)
    counts = held(pool, assign({"name": "classes", "per_client": 2}, pool).owner)
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_too_few_clients_for_all_classes_leave_the_others_unused() -> None:
    pool = pool_of([20] * 10, clients=2)
    counts = held(pool, assign({"name": "classes", "per_client": 3}, pool).owner)
    assert sorted(counts.sum(axis=0)) == [0] * 4 + [20] * 6


def test_sets_of_classes_differ_between_clients() -> None:
    pool = pool_of([500] * 10, clients=50)
    held_sets = held(pool, assign({"name": "classes", "per_client": 2}, pool).owner) > 0
    assert len({tuple(row) for row in held_sets}) > 15


def test_fedmatch_profile_rotates_by_client() -> None:
    pool = pool_of([4500] * 10, clients=100)
    counts = held(pool, assign("fedmatch10", pool).owner)
    first = [225, 67, 13, 13, 13, 9, 13, 13, 13, 67]
    assert counts[0].tolist() == counts[10].tolist() == first
    assert counts[3].tolist() == np.roll(first, 3).tolist()


def test_fedmatch_profile_fits_uneven_classes() -> None:
    pool = pool_of([400, *[1000] * 9], clients=10)
    counts = held(pool, assign("fedmatch10", pool).owner)
    assert counts.diagonal().tolist() == [200] * 10


@pytest.mark.parametrize(
    ("spec", "sizes", "clients", "rule"),
    [
        (
            {"name": "classes", "per_client": 4},
            [9] * 3,
            2,
            r"at most the number of classes \(3\); got 4",
        ),
        (
            {"name": "classes", "per_client": 1},
            [100, 1],
            8,
            r"receives a sample.*; got nothing for client \d of 8",
        ),
        ("fedmatch10", [100] * 9, 3, r"fedmatch10 needs 10 classes; got 9"),
        ("fedmatch10", [1] * 10, 50, r"enough samples for 50 clients; got 1 in the rarest"),
    ],
)
def test_impossible_requests_are_refused(
    spec: object, sizes: list[int], clients: int, rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        assign(spec, pool_of(sizes, clients))
