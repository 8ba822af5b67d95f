"""From a configuration and a scenario to the parts of a fleet, and what is kept from them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfl.config.schema import Config
from rayfl.errors import ConfigError, DataError
from rayfl.federation.dataset import Dataset
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.federation.split import Role
from rayfl.fleet.executor import Holdings
from rayfl.learn.resident import Resident
from rayfl.learn.training import Normalisation
from rayfl.protocol import Algorithm
from rayfl.run.assembly import (
    NetworkRecipe,
    build_holdings,
    build_spec,
    measure_moments,
    narrow_scenario,
    normalisation_of,
    refuse_missing_sets,
)
from tests.algorithms.conformance import Row, toy_config

ALL_SETS = {
    "split": {
        "public": {"fraction": 0.1},
        "validation": {"fraction": 0.1},
        "labelled": {"fraction": 0.1},
    }
}


class Asking(Algorithm):
    needs = {"public": "images", "labelled": "labels"}  # noqa: RUF012


class Unlabelled(Algorithm):
    client_labels = False


class Clean(Algorithm):
    labels = "clean"


class Right(Algorithm):
    labels = "true"


def opened(folder: Path, **more: Any) -> tuple[Config, Dataset, Scenario]:
    config = toy_config(Row("toy", {"name": "fedavg"}, config=more), folder)
    return (config, *open_federation(config, 0))


def held(folder: Path, method: Algorithm, **more: Any) -> tuple[Holdings, Scenario, Dataset]:
    config, dataset, scenario = opened(folder, **more)
    return (
        build_holdings(
            config.model_copy(update={"method": method}), dataset, narrow_scenario(method, scenario)
        ),
        scenario,
        dataset,
    )


# -- who sees what ---------------------------------------------------------------------------------


def test_clients_hold_their_rows_with_given_labels(tmp_path: Path) -> None:
    holdings, scenario, dataset = held(tmp_path, Algorithm())
    assert not np.array_equal(scenario.given, scenario.true)  # type: ignore[arg-type]
    for client in range(scenario.clients):
        rows = scenario.shard(client)
        shard = holdings.shard(client)
        assert np.array_equal(holdings.rows(client), rows)
        assert np.array_equal(shard.x, dataset.train.x[rows])
        assert np.array_equal(shard.y, scenario.given[rows])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", [Algorithm(), Asking(), Unlabelled()], ids=lambda m: type(m).__name__
)
def test_true_labels_lie_on_no_actor(method: Algorithm, tmp_path: Path) -> None:
    """Beside the test set's, no array of the holdings tells more than the given labels."""
    holdings, scenario, _ = held(tmp_path, method, **ALL_SETS)
    assert holdings.y is scenario.given
    arrays = {name: shard.y for name, shard in holdings.sets.items() if name != "test"}
    assert scenario.true is not None
    for name, labels in arrays.items():
        rows = scenario.indices(Role[name.upper()])
        assert labels is None or np.array_equal(labels, scenario.given[rows])


@pytest.mark.parametrize(
    ("method", "labelled"),
    [(Algorithm(), set()), (Asking(), {"labelled"})],
    ids=["asks for nothing", "asks for labels of one set"],
)
def test_labels_of_named_sets_only_on_demand(
    method: Algorithm, labelled: set[str], tmp_path: Path
) -> None:
    holdings, scenario, dataset = held(tmp_path, method, **ALL_SETS)
    assert set(holdings.sets) == {"test", "public", "validation", "labelled"}
    assert {name for name, shard in holdings.sets.items() if shard.y is not None} == labelled | {
        "test"
    }
    for role in (Role.PUBLIC, Role.VALIDATION, Role.LABELLED):
        assert np.array_equal(
            holdings.sets[role.name.lower()].x, dataset.train.x[scenario.indices(role)]
        )


def test_sets_that_are_empty_are_not_there(tmp_path: Path) -> None:
    holdings, _, dataset = held(tmp_path, Algorithm())
    assert set(holdings.sets) == {"test"}
    assert np.array_equal(holdings.sets["test"].y, dataset.test.y)  # type: ignore[arg-type]


