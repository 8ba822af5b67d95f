"""The local K-similarity constraint: the step against its equations, the encoder's two views, and
what is cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.local_k_similarity import (
    LocalKSimilarity,
    keep_encoder,
    train_with_neighbours,
)
from rayfl.config.files import merge_settings
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.losses.k_similarity import find_nearest_in_batch
from rayfl.learn.resident import Resident
from rayfl.models.encoders.base import hash_encoder
from rayfl.models.network import Network
from rayfl.protocol import Client, Out
from tests.algorithms.conformance import Row, run_toy, shortened
from tests.algorithms.local_k_similarity_toys import (
    BATCH,
    METHOD,
    TINY,
    TinyEncoder,
    constraint,
    fleet_of,
    shared,
    toy,
)

# the gradient of the constraint grows as features shrink: without normalisation the toy's rate
# kills a small network
NORMALISED = {
    "model": {"name": "cnn4", "widths": [8, 8]},
    "training": {"batch_size": 32, "lr": 0.1},
}


ROWS = [
    Row(
        "local_k_similarity",
        METHOD,
        config=NORMALISED,
        floor=0.95,
        neutral={**METHOD, "strength": 0},
        same_as={"name": "fedavg"},
        refused=[
            ({"k": 0}, "method.k.* 1"),
            ({"temperature": 0}, "method.temperature.* 0"),
            ({"strength": -1}, "method.strength.* 0"),
            ({"view": "augmented"}, "method.view.*'cached' or 'batch'"),
            ({"encoder": "hogg"}, "unknown encoder 'hogg'. Did you mean 'hog'"),
        ],
    ),
    Row(
        "local_k_similarity_batch",
        BATCH,
        config=merge_settings(
            NORMALISED,
            {
                "model": {"widths": [16, 16]},
                "training": {"augment": {"name": "crop_flip", "padding": 0, "flip": 0.5}},
            },
        ),
        floor=0.85,
        neutral={**BATCH, "strength": 0},
        same_as={"name": "fedavg"},
    ),
]


# -- one step against the equations ----------------------------------------------------------------


FLIP = {"name": "crop_flip", "padding": 0, "flip": 1.0}


@pytest.mark.parametrize("view", ["cached", "batch"])
@pytest.mark.parametrize(
    "settings",
    [
        {"k": 4, "temperature": 0.3, "strength": 3.0, "self_in_denominator": True},
        {"k": 2, "temperature": 0.5, "strength": 1.5, "self_in_denominator": False},
    ],
)
def test_a_step_goes_down_the_gradient_of_the_paper(
    settings: dict[str, Any], view: str, tmp_path: Path
) -> None:
    """Under a flip that is certain, the batch view sees flipped images and the cached view the
    clean ones."""
    training = {"batch_size": 60, "epochs": 1, "lr": 0.5, "momentum": 0.0, "augment": FLIP}
    config = toy({**BATCH, "view": view, **settings}, tmp_path, training=training)
    fleet, sha256, shape = fleet_of(config)
    shared(fleet, config, sha256, shape, tmp_path)
    assert isinstance(fleet, InlineFleet)
    executor = fleet.executor
    start = Resident(executor.learner.build(), torch.device("cpu")).dump()
    trained = fleet.get(
        fleet.map(train_with_neighbours, [0], w=start, method=config.method).mean({0: 1.0})
    )

    shard = executor.holdings.shard(0)
    flipped = np.ascontiguousarray(shard.x[:, :, ::-1])
    encoder = TinyEncoder().build(shape)
    reference = torch.from_numpy(encoder.encode(shard.x))
    if view == "batch":
        reference = encoder.encode_tensor(torch.from_numpy(flipped).permute(0, 3, 1, 2) / 255)
    resident = Resident(executor.learner.build(), torch.device("cpu")).load(start)
    net = resident.net
    assert isinstance(net, Network)
    z = net.features(torch.from_numpy(flipped).permute(0, 3, 1, 2) / 255)
    wrong = nn.functional.cross_entropy(net.head(z), torch.from_numpy(np.array(shard.y)))
    k, temperature, strength, self_in = settings.values()
    (
        wrong + strength * constraint(z, reference.double(), k, temperature, self_in).mean()
    ).backward()
    np.testing.assert_allclose(trained, start - 0.5 * resident.gradient.numpy(), atol=2e-6)
    assert np.abs(trained - start).max() > 0.01


@pytest.mark.parametrize(("method", "passes"), [({"name": "fedavg"}, 1), (METHOD, 1), (BATCH, 2)])
def test_costs_are_one_forward_pass_and_one_of_an_encoder_that_sees_batches(
    method: dict[str, Any], passes: int, tmp_path: Path
) -> None:
    outcome, _ = run_toy(shortened(toy(method, tmp_path), 1))
    metrics = outcome.history[0]["metrics"]
    assert metrics["cost/forward"] == passes * metrics["cost/backward"] == passes * 4 * 60 * 2
    assert metrics["cost/down_mb"] == 4 * len(outcome.models[None]) * 4 / 1e6


@pytest.mark.parametrize("seed", [0, 1])
def test_without_strength_no_encoder_has_an_influence(seed: int, tmp_path: Path) -> None:
    method = {**BATCH, "encoder": {**TINY, "seed": seed}, "strength": 0.0}
    neutral, _ = run_toy(shortened(toy(method, tmp_path), 2), directory="neutral")
    fedavg, _ = run_toy(shortened(toy({"name": "fedavg"}, tmp_path), 2), directory="fedavg")
    assert neutral.sha256 == fedavg.sha256


@pytest.mark.parametrize(
    "change", [{"k": 2}, {"temperature": 1.0}, {"self_in_denominator": False}, {"strength": 1.0}]
)
def test_every_setting_counts(change: dict[str, Any], tmp_path: Path) -> None:
    one, _ = run_toy(shortened(toy(METHOD, tmp_path), 1), directory="one")
    other, _ = run_toy(shortened(toy({**METHOD, **change}, tmp_path), 1), directory="other")
    assert one.sha256 != other.sha256


def test_features_gather_around_the_reference_neighbours(tmp_path: Path) -> None:
    """After training, images that the encoder finds similar are similar to the network, more than
    without."""
    agreement = {}
    for strength in (0.0, 3.0):
        config = toy({**METHOD, "strength": strength}, tmp_path, **NORMALISED)
        outcome, fleet = run_toy(config, directory=f"strength {strength}")
        assert isinstance(fleet, InlineFleet)
        x = fleet.executor.holdings.x[:100]
        learner = fleet.executor.learner
        net = learner.resident(outcome.models[None]).net.eval()
        assert isinstance(net, Network)
        near = find_nearest_in_batch(torch.from_numpy(x.reshape(100, -1) / 255.0), 4)
        with torch.no_grad():
            z = nn.functional.normalize(net.features(learner.normalise(learner.pixels(x))), dim=1)
        similarity = z @ z.T
        agreement[strength] = float(similarity.gather(1, near).mean() - similarity.mean())
    assert agreement[3.0] > agreement[0.0] + 0.1


# -- the frozen encoder ----------------------------------------------------------------------------


def encoder_hash(client: Client, *, method: LocalKSimilarity) -> Out:
    frozen = keep_encoder(client, method.encoder)
    return Out({"sha256": hash_encoder(frozen.kind, {}, frozen.module.state_dict())})


@pytest.mark.parametrize("place", ["inline", "ray3"])
def test_the_encoder_is_the_same_everywhere_and_never_trained(
    place: str, tmp_path: Path, cluster: None
) -> None:
    config = toy(BATCH, tmp_path)
    method = config.method
    fleet, _, shape = fleet_of(config, place)
    fresh = TinyEncoder().build(shape)
    expected = {hash_encoder(fresh.kind, {}, fresh.module.state_dict())}
    try:
        for _ in range(2):
            hashes = {
                r["sha256"] for r in fleet.map(encoder_hash, fleet.clients, method=method).values()
            }
            assert hashes == expected
            start = np.full(1108, 0.01, np.float32)
            trained = fleet.get(
                fleet.map(train_with_neighbours, fleet.clients, w=start, method=method).mean(
                    {0: 1.0}
                )
            )
            assert not np.array_equal(trained, start)
    finally:
        fleet.close()


def test_identity_features_rank_like_pixels(tmp_path: Path) -> None:
    config = toy(METHOD, tmp_path)
    fleet, sha256, shape = fleet_of(config)
    shared(fleet, config, sha256, shape, tmp_path)
    assert isinstance(fleet, InlineFleet)
    found = find_nearest_in_batch(
        torch.from_numpy(np.array(fleet.executor.features["reference"])), 4
    )
    x = fleet.executor.holdings.x.reshape(360, -1).astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    cosines = x @ x.T - 9 * np.eye(360)
    assert np.array_equal(found.numpy(), np.argsort(-cosines, axis=1, kind="stable")[:, :4])


# -- refusals before the first round ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "training", "match"),
    [
        (
            {**METHOD, "view": "batch"},
            {},
            "view: batch needs an encoder that is a network.*got Pixels.*view: cached",
        ),
        (
            {**METHOD, "k": 16},
            {},
            "method.k is at most 15 in batches of 16; got 16. Lower method.k",
        ),
        (
            {**METHOD, "k": 15, "self_in_denominator": False},
            {},
            "method.k is at most 14 in batches of 16; got 15",
        ),
        (METHOD, {"batch_size": 4}, "at most 3 in batches of 4; got 4.*raise training.batch_size"),
        (
            {**METHOD, "encoder": {"name": "hog", "cell": 8}},
            {},
            "cells of 8x8 pixels; got 8x8. Make `cell` smaller",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_round(
    method: dict[str, Any], training: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        run_toy(toy(method, tmp_path, training=training))
