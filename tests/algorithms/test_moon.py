"""MOON: which models are compared, what a client remembers, what it costs. The loss has its numbers
where it stands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from torch import nn

from rayfl.algorithms.fedavg import Global
from rayfl.algorithms.moon import Moon, contrast_models, project, train_contrastively
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.batches import Batch, draw_batches
from rayfl.models.cnn import MnistCNN
from rayfl.models.heads import ProjectedClassifier
from rayfl.models.network import Network, count_parameters
from rayfl.models.resnet import ResNet18
from rayfl.protocol import Client
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import GivenBlueprint, toy_fleet
from tests.phases import run_phase

PUBLIC = {"split": {"public": 0.2}}
SMALL = {"name": "moon", "out_dim": 16}
# Two more layers are slow to learn, with the contrast or without: the toy's budget is too small for
# them.
LONGER = {"model": {"hidden": [32]}, "training": {"rounds": 8, "epochs": 4, "lr": 0.1}}

ROWS = [
    Row(
        "moon",
        SMALL,
        config=LONGER,
        neutral={"name": "moon", "mu": 0.0, "use_head": False},
        same_as={"name": "fedavg"},
        refused=[
            ({"mu": -0.1}, "mu"),
            ({"tau": 0.0}, "tau"),
            ({"out_dim": 0}, "out_dim"),
            ({"first_negative": "last"}, "first_negative"),
        ],
    ),
    Row("moon_init", {**SMALL, "first_negative": "init"}, config=LONGER),
    Row(
        "moon_dawid_skene",
        {"name": "moon", "use_head": False, "weighting": "dawid_skene"},
        config=PUBLIC,
        neutral={
            "name": "moon",
            "mu": 0.0,
            "use_head": False,
            "weighting": "dawid_skene",
            "first_negative": "init",
        },
        same_as={"name": "fedds"},
    ),
]


def moon_fleet(tmp_path: Path, **training: Any) -> InlineFleet:
    """The toy federation with a network that has the projection head; everybody takes part."""
    config = toy_config(ROWS[0], tmp_path, training={"clients_per_round": 6, **training})
    return toy_fleet(config)


def rounds(method: Moon, fleet: InlineFleet, count: int) -> list[Global]:
    """The states before the first round and after each."""
    states = [method.init(fleet, fleet.initial())]
    for fleet.round in range(count):
        states.append(method.round(states[-1], fleet, fleet.round))
    return states


def visiting(fleet: InlineFleet, **state: NDArray[np.float32]) -> Client:
    """Client 0 in the middle of a phase, with this durable state."""
    shard = fleet.executor.holdings.shard(0)
    return Client(0, shard.x, shard.y, state, np.random.default_rng(0), fleet.executor.learner)


def weights_of(fleet: InlineFleet, seed: int) -> NDArray[np.float32]:
    """Some weights of the toy network."""
    size = len(fleet.get(fleet.initial()))
    return np.random.default_rng(seed).normal(0, 0.5, size).astype(np.float32)


def first_batch(client: Client) -> Batch:
    return next(draw_batches(client, client.learner.training))


def answer(
    client: Client, weights: NDArray[np.float32], batch: Batch
) -> tuple[NDArray[np.float64], torch.Tensor]:
    """Projections by the head's formula, in numpy, and logits of a network with these weights."""
    net = client.learner.resident(weights, "asked").net.eval()
    assert isinstance(net, Network)
    assert isinstance(net.head, ProjectedClassifier)
    with torch.no_grad():
        (w1, b1), (w2, b2) = (
            (layer.weight.numpy(), layer.bias.numpy())
            for layer in net.head.projection
            if isinstance(layer, nn.Linear)
        )
        hidden = np.maximum(net.features(batch.x).numpy().astype(np.float64) @ w1.T + b1, 0)
        return hidden @ w2.T + b2, net(batch.x)


def cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    product = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return np.asarray(product)


@pytest.mark.parametrize(("mu", "tau"), [(1.0, 0.5), (5.0, 0.1), (0.0, 1.0)])
def test_the_loss_is_drawn_to_the_global_model_and_away_from_the_earlier(
    mu: float, tau: float, tmp_path: Path
) -> None:
    """The batch's loss, from the equation; swapping the two models would give another value."""
    fleet = moon_fleet(tmp_path)
    client = visiting(fleet)
    received, earlier, local = (weights_of(fleet, seed) for seed in (1, 2, 3))
    batch = first_batch(client)
    (z, logits), (positive, _), (negative, _) = (
        answer(client, w, batch) for w in (local, received, earlier)
    )
    near, far = np.exp(cosine(z, positive) / tau), np.exp(cosine(z, negative) / tau)
    expected = (
        functional.cross_entropy(logits, batch.y).item() + mu * -np.log(near / (near + far)).mean()
    )

    frozen = client.learner.resident(earlier, "earlier").net.eval()
    loss = contrast_models(client, received, frozen, Moon(mu=mu, tau=tau))
    found = loss(client.learner.resident(local).net, batch)
    assert found is not None
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_the_frozen_models_stay_frozen(tmp_path: Path) -> None:
    fleet = moon_fleet(tmp_path)
    received, earlier = weights_of(fleet, 1), weights_of(fleet, 2)
    client = visiting(fleet, w=earlier)
    out = run_phase(train_contrastively, client, w=received, method=Moon(out_dim=16))
    for name, weights in (("received", received), ("earlier", earlier)):
        resident = client.learner.shape_of(name)
        assert np.array_equal(resident.dump(), weights)
        assert not resident.net.training
        assert not resident.gradient.any()
    assert not np.array_equal(out.state["w"], received)