def test_a_capped_test_set(tmp_path: Path) -> None:
    holdings, scenario, dataset = held(tmp_path, Algorithm(), split={"test_samples": {"total": 40}})
    assert len(holdings.sets["test"]) == 40
    assert np.array_equal(holdings.sets["test"].x, dataset.test.x[scenario.test])


def test_fingerprints_tell_sets_apart(tmp_path: Path) -> None:
    holdings, _, _ = held(tmp_path, Asking(), **ALL_SETS)
    assert set(holdings.fingerprints) == set(holdings.sets)
    assert len(set(holdings.fingerprints.values())) == 4
    assert holdings.fingerprints["test"] == "all"


@pytest.mark.parametrize(
    ("method", "labels"), [(Algorithm(), True), (Unlabelled(), False)], ids=["with", "without"]
)
def test_client_labels_are_the_methods_choice(
    method: Algorithm, labels: bool, tmp_path: Path
) -> None:
    assert (held(tmp_path, method)[0].shard(0).y is not None) == labels


def test_an_oracle_sees_the_truth(tmp_path: Path) -> None:
    _, _, scenario = opened(tmp_path)
    assert scenario.true is not None
    assert narrow_scenario(Algorithm(), scenario) is scenario
    clean, right = narrow_scenario(Clean(), scenario), narrow_scenario(Right(), scenario)
    assert np.array_equal(right.given, scenario.true)
    rows = np.concatenate([clean.shard(client) for client in range(clean.clients)])
    assert len(rows) == np.sum(scenario.given == scenario.true)
    assert np.array_equal(clean.given[rows], scenario.true[rows])


@pytest.mark.parametrize("method", [Clean(), Right()], ids=["clean", "true"])
def test_an_oracle_needs_a_truth(method: Algorithm, tmp_path: Path) -> None:
    _, _, scenario = opened(tmp_path, labels="given", noise="none")
    with pytest.raises(DataError, match="needs true labels; got a scenario with labels: given"):
        narrow_scenario(method, scenario)


def test_a_missing_set_is_refused_with_a_remedy(tmp_path: Path) -> None:
    refuse_missing_sets(Asking(), held(tmp_path, Asking(), **ALL_SETS)[0])
    match = (
        r"Asking needs the set 'public'; got a split without it \(sets: test\)\. Set split\.public"
    )
    with pytest.raises(ConfigError, match=match):
        refuse_missing_sets(Asking(), held(tmp_path, Asking())[0])


def test_a_set_that_no_split_knows_is_told_from_one_that_is_missing(tmp_path: Path) -> None:
    class Misspelt(Algorithm):
        needs = {"labeled": "labels"}  # noqa: RUF012

    match = r"needs the set 'labeled'; .* Did you mean 'labelled'\? A split knows public, valid"
    with pytest.raises(ConfigError, match=match):
        refuse_missing_sets(Misspelt(), held(tmp_path, Algorithm())[0])


@pytest.mark.parametrize(
    ("method", "drawn"),
    [({"name": "fedavg"}, False), ({"name": "tests.reliability.methods:Stateful"}, True)],
)
def test_global_streams_are_seeded_where_code_from_outside_may_draw_from_them(
    method: dict[str, Any], drawn: bool, tmp_path: Path
) -> None:
    config = toy_config(Row("toy", method), tmp_path)
    learner = build_spec(config, *open_federation(config, 0), "cpu").make_learner()
    learner.seed_streams(1)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    left = (random.random(), np.random.random())  # noqa: NPY002
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    learner.seed_streams(1)
    assert ((random.random(), np.random.random()) != left) is drawn  # noqa: NPY002


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50, 4, 4, 1), (7, 3, 5, 3)])
def test_moments_are_those_of_the_pixels(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    mean, std = measure_moments(x)
    pixels = x.reshape(-1, shape[3]) / 255
    np.testing.assert_allclose(mean, pixels.mean(axis=0))
    np.testing.assert_allclose(std, pixels.std(axis=0))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, Normalisation()),
        ({"mean": [0.5], "std": [0.2]}, Normalisation(mean=(0.5,), std=(0.2,))),
    ],
)
def test_configured_normalisation(wanted: Any, expected: Normalisation, tmp_path: Path) -> None:
    config, dataset, _ = opened(tmp_path, training={"normalise": wanted})
    assert normalisation_of(config, dataset) == expected


