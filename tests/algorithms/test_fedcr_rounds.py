"""FedCR's rounds, its state and what it logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rayfl.algorithms.fedcr import FedCR, OnlineAndTarget
from rayfl.config.schema import Config, load_config
from rayfl.federation.dataset import Dataset
from rayfl.federation.scenario import Scenario
from rayfl.run.assembly import build_spec
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedcr_toy import BRIEF, ONE_ROUND, SMALL, TOY
from tests.algorithms.fedcr_toys import (
    dealt,
    learner_of,
    method_of,
    parts,
    served,
    trained,
)

CONFIGS = Path(__file__).parents[2] / "configs"


def settings(**more: Any) -> dict[str, Any]:
    return {"name": "fedcr", **SMALL, **ONE_ROUND, **more}


ROWS = [
    Row(
        "fedcr",
        settings(),
        TOY,
        brief=BRIEF,
        neutral=settings(gamma=0.0),
        same_as=settings(supervised="ce"),
        refused=[
            ({"eta": 1.2}, "eta"),
            ({"strength": -1}, "strength"),
            ({"gamma": 2}, "gamma"),
            ({"ema": 1.01}, "ema"),
            ({"delta": 0}, "delta"),
            ({"regulariser": "mse"}, "regulariser"),
            ({"views": "contrastiv"}, "unknown augmentation 'contrastiv'"),
        ],
    ),
    Row("fedcr_stale", settings(client_classifier="stale", regulariser="ctrr"), TOY, brief=BRIEF),
    Row("fedcr_byol", settings(regulariser="byol", client_classifier="none"), TOY, brief=BRIEF),
    Row("fedcr_whole_model", settings(whole_model=True, ema=0.9), TOY, brief=BRIEF),
]


# -- one place, without a fleet --------------------------------------------------------------------


def test_without_contrast_the_predictor_stays() -> None:
    method = method_of(strength=0.0)
    learner = learner_of(method)
    layout = OnlineAndTarget.at(method, learner).layout
    start = dealt(method, learner)
    end = parts(served(method, learner, start))["theta"]
    predictor = slice(layout.encoder, layout.classifier)
    assert np.array_equal(end[predictor], start["theta"][predictor])
    assert not np.array_equal(end[: layout.encoder], start["theta"][: layout.encoder])


def test_statistics_of_the_target_come_from_its_own_passes() -> None:
    method = method_of(ema=1.0)
    learner = learner_of(method)
    start = dealt(method, learner)
    target = OnlineAndTarget.at(method, learner).target
    xi = parts(served(method, learner, start))["xi"]
    assert np.array_equal(xi[: target.n_parameters], start["xi"][: target.n_parameters])
    assert not np.allclose(xi[target.n_parameters :], start["xi"][target.n_parameters :])


def test_without_averaging_the_target_is_the_encoder() -> None:
    method = method_of(ema=0.0)
    learner = learner_of(method)
    pair = OnlineAndTarget.at(method, learner)
    end = parts(served(method, learner, dealt(method, learner)))
    count = pair.layout.encoder
    assert np.array_equal(end["xi"][:count], end["theta"][:count])


@pytest.mark.parametrize(
    ("more", "forward", "backward"),
    [
        ({}, 3, 2),
        ({"regulariser": "byol"}, 5, 3),
        ({"regulariser": "byol", "symmetric": False}, 3, 2),
        ({"strength": 0.0}, 1, 1),
    ],
)
def test_passes_of_the_server(more: dict[str, Any], forward: int, backward: int) -> None:
    method = method_of(**more)
    learner = learner_of(method)
    served(method, learner, dealt(method, learner))
    assert learner.passes.take() == (forward * 16, backward * 16)


@pytest.mark.parametrize(
    ("more", "forward"),
    [({}, 3), ({"client_classifier": "none"}, 2), ({"regulariser": "byol", "symmetric": False}, 2)],
)
def test_passes_of_a_client(more: dict[str, Any], forward: int) -> None:
    method = method_of(**more)
    learner = learner_of(method)
    start = dealt(method, learner)
    trained(method, learner, start, sigma=start["sigma"])
    assert learner.passes.take() == (forward * 16, 16)


# -- rounds ----------------------------------------------------------------------------------------


def sizes(config: Config) -> dict[str, int]:
    """How many floats theta, sigma and xi have in a toy run."""
    data = cast(Dataset, _Blobs())
    learner = build_spec(config, data, cast(Scenario, _Blobs()), "cpu").make_learner()
    return {key: len(vector) for key, vector in dealt(cast(FedCR, config.method), learner).items()}


class _Blobs:
    """The shape of the toy's data."""

    shape = (8, 8, 1)
    classes = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("more", "down", "up"),
    [
        ({}, ["theta", "sigma"], ["theta"]),
        ({"client_classifier": "none"}, ["theta"], ["theta"]),
        ({"regulariser": "byol"}, ["theta"], ["theta"]),
        ({"whole_model": True}, ["theta", "sigma", "xi"], ["theta", "xi"]),
        ({"regulariser": "none"}, [], []),
    ],
    ids=str,
)
def test_traffic(more: dict[str, Any], down: list[str], up: list[str], tmp_path: Path) -> None:
    config = toy_config(Row("traffic", settings(**more), TOY), tmp_path)
    outcome, _ = run_toy(shortened(config, 3))
    size = sizes(config)
    for t, record in enumerate(outcome.history):
        metrics = record["metrics"]
        assert metrics["server/pretraining"] == (t == 0)
        clients = 0 if t == 0 else 4
        assert metrics["cost/down_mb"] == pytest.approx(
            clients * 4 * sum(size[key] for key in down) / 1e6
        )
        assert metrics["cost/up_mb"] == pytest.approx(
            clients * 4 * sum(size[key] for key in up) / 1e6
        )


