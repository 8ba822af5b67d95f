from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.errors import ConfigError
from rayfl.federation.partition.dealing import cut_by_shares, redraw_until
from rayfl.federation.partition.dirichlet import deal_capped

from .pools import assign, held, pool_of, sizes_of


def mean_distance_to_uniform(counts: NDArray[np.int64]) -> float:
    """Total variation between each client's classes and equal ones, averaged over the clients."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.mean(np.abs(shares - 1 / counts.shape[1]).sum(axis=1) / 2))


@pytest.mark.parametrize("alpha", [0.5, 10])
@pytest.mark.parametrize("sizes", [[5400] * 10, [4500] * 10, [450] * 100])
def test_fedds_dirichlet_covers_everything_and_leaves_ten_samples_to_everyone(
    alpha: float, sizes: list[int]
) -> None:
    pool = pool_of(sizes, clients=100)
    owner = assign({"name": "dirichlet", "alpha": alpha, "min_size": 10}, pool).owner
    assert owner.min() == 0
    assert sizes_of(pool, owner).min() >= 10
    assert (held(pool, owner).sum(axis=0) == sizes).all()


def test_fedrn_label_blind_dirichlet_is_nearly_iid_in_its_classes_and_uneven_in_size() -> None:
    pool = pool_of([5000] * 10, clients=100)
    counts = held(
        pool, assign({"name": "dirichlet", "alpha": 0.5, "label_blind": True}, pool).owner
    )
    assert mean_distance_to_uniform(counts) < 0.07
    assert counts.sum(axis=1).max() > 3 * counts.sum(axis=1).min()


def test_fedrn_dirichlet_over_labels_is_far_from_uniform() -> None:
    pool = pool_of([5000] * 10, clients=100)
    counts = held(pool, assign({"name": "dirichlet", "alpha": 0.5}, pool).owner)
    assert mean_distance_to_uniform(counts) > 0.4
    assert 7 < np.mean((counts > 0).sum(axis=1)) < 9.5


@pytest.mark.parametrize("cap", [True, False])
@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_small_alpha_ends_and_every_seed_has_its_own_partition(alpha: float, cap: bool) -> None:
    """One benchmark reseeds inside its rejection loop: all seeds alike, and no end for alpha <=
    .3."""
    pool = pool_of([5000] * 10, clients=100)
    spec = {"name": "dirichlet", "alpha": alpha, "cap": cap}
    first, second = assign(spec, pool, seed=0).owner, assign(spec, pool, seed=1).owner
    assert np.mean(first == second) < 0.2
    assert min(sizes_of(pool, first).min(), sizes_of(pool, second).min()) >= 10


def test_fedcr_dirichlet_leaves_a_full_batch_to_everyone() -> None:
    pool = pool_of([4500] * 10, clients=100)
    owner = assign({"name": "dirichlet", "alpha": 0.5, "min_size": 64}, pool).owner
    assert sizes_of(pool, owner).min() >= 64


def test_rejected_draws_are_followed_by_fresh_ones() -> None:
    """A minimum that few draws reach is reached all the same."""
    pool = pool_of([5000] * 10, clients=100)
    owner = assign({"name": "dirichlet", "alpha": 0.3, "min_size": 85, "cap": False}, pool).owner
    assert sizes_of(pool, owner).min() >= 85


def test_a_minimum_out_of_reach_is_refused_with_the_best_that_was_found() -> None:
    with pytest.raises(
        ConfigError, match=r"holds at least 100 samples; got at best \d+ in 1000 draws over 50000"
    ):
        assign(
            {"name": "dirichlet", "alpha": 0.1, "min_size": 100}, pool_of([5000] * 10, clients=100)
        )


def test_a_draw_that_just_reaches_the_minimum_is_taken() -> None:
    tables = iter([np.array([[1, 3]]), np.array([[2, 2]])])
    assert redraw_until(lambda: next(tables), pool_of([4], clients=2), 2).tolist() == [[2, 2]]


@pytest.mark.parametrize("cap", [True, False])
def test_only_cap_keeps_full_clients_from_further_classes(cap: bool) -> None:
    pool = pool_of([5000] * 10, clients=100)
    counts = held(pool, assign({"name": "dirichlet", "alpha": 0.1, "cap": cap}, pool).owner)
    last = 9 - np.argmax(counts[:, ::-1] > 0, axis=1)
    before = counts.sum(axis=1) - counts[np.arange(100), last]
    assert (before < 500).all() == cap


def test_cap_stops_a_client_that_has_its_fair_share() -> None:
    shares = np.array([[1.0, 0.0], [0.5, 0.5]])
    counts = deal_capped(shares, np.array([10, 10]), np.random.default_rng(0))
    assert counts.tolist() == [[10, 0], [0, 10]]


def test_cap_with_all_of_a_class_on_full_clients_shares_it_among_the_others() -> None:
    shares = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    counts = deal_capped(shares, np.array([10, 10]), np.random.default_rng(0))
    assert counts.tolist() == [[10, 0, 0], [0, 5, 5]]


@pytest.mark.parametrize("cap", [True, False])
@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e6, 1e300])
def test_extreme_alpha_stays_finite(alpha: float, cap: bool) -> None:
    pool = pool_of([50] * 4, clients=4)
    owner = assign({"name": "dirichlet", "alpha": alpha, "min_size": 0, "cap": cap}, pool).owner
    assert held(pool, owner).sum(axis=0).tolist() == [50] * 4


def test_large_alpha_is_even() -> None:
    pool = pool_of([1000] * 5, clients=10)
    counts = held(pool, assign({"name": "dirichlet", "alpha": 1e6}, pool).owner)
    assert np.abs(counts - 100).max() <= 2


def test_cut_gives_every_client_its_share_on_average() -> None:
    rng = np.random.default_rng(0)
    shares = np.full((4000, 50), 1 / 50)
    counts = cut_by_shares(shares, np.full(4000, 10), rng)
    assert (counts.sum(axis=1) == 10).all()
    assert set(np.unique(counts)) <= {0, 1}
    # each is Bernoulli(.2): five standard errors
    assert np.abs(counts.mean(axis=0) - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 4000)


def test_cut_never_leaves_a_client_with_less_than_nothing() -> None:
    shares = np.array([0.7, 0.3 + 1e-12, 0.0, 0.0])
    for seed in range(50):
        counts = cut_by_shares(shares, 10**9, np.random.default_rng(seed))
        assert counts.min() >= 0
        assert counts.sum() == 10**9


def test_quantity_skews_sizes_and_not_classes() -> None:
    pool = pool_of([5000] * 10, clients=20)
    counts = held(pool, assign({"name": "quantity", "alpha": 0.5, "min_size": 200}, pool).owner)
    assert counts.sum(axis=1).min() >= 200
    assert counts.sum(axis=1).max() > 4 * counts.sum(axis=1).min()
    assert counts.sum() == 50_000
    assert mean_distance_to_uniform(counts) < 0.06
