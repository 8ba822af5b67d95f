from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rayfl.errors import ConfigError
from rayfl.federation.arrays import Floats
from rayfl.federation.noise import NOISES, RATES
from rayfl.federation.noise.symmetric import Symmetric


def rates(spec: Any, clients: int, seed: int = 0) -> Floats:
    return RATES.build(spec).per_client(clients, np.random.default_rng(seed))


@pytest.mark.parametrize(("top", "last", "mean"), [(0.4, 0.396, 0.198), (0.8, 0.792, 0.396)])
def test_fedrn_ramp_stays_below_its_maximum(top: float, last: float, mean: float) -> None:
    ramp = rates({"name": "ramp", "max": top}, 100)
    assert ramp[0] == 0
    assert ramp[99] == pytest.approx(last, abs=1e-12)
    assert ramp.mean() == pytest.approx(mean, abs=1e-12)


def test_a_ramp_may_start_above_zero() -> None:
    assert rates({"name": "ramp", "min": 0.2, "max": 0.6}, 4) == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_fedds_rates_are_uniform_over_tenths() -> None:
    drawn = rates("discrete", 20_000)
    values, times = np.unique(drawn, return_counts=True)
    assert values.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert np.abs(times - 2000).max() < 5 * np.sqrt(2000 * 0.9)
    assert drawn.mean() == pytest.approx(0.55, abs=0.01)


@pytest.mark.parametrize(("clients", "fewest", "most"), [(100, 10, 10), (104, 10, 11), (3, 1, 1)])
def test_balanced_rates_occur_equally_often(clients: int, fewest: int, most: int) -> None:
    drawn = rates({"name": "discrete", "balanced": True}, clients)
    times = np.unique(drawn, return_counts=True)[1]
    assert (times.min(), times.max(), times.sum()) == (fewest, most, clients)
    assert (drawn != rates({"name": "discrete", "balanced": True}, clients, seed=1)).any()


def test_fedcorr_rates_are_bernoulli_times_uniform() -> None:
    drawn = rates({"name": "rho_tau", "rho": 0.7, "tau": 0.2}, 20_000)
    noisy = drawn[drawn > 0]
    assert len(noisy) / 20_000 == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / 20_000))
    assert noisy.min() >= 0.2
    assert noisy.mean() == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(("rho", "low", "high"), [(0.0, 0.0, 0.0), (1.0, 0.5, 1.0)])
def test_rho_at_its_ends(rho: float, low: float, high: float) -> None:
    drawn = rates({"name": "rho_tau", "rho": rho, "tau": 0.5}, 500)
    assert drawn.min() >= low
    assert drawn.max() <= high


def test_uniform_rates_fill_their_interval() -> None:
    drawn = rates({"name": "uniform", "min": 0.1, "max": 0.3}, 5000)
    assert 0.1 <= drawn.min() < 0.11
    assert 0.29 < drawn.max() <= 0.3


@pytest.mark.parametrize(
    ("short", "full"),
    [
        (0.4, {"name": "constant", "value": 0.4}),
        (1, {"name": "constant", "value": 1}),
        ([0.1, 0.2], {"name": "explicit", "values": [0.1, 0.2]}),
    ],
)
def test_numbers_and_lists_are_short_for_components(short: Any, full: Any) -> None:
    noise = NOISES.build({"name": "symmetric", "rate": short})
    assert isinstance(noise, Symmetric)
    assert noise.rate == RATES.build(full)
    assert noise == NOISES.build({"name": "symmetric", "rate": full})


def test_listed_rates_are_taken_as_written_and_must_be_one_a_client() -> None:
    assert rates({"name": "explicit", "values": [0, 0.5, 1]}, 3).tolist() == [0, 0.5, 1]
    with pytest.raises(ConfigError, match=r"one rate for each of 4 clients; got 3"):
        rates({"name": "explicit", "values": [0, 0.5, 1]}, 4)


@pytest.mark.parametrize(
    ("rate", "rule"),
    [
        (1.4, r"less than or equal to 1"),
        (-0.1, r"greater than or equal to 0"),
        (float("nan"), r"finite number"),
        ([0.1, 2], r"less than or equal to 1"),
        (True, r"a noise rate is a name or a mapping"),
        ("steep", r"unknown noise rate 'steep'"),
        ({"name": "ramp", "min": 0.5, "max": 0.4}, r"min is at most max; got min 0\.5, max 0\.4"),
        ({"name": "uniform", "min": 0.5, "max": 0.4}, r"min is at most max"),
        ({"name": "rho_tau", "rho": 1.2, "tau": 0}, r"rho"),
        ({"name": "discrete", "values": []}, r"at least 1 item"),
    ],
    ids=str,
)
def test_rates_out_of_range_are_refused(rate: Any, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        NOISES.build({"name": "symmetric", "rate": rate})


@pytest.mark.parametrize("name", RATES.names())
def test_every_registered_name_leads_to_a_component(name: str) -> None:
    assert hasattr(RATES.find(name), "per_client")
