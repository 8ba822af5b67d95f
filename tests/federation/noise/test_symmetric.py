from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfl.errors import ConfigError
from rayfl.federation.noise import RATES
from rayfl.federation.noise.selection import round_down

from .truths import changed, confusion, corrupt, federation, server, truth_of


@pytest.mark.parametrize(
    ("rate", "size", "expected"), [(0.29, 100, 29), (0.57, 100, 57), (0.3, 9, 2), (1.0, 7, 7)]
)
def test_a_rate_times_a_size_is_not_lost_to_rounding(rate: float, size: int, expected: int) -> None:
    assert round_down(np.array([rate]), np.array([size])).tolist() == [expected]
    one_class_each = truth_of([[size, 0]])
    assert changed(
        one_class_each, corrupt({"name": "symmetric", "rate": rate}, one_class_each)
    ) == [expected]


def test_fedds_exact_count_is_the_sum_of_the_floors() -> None:
    sizes = np.random.default_rng(0).integers(1, 20, (100, 10))
    truth = truth_of(sizes.tolist())
    result = corrupt({"name": "symmetric", "rate": "discrete"}, truth)
    tenths = np.rint(result.nominal * 10).astype(int)
    assert changed(truth, result).tolist() == (tenths * sizes.sum(axis=1) // 10).tolist()


@pytest.mark.parametrize("targets", ["others", "present"])
def test_fedds_no_label_is_right_at_rate_one(targets: str) -> None:
    truth = federation(clients=10)
    assert (
        corrupt({"name": "symmetric", "rate": 1, "targets": targets}, truth).given != truth.labels
    ).all()


def test_fedcr_exact_count_per_class() -> None:
    truth = server(500)
    result = corrupt({"name": "symmetric", "rate": 0.4, "count": "per_class"}, truth)
    wrong = confusion(truth, result) * ~np.eye(10, dtype=bool)
    assert wrong.sum(axis=1).tolist() == [200] * 10


@pytest.mark.parametrize(("classes", "off_diagonal"), [(10, 0.088889), (100, 0.008081)])
def test_fedcr_exclusive_transition_at_rate_80_percent(classes: int, off_diagonal: float) -> None:
    truth = server(4000, classes)
    matrix = confusion(truth, corrupt({"name": "symmetric", "rate": 0.8}, truth)) / 4000
    away = matrix[~np.eye(classes, dtype=bool)]
    assert np.abs(away - off_diagonal).max() < 6 * np.sqrt(off_diagonal / 4000)
    assert matrix.diagonal().mean() == pytest.approx(0.2, abs=1e-9)


@pytest.mark.parametrize(("targets", "own"), [("all", 0.1), ("others", 0.0)])
def test_targets_are_uniform(targets: str, own: float) -> None:
    truth = server(9000)
    matrix = (
        confusion(truth, corrupt({"name": "symmetric", "rate": 1, "targets": targets}, truth))
        / 9000
    )
    wanted = np.full((10, 10), (1 - own) / 9) * ~np.eye(10, dtype=bool) + own * np.eye(10)
    assert np.abs(matrix - wanted).max() < 5 * np.sqrt(0.1 / 9000)


@pytest.mark.parametrize(("rate", "actual"), [(0.2, 0.18), (0.4, 0.36), (0.8, 0.72)])
def test_fedcr_inclusive_noise_is_milder_than_its_rate(rate: float, actual: float) -> None:
    truth = server(5000)
    result = corrupt({"name": "symmetric", "rate": rate, "targets": "all"}, truth)
    assert np.mean(result.given != truth.labels) == pytest.approx(
        actual, abs=5 * np.sqrt(0.09 * rate / 50_000)
    )


FLIP_RATES = {
    10: (0.378000, 0.472500, 0.459000, 0.573750, 0.540000, 0.675000),
    100: (0.415800, 0.519750, 0.504900, 0.631125, 0.594000, 0.742500),
    9: (0.373333, 0.466667, 0.453333, 0.566667, 0.533333, 0.666667),
    7: (0.360000, 0.450000, 0.437143, 0.546429, 0.514286, 0.642857),
}
GRID = [(rho, tau) for rho in (0.7, 0.85, 1.0) for tau in (0.2, 0.5)]
CELLS = [(c, *GRID[i], rate) for c, row in FLIP_RATES.items() for i, rate in enumerate(row)]


@pytest.mark.parametrize(("classes", "rho", "tau", "expected"), CELLS)
def test_fedcorr_flip_rate_of_the_whole_system(
    classes: int, rho: float, tau: float, expected: float
) -> None:
    truth = federation(clients=20_000 // classes, per_class=5, classes=classes)
    rate = {"name": "rho_tau", "rho": rho, "tau": tau}
    result = corrupt(
        {"name": "symmetric", "rate": rate, "targets": "all", "count": "bernoulli"}, truth
    )
    realised, others = np.mean(result.given != truth.labels), 1 - 1 / classes
    assert realised == pytest.approx(
        result.nominal.mean() * others, abs=5 * np.sqrt(0.25 / 100_000)
    )
    # the spread of the rates needs many clients: their standard deviation is below .4
    rates = RATES.build(rate).per_client(400_000, np.random.default_rng(0))
    assert rates.mean() * others == pytest.approx(expected, abs=5 * 0.4 / np.sqrt(400_000))


@pytest.mark.parametrize(
    "spec",
    [
        {
            "name": "symmetric",
            "rate": {"name": "rho_tau", "rho": 0, "tau": 0.5},
            "targets": "all",
            "count": "bernoulli",
        },
        {"name": "uniform", "rho": 0},
    ],
)
def test_fedcorr_and_fbnll_rho_zero_changes_nothing(spec: Any) -> None:
    truth = federation(clients=20)
    assert (corrupt(spec, truth).given == truth.labels).all()


def test_fedcorr_clients_without_noise_keep_their_labels() -> None:
    truth = federation()
    rate = {"name": "rho_tau", "rho": 0.5, "tau": 0.5}
    result = corrupt(
        {"name": "symmetric", "rate": rate, "targets": "all", "count": "bernoulli"}, truth
    )
    quiet = result.nominal == 0
    assert 20 < quiet.sum() < 80
    assert not changed(truth, result)[quiet].any()
    assert changed(truth, result)[~quiet].all()


def test_fedcorr_full_noise_is_right_once_in_ten() -> None:
    truth = federation()
    rate = {"name": "rho_tau", "rho": 1, "tau": 1}
    result = corrupt(
        {"name": "symmetric", "rate": rate, "targets": "all", "count": "bernoulli"}, truth
    )
    assert np.mean(result.given != truth.labels) == pytest.approx(
        0.9, abs=5 * np.sqrt(0.09 / 50_000)
    )


@pytest.mark.parametrize("targets", ["others", "all", "present"])
@pytest.mark.parametrize("count", ["exact", "per_class", "per_class_floor", "bernoulli"])
def test_rate_zero_changes_nothing(targets: str, count: str) -> None:
    truth = federation(clients=3)
    spec = {"name": "symmetric", "rate": 0, "targets": targets, "count": count}
    assert (corrupt(spec, truth).given == truth.labels).all()


@pytest.mark.parametrize(("top", "total"), [(0.4, 9_900), (0.8, 19_800)])
def test_fedrn_ramp_corrupts_the_printed_number(top: float, total: int) -> None:
    truth = truth_of(
        [[250 if c in (k % 10, (k + 3) % 10) else 0 for c in range(10)] for k in range(100)]
    )
    result = corrupt({"name": "symmetric", "rate": {"name": "ramp", "max": top}}, truth)
    assert changed(truth, result).sum() == total
    assert np.mean(result.given != truth.labels) == pytest.approx(result.nominal.mean(), abs=1e-9)


def test_fedrn_oracle_drops_the_same_samples_for_symmetric_and_asymmetric() -> None:
    truth = federation()
    ramp = {"name": "ramp", "max": 0.4}
    symmetric = corrupt({"name": "symmetric", "rate": ramp}, truth, seed=3)
    pairflip = corrupt({"name": "asymmetric", "rate": ramp, "pairs": "previous"}, truth, seed=3)
    assert ((symmetric.given == truth.labels) == (pairflip.given == truth.labels)).all()


def test_present_targets_are_classes_of_the_client() -> None:
    counts = [[40, 30, 0, 0], [0, 0, 20, 50], [10, 0, 10, 60]]
    truth = truth_of(counts)
    result = corrupt({"name": "symmetric", "rate": 0.5, "targets": "present"}, truth)
    for client, row in enumerate(counts):
        assert set(result.given[truth.owner == client]) <= set(np.flatnonzero(row))
    assert changed(truth, result).tolist() == [35, 35, 40]


def test_present_targets_are_uniform() -> None:
    truth = truth_of([[0, 9000, 1, 1, 0, 1]])
    moved = confusion(
        truth, corrupt({"name": "symmetric", "rate": 1, "targets": "present"}, truth)
    )[1]
    assert moved[[0, 1, 4]].tolist() == [0, 0, 0]
    assert np.abs(moved[[2, 3, 5]] - 3000).max() < 5 * np.sqrt(2000)


def test_present_targets_on_a_client_of_one_class_are_refused() -> None:
    truth = truth_of([[5, 5], [9, 0]])
    with pytest.raises(
        ConfigError, match=r"two classes on every noisy client; got one class on client 1"
    ):
        corrupt({"name": "symmetric", "rate": 0.5, "targets": "present"}, truth)
    quiet = corrupt({"name": "symmetric", "rate": [0.4, 0], "targets": "present"}, truth)
    assert changed(truth, quiet).tolist() == [4, 0]


def test_others_need_a_second_class() -> None:
    with pytest.raises(ConfigError, match=r"at least two classes; got 1"):
        corrupt({"name": "symmetric", "rate": 0.5}, truth_of([[5]]))


@pytest.mark.parametrize(("count", "spread"), [("exact", False), ("bernoulli", True)])
def test_only_bernoulli_counts_vary(count: str, spread: bool) -> None:
    truth = federation(clients=30)
    assert (
        np.ptp(changed(truth, corrupt({"name": "symmetric", "rate": 0.3, "count": count}, truth)))
        > 0
    ) == spread


def test_flips_of_equal_clients_do_not_repeat() -> None:
    """One benchmark seeds every client alike, so that equal clients carry equal flips."""
    truth = federation(clients=20)
    truth = type(truth)(
        np.tile(np.repeat(np.arange(10), 50), 20),
        np.repeat(np.arange(20), 500),
        truth.position,
        20,
        10,
        truth.images,
    )
    wrong = (corrupt({"name": "symmetric", "rate": 0.4}, truth).given != truth.labels).reshape(
        20, 500
    )
    assert len({tuple(row) for row in wrong}) == 20


@pytest.mark.parametrize("settings", [{}, {"rho": 0.4, "beta": 0.2}])
def test_fbnll_uniform_flips_a_fifth_of_all_and_half_of_the_noisy(settings: dict[str, Any]) -> None:
    truth = federation(clients=4000, per_class=5)
    result = corrupt({"name": "uniform", **settings}, truth)
    assert np.mean(result.given != truth.labels) == pytest.approx(0.216, abs=0.025)
    noisy = result.nominal[truth.owner] > 0
    assert np.mean((result.given != truth.labels)[noisy]) == pytest.approx(0.54, abs=0.03)
    assert np.mean(result.nominal > 0) == pytest.approx(0.4, abs=0.04)