def test_a_stale_classifier_is_paid_once_a_client(tmp_path: Path) -> None:
    config = toy_config(Row("stale", settings(client_classifier="stale"), TOY), tmp_path)
    outcome, fleet = run_toy(config)
    size = sizes(config)
    total = sum(record["metrics"]["cost/down_mb"] for record in outcome.history) * 1e6 / 4
    assert sorted(fleet.table) == list(range(6))
    assert total == pytest.approx(5 * 4 * size["theta"] + 6 * size["sigma"])


@pytest.mark.parametrize(
    ("pretraining", "passes"), [(0, [2, 2]), (2, [2, 2]), (3, [2, 1, 2]), (4, [2, 2, 2])]
)
def test_pretraining_is_made_of_rounds(pretraining: int, passes: list[int], tmp_path: Path) -> None:
    row = Row("lead", settings(pretraining=pretraining, server_epochs=2, strength=0.0), TOY)
    outcome, _ = run_toy(shortened(toy_config(row, tmp_path), len(passes)))
    metrics = [record["metrics"] for record in outcome.history]
    assert [found["cost/server_backward"] / 160 for found in metrics] == passes
    alone = -(-pretraining // 2)
    assert [found["clients/participants"] for found in metrics] == [0.0] * alone + [4.0] * (
        len(passes) - alone
    )


def test_clients_without_a_whole_batch_are_left_out_and_counted(tmp_path: Path) -> None:
    odd = {
        "partition": {"name": "rayfl.testing.toy:OddShares"},
        "training": {**TOY["training"], "batch_size": 20},
    }
    row = Row("odd", settings(pretraining=0), {**TOY, **odd})
    config = toy_config(row, tmp_path, training={**odd["training"], "clients_per_round": 6})
    outcome, _ = run_toy(shortened(config, 1))
    metrics = outcome.history[0]["metrics"]
    # One sample, a dozen, none (who is nobody's client), and three with enough.
    assert metrics["clients/idle"] == 2
    assert metrics["clients/participants"] == 5
    assert metrics["cost/up_mb"] == pytest.approx(3 * 4 * sizes(config)["theta"] / 1e6)


@pytest.mark.parametrize("whole_model", [False, True])
def test_idle_clients_leave_a_server_that_trains_alone(whole_model: bool, tmp_path: Path) -> None:
    idle = {**TOY, "training": {**TOY["training"], "epochs": 0}}
    federated, alone = (
        Row("idle", settings(pretraining=pretraining, whole_model=whole_model), idle)
        for pretraining in (0, 100)
    )
    hashes = {
        run_toy(shortened(toy_config(row, tmp_path), 3), directory=str(row.method["pretraining"]))[
            0
        ].sha256
        for row in (federated, alone)
    }
    assert len(hashes) == 1


def test_losses_are_logged_apart(tmp_path: Path) -> None:
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 2))
    metrics = outcome.history[1]["metrics"]
    assert 0 < metrics["loss/supervised"] < 1 / 0.6
    assert metrics["loss/contrast"] < 0
    assert metrics["loss/client_contrast"] < 0
    # unit vectors that point anywhere have a spread of 1 / sqrt(16) in each of 16 directions
    assert 0.02 < metrics["target/spread"] <= 0.26


def test_configuration_of_the_paper() -> None:
    config = load_config(CONFIGS / "paper" / "fedcr_cifar10.yaml")
    assert config.method == FedCR()
    training = config.training
    assert (training.optimizer, training.lr, training.batch_size, training.drop_last) == (
        "adam",
        0.003,
        64,
        True,
    )
    assert training.rounds == 700 // 5 + 200
    assert training.cohort(config.clients) == training.epochs == 5