def test_measured_normalisation(tmp_path: Path) -> None:
    config, dataset, _ = opened(tmp_path, training={"normalise": "dataset"})
    found = normalisation_of(config, dataset)
    assert found.mean == pytest.approx([dataset.train.x.mean() / 255])
    assert found.std == pytest.approx([dataset.train.x.std() / 255])


@pytest.mark.parametrize("name", ["mean", "std"])
def test_a_value_for_each_channel_or_one_for_all(name: str, tmp_path: Path) -> None:
    config, dataset, _ = opened(tmp_path, training={"normalise": {name: [0.5, 0.5]}})
    with pytest.raises(
        ConfigError, match=rf"training\.normalise\.{name} has one value a channel \(1\); got 2"
    ):
        normalisation_of(config, dataset)


@pytest.mark.parametrize(("cpus", "threads"), [(0.25, 1), (1.0, 1), (3.0, 3)])
def test_a_place_has_the_threads_of_its_processors(
    cpus: float, threads: int, tmp_path: Path
) -> None:
    config, dataset, scenario = opened(
        tmp_path, resources={"cpus_per_client": cpus}, seeds={"training": 11}
    )
    spec = build_spec(config, dataset, scenario, "cpu")
    assert (spec.threads, spec.cohort, spec.streams.seed) == (threads, 4, 11)
    assert spec.make_learner().training == config.training


def test_a_network_has_the_bits_of_its_seed_and_costs_no_draws(tmp_path: Path) -> None:
    config, dataset, _ = opened(tmp_path)
    recipe = NetworkRecipe(config, dataset.shape, 4)
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    first, second = (Resident(recipe(), torch.device("cpu")).dump() for _ in range(2))
    assert np.array_equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)
    other = NetworkRecipe(opened(tmp_path, seeds={"model": 1})[0], dataset.shape, 4)
    assert not np.array_equal(Resident(other(), torch.device("cpu")).dump(), first)


READ = """
import pickle, sys
from pathlib import Path
import rayfl.run.experiment, rayfl.fleet.on_ray.ray_fleet
from rayfl.run.assembly import build_holdings, build_spec
from rayfl.config.schema import validate_config
from rayfl.run.engine import Engine
from rayfl.run.environment import library_versions
from rayfl.federation.scenario import open_federation

output = sys.argv[1]
blobs = {"name": "blobs", "samples": 60, "test_samples": 20, "side": 28}
settings = {"data": blobs, "clients": 3, "output": output}
for method in "fedavg", "fedprox":
    for model in "mlp", "mnist_cnn":
        config = validate_config({**settings, "method": method, "model": model})
        dataset, scenario = open_federation(config, 0)
        engine = Engine(config, scenario, output, {}, dataset.shape, Path(output))
        spec = build_spec(config, dataset, scenario, "cpu")
        parts = engine, spec, build_holdings(config, dataset, scenario)
        pickle.loads(pickle.dumps(parts))
loaded = [library for library in ("torch", "scipy") if library in sys.modules]
print(loaded, library_versions()["torch"])
import torch
print(torch.__version__)
"""


def test_a_run_is_described_without_torch(tmp_path: Path) -> None:
    """The driver and the coordinator do no more than this, and stay half as large."""
    command = [sys.executable, "-c", READ, str(tmp_path)]
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True
    ).stdout.split("\n")
    assert told[0] == f"[] {told[1]}"
