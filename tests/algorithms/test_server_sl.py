"""The supervised lower bound: only the server's images and labels count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.server_sl import ServerSL, train_at_server
from rayfl.errors import ConfigError
from rayfl.fleet.executor import Task
from rayfl.fleet.streams import Streams
from rayfl.learn.learner import Learner
from rayfl.learn.losses.gce import gce
from rayfl.learn.optimisers import make_optimiser
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import SERVER, Client, Out, Shard, Vector
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.phases import run_phase

SERVED: Mapping[str, Any] = {
    # so many test images that evaluation has a task for every actor, as training has only one
    "data": {
        "name": "blobs",
        "samples": 360,
        "test_samples": 3100,
        "classes": 4,
        "side": 8,
        "spread": 0.2,
    },
    "split": {"labelled": {"per_class": 25}},
    "noise": "none",
    "labelled_noise": {"name": "symmetric", "rate": 0.3},
    "training": {"optimizer": "adam", "lr": 0.01, "momentum": 0.0, "drop_last": True},
}

ROWS = [
    Row(
        "server_sl",
        {"name": "server_sl", "epochs": 2},
        SERVED,
        neutral={"name": "server_sl", "epochs": 2, "loss": "gce", "gamma": 0.0},
        same_as={"name": "server_sl", "epochs": 2, "loss": "ce", "gamma": 0.9},
        refused=[
            ({"epochs": 0}, "greater than or equal to 1"),
            ({"gamma": 1.1}, "gamma"),
            ({"loss": "mse"}, "loss"),
        ],
    ),
    Row("server_sl_gce", {"name": "server_sl", "epochs": 2, "loss": "gce"}, SERVED),
]


@pytest.mark.parametrize(
    "federation",
    [
        {"clients": 3, "training": {"clients_per_round": 3}},
        {"partition": {"name": "dirichlet", "alpha": 0.1}},
        {"training": {"clients_per_round": 1}},
        {"noise": {"name": "symmetric", "rate": 0.5}},
        {"split": {"client_samples": {"per_class": 10}}},
    ],
    ids=lambda federation: "-".join(federation),
)
def test_clients_change_no_bit(federation: dict[str, Any], tmp_path: Path) -> None:
    here, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 2), directory="here")
    row = ROWS[0]
    training = {**row.config["training"], **federation.get("training", {})}
    split = {**row.config["split"], **federation.get("split", {})}
    other = Row(
        "other", row.method, {**row.config, **federation, "training": training, "split": split}
    )
    there, _ = run_toy(shortened(toy_config(other, tmp_path), 2), directory="there")
    assert there.sha256 == here.sha256


def test_labels_of_the_server_do_change_it(tmp_path: Path) -> None:
    hashes = set()
    for rate in (0.0, 0.3):
        row = Row(
            "other",
            ROWS[0].method,
            {**SERVED, "labelled_noise": {"name": "symmetric", "rate": rate}},
        )
        hashes.add(run_toy(shortened(toy_config(row, tmp_path), 1), directory=str(rate))[0].sha256)
    assert len(hashes) == 2


def test_nothing_is_sent(tmp_path: Path) -> None:
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 2))
    for record in outcome.history:
        metrics = record["metrics"]
        assert (
            metrics["cost/down_mb"] == metrics["cost/up_mb"] == metrics["clients/participants"] == 0
        )
        assert metrics["cost/server_backward"] == 2 * (100 // 16) * 16


def test_a_set_without_a_whole_batch_is_refused(tmp_path: Path) -> None:
    row = Row("small", ROWS[0].method, {**SERVED, "split": {"labelled": {"total": 15}}})
    with pytest.raises(ConfigError, match=r"fills at least one batch.*Enlarge split\.labelled"):
        run_toy(toy_config(row, tmp_path))


@pytest.mark.parametrize(("classes", "expected"), [(10, 2.302585), (100, 4.605170)])
def test_loss_of_uniform_logits(classes: int, expected: float) -> None:
    assert gce(
        torch.zeros(1, classes), torch.zeros(1, dtype=torch.int64), 0.0
    ).item() == pytest.approx(expected)
    assert math.log(classes) == pytest.approx(expected, abs=5e-7)


def test_loss_of_two_images() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    assert gce(logits, torch.tensor([0, 1]), 0.0).mean().item() == pytest.approx(1.751264, abs=5e-7)


def learner_of(settings: LocalTraining) -> Learner:
    def build(i: int = 0) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

    return Learner(build, settings, Normalisation())


def shard_of(samples: int) -> Shard:
    rng = np.random.default_rng(0)
    return Shard(rng.integers(0, 256, (samples, 2, 2, 1), np.uint8), rng.integers(0, 3, samples))


def visit(
    learner: Learner, w: Vector, data: Shard, t: int, epochs: int, memory: Vector | None = None
) -> Out:
    stream = Streams(0)(Task(SERVER, t, {}, {}))
    server = Client(SERVER, data.x[:0], data.y, {}, stream, learner)
    method = ServerSL(epochs=epochs)
    return run_phase(train_at_server, server, w=w, memory=memory, data=data, method=method)


@pytest.mark.parametrize(
    ("samples", "batch", "steps"), [(5000, 64, 78), (500, 64, 7), (450, 64, 7), (63, 64, 0)]
)
def test_steps_of_an_epoch(samples: int, batch: int, steps: int) -> None:
    learner = learner_of(LocalTraining(batch_size=batch, drop_last=True))
    out = visit(learner, learner.first_weights(), shard_of(samples), 0, 1)
    assert out.report["steps"] == steps


@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "adam"}, {"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.0}],
    ids=str,
)
def test_the_optimiser_goes_on_where_it_stopped(settings: dict[str, Any]) -> None:
    """Two visits over all of the data at once are one visit of two steps, in torch's own optimiser
    too."""
    data = shard_of(12)
    learner = learner_of(LocalTraining(batch_size=12, lr=0.05, **settings))
    start = learner.first_weights()
    once = visit(learner, start, data, 0, 1).update
    assert isinstance(once, Mapping)
    frozen = once["optimiser"].copy()
    frozen.flags.writeable = False
    twice, both = (
        visit(learner, once["w"], data, 1, 1, frozen).update,
        visit(learner, start, data, 2, 2).update,
    )
    assert isinstance(twice, Mapping)
    assert isinstance(both, Mapping)
    np.testing.assert_allclose(twice["w"], both["w"], atol=1e-6)
    np.testing.assert_allclose(twice["optimiser"], both["optimiser"], atol=1e-6)
    fresh = visit(learner, once["w"], data, 1, 1).update
    assert isinstance(fresh, Mapping)
    has_memory = settings != {"momentum": 0.0}
    assert (not np.allclose(fresh["w"], both["w"], atol=1e-4)) == has_memory
    assert (len(frozen) > 0) == has_memory


def test_adam_remembers_its_steps() -> None:
    learner = learner_of(LocalTraining(optimizer="adam"))
    first = make_optimiser(learner.shape_of(), learner.training)
    learner.shape_of().gradient.fill_(1.0)
    first.step()
    memory = first.dump()
    assert memory[0] == 1
    again = make_optimiser(learner.shape_of(), learner.training, memory)
    assert np.array_equal(again.dump(), memory)
