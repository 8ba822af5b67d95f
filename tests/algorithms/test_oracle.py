"""The oracle and its companion without noise: who trains on what, and what they must coincide
with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.oracle import CleanFedAvg, Oracle
from rayfl.config.schema import Config
from rayfl.errors import ConfigError
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.run.assembly import build_holdings, narrow_scenario
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config

ROWS = [
    Row("oracle", {"name": "oracle"}, refused=[({"labels": "given"}, "labels")]),
    Row("clean_fedavg", {"name": "clean_fedavg"}, floor=0.95),
]

RAMP = {"name": "ramp", "min": 0.0, "max": 0.4}


def toy(tmp_path: Path, method: str, **more: Any) -> Config:
    return toy_config(ROWS[0], tmp_path, {"name": method}, **more)


def scenario_of(config: Config) -> Scenario:
    return open_federation(config, config.seeds_for("data"))[1]


def rates(*values: float) -> dict[str, Any]:
    return {"name": "symmetric", "rate": list(values)}


@pytest.mark.parametrize("method", ["oracle", "clean_fedavg"])
def test_without_noise_it_is_federated_averaging(method: str, tmp_path: Path) -> None:
    one, _ = run_toy(toy(tmp_path, method, noise="none"), directory="one")
    other, _ = run_toy(toy(tmp_path, "fedavg", noise="none"), directory="other")
    assert one.sha256 == other.sha256


def test_clean_averaging_never_sees_the_noise(tmp_path: Path) -> None:
    noisy, _ = run_toy(toy(tmp_path, "clean_fedavg"), directory="noisy")
    clean, _ = run_toy(toy(tmp_path, "fedavg", noise="none"), directory="clean")
    assert noisy.sha256 == clean.sha256


@pytest.mark.parametrize("rate", [RAMP, [0.0, 0.1, 0.5, 1.0, 0.97, 0.3]])
def test_kept_and_dropped_are_the_clients_samples(rate: Any, tmp_path: Path) -> None:
    config = toy(tmp_path, "oracle", noise={"name": "symmetric", "rate": rate})
    whole = scenario_of(config)
    seen = narrow_scenario(Oracle(), whole)
    assert whole.true is not None
    for client in range(6):
        kept, owned = seen.shard(client), whole.shard(client)
        dropped = np.setdiff1d(owned, kept)
        assert set(kept) <= set(owned)
        assert (whole.given[kept] == whole.true[kept]).all()
        assert (whole.given[dropped] != whole.true[dropped]).all()
        assert len(dropped) == int(whole.nominal[client] * len(owned) + 1e-9)


@pytest.mark.parametrize(
    ("noise", "dropped"),
    [
        ({"name": "symmetric", "rate": RAMP}, 9_900),
        ({"name": "asymmetric", "pairs": "previous", "rate": RAMP}, 9_900),
        ({"name": "symmetric", "rate": {**RAMP, "max": 0.8}}, 19_800),
        (
            {
                "name": "mixed",
                "parts": [
                    {"noise": {"name": "symmetric", "rate": RAMP}, "clients": 0.5},
                    {
                        "noise": {"name": "asymmetric", "pairs": "previous", "rate": RAMP},
                        "clients": 0.5,
                    },
                ],
            },
            9_800,
        ),
    ],
    ids=["symmetric", "asymmetric", "heavy", "mixed"],
)
def test_what_the_papers_settings_drop(noise: dict[str, Any], dropped: int, tmp_path: Path) -> None:
    cifar_like = {"name": "blobs", "samples": 50_000, "test_samples": 10, "classes": 10, "side": 1}
    shards = {"name": "shards", "per_client": 2}
    config = toy(tmp_path, "oracle", data=cifar_like, clients=100, partition=shards, noise=noise)
    whole = scenario_of(config)
    assert (whole.sizes() == 500).all()
    assert 50_000 - narrow_scenario(Oracle(), whole).sizes().sum() == dropped


def test_the_kind_of_noise_does_not_matter_to_an_oracle(tmp_path: Path) -> None:
    noises = {
        "symmetric": {"name": "symmetric", "rate": RAMP},
        "asymmetric": {"name": "asymmetric", "pairs": "previous", "rate": RAMP},
    }
    runs = [
        run_toy(toy(tmp_path, "oracle", noise=noise), directory=name)[0]
        for name, noise in noises.items()
    ]
    assert runs[0].sha256 == runs[1].sha256
    assert [r["metrics"] for r in runs[0].history] == [r["metrics"] for r in runs[1].history]


def test_costs_and_weights_are_those_of_the_reduced_sets(tmp_path: Path) -> None:
    config = toy(tmp_path, "oracle", training={"clients_per_round": 6})
    sizes = narrow_scenario(Oracle(), scenario_of(config)).sizes()
    outcome, fleet = run_toy(shortened(config, 1))
    metrics = outcome.history[0]["metrics"]
    assert [fleet.size(client) for client in range(6)] == sizes.tolist()
    assert metrics["cost/forward"] == metrics["cost/backward"] == 2 * sizes.sum() < 2 * 360
    parameters = len(next(iter(outcome.models.values())))
    assert metrics["cost/down_mb"] == metrics["cost/up_mb"] == 6 * parameters * 4 / 1e6


def test_clients_left_without_samples_are_never_drawn(tmp_path: Path) -> None:
    config = toy(tmp_path, "oracle", noise=rates(1, 0, 1, 0.5, 1, 1))
    outcome, fleet = run_toy(config)
    assert list(fleet.clients) == [1, 3]
    assert {client for t in range(50) for client in fleet.sample(t)} == {1, 3}
    assert [r["metrics"]["clients/participants"] for r in outcome.history] == [2.0] * 6
    # Both take part in every round, with all that is left of them.
    assert {r["metrics"]["cost/forward"] for r in outcome.history} == {
        2.0 * (fleet.size(1) + fleet.size(3))
    }


def test_one_right_label_is_enough(tmp_path: Path) -> None:
    config = toy(tmp_path, "oracle", noise=rates(59 / 60, 1, 1, 1, 1, 1))
    outcome, fleet = run_toy(config)
    assert (list(fleet.clients), fleet.size(0)) == ([0], 1)
    assert all(np.isfinite(vector).all() for vector in outcome.models.values())


def test_no_right_label_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an oracle needs a client with a right label"):
        run_toy(toy(tmp_path, "oracle", noise=rates(*[1] * 6)))


@pytest.mark.parametrize("method", [Oracle(), CleanFedAvg()])
def test_no_wrong_label_reaches_a_place(method: Any, tmp_path: Path) -> None:
    config = toy(tmp_path, "oracle")
    dataset, whole = open_federation(config, config.seeds_for("data"))
    holdings = build_holdings(config, dataset, narrow_scenario(method, whole))
    assert whole.true is not None
    for client in range(6):
        labels = holdings.shard(client).y
        assert labels is not None
        assert np.array_equal(labels, whole.true[holdings.rows(client)])


def test_truth_is_needed(tmp_path: Path) -> None:
    from rayfl.errors import DataError

    unknown = scenario_of(toy(tmp_path, "oracle", labels="given", noise="none"))
    with pytest.raises(DataError, match="needs true labels"):
        narrow_scenario(Oracle(), unknown)
