"""FedAnchor: guesses by class means, and what travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.fedanchor import (
    Anchored,
    FedAnchor,
    average_latents,
    guess_by_anchors,
    train_on_guesses,
)
from rayfl.errors import ConfigError
from rayfl.learn.augment.base import Unchanged
from rayfl.models.network import Network
from rayfl.protocol import Client, Shard
from tests.algorithms.conformance import Row, run_toy, toy_config
from tests.algorithms.semi_toys import SERVED, STRONG, run_row
from tests.learn.kit import first_weights, make_client, make_learner
from tests.phases import run_phase

METHOD: dict[str, Any] = {"name": "fedanchor", "server_epochs": 2, "latent": 8, "strong": STRONG}

ROWS = [
    Row(
        "fedanchor",
        METHOD,
        {**SERVED, "training": {**SERVED["training"], "rounds": 6}},
        # Without guesses and contrast there is the server's loss alone.
        neutral={**METHOD, "threshold": 1.1, "strength": 0.0},
        same_as={**METHOD, "threshold": 1.1, "strength": 0.0, "temperature": 0.7, "beta": 0.0},
        refused=[
            ({"temperature": 0}, "temperature"),
            ({"latent": 0}, "latent"),
            ({"strength": -1}, "strength"),
            ({"beta": -1}, "beta"),
        ],
    )
]

Z = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]], np.float32)
ANCHORS = np.stack([Z[:2].mean(0), Z[2:].mean(0)])
IMAGE = np.array([[0.6, 0.8]], np.float32)


def test_a_score_is_the_mean_cosine_with_a_class() -> None:
    """Of the class means as they are, not scaled to length 1."""
    cosines = (IMAGE @ Z.T)[0]
    assert [cosines[:2].mean(), cosines[2:].mean()] == pytest.approx([0.78, 0.54], abs=1e-6)
    assert (IMAGE @ ANCHORS.T)[0].tolist() == pytest.approx([0.78, 0.54], abs=1e-6)
    unit = ANCHORS / np.linalg.norm(ANCHORS, axis=1, keepdims=True)
    assert (IMAGE @ unit.T)[0].tolist() == pytest.approx([0.822192, 0.569210], abs=1e-6)


@pytest.mark.parametrize(("order", "expected"), [((0, 1), 0), ((1, 0), 1)])
def test_a_guess_and_how_sure_it_is(order: tuple[int, int], expected: int) -> None:
    predicted, confidence = guess_by_anchors(IMAGE, ANCHORS[list(order)], 0.1)
    assert predicted.tolist() == [expected]
    assert confidence[0] == pytest.approx(0.916827, abs=1e-6)


def build_anchored(i: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU())
        return Anchored(Network(trunk, nn.Linear(6, 3), 6), 4)


def test_anchors_are_means_of_a_class() -> None:
    learner = make_learner(build_anchored)
    owner = make_client(30, learner)
    server = Client(-1, owner.x[:0], owner.y[:0], {}, owner.rng, learner, classes=3)
    w = first_weights(learner)
    out = run_phase(average_latents, server, w=w, data=Shard(owner.x, owner.y))
    assert isinstance(out.update, dict)
    anchors = out.update["anchors"].reshape(3, 4)
    assert (np.linalg.norm(anchors, axis=1) <= 1 + 1e-6).all()
    one = owner.x[owner.y == 1]
    alone = run_phase(
        average_latents,
        server,
        w=w,
        data=Shard(np.concatenate([one] * 3), np.repeat([0, 1, 2], len(one))),
    )
    assert isinstance(alone.update, dict)
    np.testing.assert_allclose(alone.update["anchors"].reshape(3, 4)[0], anchors[1], atol=1e-6)


def test_the_anchor_head_stays_at_the_server() -> None:
    learner = make_learner(build_anchored, batch_size=8, lr=0.1, weight_decay=0.1)
    client = make_client(20, learner, labels=False)
    w = first_weights(learner)
    anchors = np.eye(3, 4, dtype=np.float32).ravel()
    method = FedAnchor(threshold=0.0, strong=Unchanged())
    out = run_phase(train_on_guesses, client, w=w, anchors=anchors, method=method)
    assert isinstance(out.update, np.ndarray)
    assert len(out.update) == 16 * 6 + 6 + 6 * 3 + 3 < len(w)
    nobody = FedAnchor(threshold=1.1, strong=Unchanged())
    out = run_phase(train_on_guesses, client, w=w, anchors=anchors, method=nobody)
    assert (out.update, out.report["sure"]) == (None, 0)


def test_anchors_travel_beside_the_model(tmp_path: Path) -> None:
    found = run_row(ROWS[0], tmp_path, 1, method={"threshold": 0.0}).history[0]["metrics"]
    heads = 16 * 16 + 16 + 16 * 8 + 8
    sent = 4 * 4 * (heads + 4 * 8)
    assert (found["cost/down_mb"] - found["cost/up_mb"]) * 1e6 == pytest.approx(sent, rel=0.02)
    assert found["pseudo/valid"] == 4


def test_pairs_need_a_labelled_set_of_a_batch(tmp_path: Path) -> None:
    row = Row("pairs", METHOD, {**SERVED, "training": {**SERVED["training"], "batch_size": 41}})
    with pytest.raises(ConfigError, match=r"pairs \(41\) is no larger.*got 40 images.*Enlarge"):
        run_toy(toy_config(row, tmp_path))


def test_clients_rest_while_the_server_pretrains(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 3, method={"pretraining": 3})
    found = [record["metrics"]["clients/participants"] for record in outcome.history]
    assert found == [0, 0, 4]