def test_a_client_remembers_its_own_model_not_the_average(tmp_path: Path) -> None:
    fleet = moon_fleet(tmp_path)
    _, state = rounds(Moon(out_dim=16), fleet, 1)
    refs = [fleet.state(client, "w") for client in fleet.clients]
    remembered = [fleet.get(ref) for ref in refs if ref is not None]
    assert len({vector.tobytes() for vector in remembered}) == 6
    sizes = [fleet.size(client) for client in fleet.clients]
    average = np.average(np.stack(remembered).astype(np.float64), axis=0, weights=sizes)
    np.testing.assert_allclose(fleet.get(state.model), average, atol=1e-6)


def test_the_memory_is_renewed_at_every_visit(tmp_path: Path) -> None:
    fleet = moon_fleet(tmp_path)
    method = Moon(out_dim=16)
    _, state = rounds(method, fleet, 1)
    before = fleet.state(0, "w")
    fleet.round = 1
    method.round(state, fleet, 1)
    after = fleet.state(0, "w")
    assert before is not None
    assert after is not None
    assert not np.array_equal(fleet.get(before), fleet.get(after))


@pytest.mark.parametrize("first_negative", ["skip", "init"])
def test_the_first_round_knows_no_contrast(first_negative: Any, tmp_path: Path) -> None:
    """Nothing to contrast with, or an earlier model that is the global one: log 2 for any z,
    without a gradient."""
    strong = {**SMALL, "mu": 5.0, "first_negative": first_negative}
    contrasted, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path, strong), 1), directory="strong")
    plain, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {**SMALL, "mu": 0.0}), 1), directory="plain"
    )
    np.testing.assert_allclose(contrasted.models[None], plain.models[None], atol=1e-5)


def test_a_late_first_visit_contrasts_with_the_initial_network(tmp_path: Path) -> None:
    fleet = moon_fleet(tmp_path)
    visit = partial(run_phase, train_contrastively, w=weights_of(fleet, 1))
    skip = Moon(out_dim=16, mu=5.0, first_negative="skip")
    skipped = visit(client=visiting(fleet), method=skip)
    begun = visit(client=visiting(fleet), method=replace(skip, first_negative="init"))
    remembered = visit(client=visiting(fleet, w=fleet.get(fleet.initial())), method=skip)
    assert not np.array_equal(skipped.state["w"], begun.state["w"])
    assert np.array_equal(begun.state["w"], remembered.state["w"])


def test_the_contrast_changes_later_rounds(tmp_path: Path) -> None:
    models = []
    for mu in (0.0, 5.0):
        method = replace(Moon(out_dim=16), mu=mu)
        fleet = moon_fleet(tmp_path)
        models.append(fleet.get(rounds(method, fleet, 2)[-1].model))
    assert np.abs(models[0] - models[1]).max() > 1e-3


@pytest.mark.parametrize(("first_negative", "first"), [("skip", 1), ("init", 3)])
def test_costs_three_forward_passes_from_the_second_visit_on(
    first_negative: str, first: int, tmp_path: Path
) -> None:
    method = {**SMALL, "first_negative": first_negative}
    config = toy_config(ROWS[0], tmp_path, method, training={"clients_per_round": 6})
    outcome, _ = run_toy(shortened(config, 2))
    metrics, passes = [record["metrics"] for record in outcome.history], 360 * 4
    assert [m["cost/forward"] for m in metrics] == [first * passes, 3 * passes]
    assert [m["cost/backward"] for m in metrics] == [passes, passes]
    size = len(outcome.models[None]) * 4 * 6 / 1e6
    assert metrics[1]["cost/down_mb"] == metrics[1]["cost/up_mb"] == size


@pytest.mark.parametrize(
    ("network", "shape", "features", "extra"),
    [
        (MnistCNN(), (28, 28, 1), 50, 18_176 - 510),
        (ResNet18(hidden=1024), (32, 32, 3), 512, 396_554 - (513 * 1024 + 1025 * 10)),
    ],
    ids=["mnist_cnn", "resnet18"],
)
def test_the_head_replaces_the_classifier(
    network: Any, shape: tuple[int, int, int], features: int, extra: int
) -> None:
    plain = network.build(shape, 10)
    before = count_parameters(plain)
    headed = Moon().network(GivenBlueprint(plain, shape))
    assert count_parameters(headed) - before == extra
    x = torch.zeros(2, shape[2], *shape[:2])
    z, logits = project(headed.eval(), x)
    assert plain.feature_dim == features
    assert (z.shape, logits.shape) == ((2, 256), (2, 10))
    assert torch.equal(logits, headed(x))


def test_without_the_head_features_are_compared() -> None:
    plain = MnistCNN().build((28, 28, 1), 10)
    assert Moon(use_head=False).network(GivenBlueprint(plain)) is plain
    assert isinstance(plain.head, nn.Linear)
    x = torch.rand(3, 1, 28, 28)
    z, logits = project(plain.eval(), x)
    assert torch.equal(z, plain.features(x))
    assert torch.equal(logits, plain(x))
