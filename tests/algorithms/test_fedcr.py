"""FedCR: what travels, who learns what, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.fedcr import FedCR, OnlineAndTarget, deal, train_at_client, train_at_server
from rayfl.algorithms.parts.online_target import Layout, Online, resident_pair
from rayfl.config.schema import Config, load_config
from rayfl.federation.dataset import Dataset
from rayfl.federation.scenario import Scenario
from rayfl.fleet.executor import Task
from rayfl.fleet.streams import Streams
from rayfl.learn.fit import compute_outputs
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.models.mlp import MLP
from rayfl.models.network import count_parameters
from rayfl.models.preact_resnet import PreActResNet18
from rayfl.protocol import SERVER, Client, Out, Shard, Vector
from rayfl.run.assembly import spec_of
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedcr_toy import BRIEF, ONE_ROUND, SMALL, TOY
from tests.algorithms.toys import GivenBlueprint
from tests.phases import run_phase

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


def method_of(**more: Any) -> FedCR:
    return FedCR(**{"projector_hidden": 6, "projector_out": 5, **more})


def learner_of(method: FedCR, **training: Any) -> Learner:
    def build(i: int = 0) -> nn.Module:
        torch.manual_seed(0)
        return method.network(GivenBlueprint(MLP(hidden=(7,)).build((4, 4, 1), 3)))

    defaults = {"optimizer": "adam", "lr": 0.01, "batch_size": 8, "drop_last": True}
    return Learner(build, LocalTraining(**{**defaults, **training}), Normalisation())


def images(samples: int, seed: int = 0) -> Shard:
    rng = np.random.default_rng(seed)
    return Shard(rng.integers(0, 256, (samples, 4, 4, 1), np.uint8), rng.integers(0, 3, samples))


def client_of(
    learner: Learner, samples: int = 20, state: Mapping[str, Any] | None = None
) -> Client:
    return Client(3, images(samples).x, None, state or {}, Streams(0)(Task(3, 0, {}, {})), learner)


def dealt(method: FedCR, learner: Learner) -> dict[str, Vector]:
    """theta, sigma and xi as a run begins."""
    return parts(deal(client_of(learner), w=learner.first_weights()))


def parts(out: Out) -> dict[str, Vector]:
    assert isinstance(out.update, Mapping)
    return dict(out.update)


def served(
    method: FedCR, learner: Learner, start: Mapping[str, Vector], samples: int = 20, epochs: int = 1
) -> Out:
    server = Client(SERVER, images(0).x, None, {}, Streams(0)(Task(SERVER, 0, {}, {})), learner)
    given: dict[str, Any] = {key: start[key] for key in ("theta", "sigma", "xi")}
    given |= {"data": images(samples), "memory": start.get("optimiser")}
    return run_phase(train_at_server, server, **given, method=method, epochs=epochs)


def marked(learner: Learner) -> tuple[Layout, Vector]:
    """A whole vector in which the number says whose it is: 1 B and G, 2 Q, 3 C, 4 statistics of B
    and G, 5 of Q."""
    online, _, layout = resident_pair(learner)
    net = cast(Online, online.net)
    with torch.no_grad():
        for number, module in enumerate((net.encoder, net.predictor, net.classifier), 1):
            for parameter in module.parameters():
                parameter.fill_(number)
        for number, module in ((4, net.encoder), (5, net.predictor)):
            for buffer in module.buffers():
                buffer.fill_(number)
    return layout, online.dump()


def test_what_travels_is_the_online_network_without_its_classifier() -> None:
    layout, w = marked(learner_of(method_of()))
    theta, sigma = layout.split(w)
    assert set(theta.tolist()) == {1.0, 2.0, 4.0, 5.0}
    assert sigma.tolist() == [3.0] * (5 * 3 + 3)
    assert len(theta) + len(sigma) == len(w)
    assert np.array_equal(layout.join(theta, sigma), w)
    assert np.array_equal(layout.join(theta, None), np.where(w == 3, 0, w))


def test_the_target_starts_as_the_encoder_with_its_statistics() -> None:
    method = method_of()
    learner = learner_of(method)
    layout, w = marked(learner)
    xi = layout.target(layout.split(w)[0])
    assert set(xi.tolist()) == {1.0, 4.0}
    _, target, _ = resident_pair(learner)
    assert len(xi) == len(target.flat)
    start = dealt(method, learner_of(method))
    x = torch.rand(4, 1, 4, 4)
    online = cast(Online, learner.resident(layout.join(start["theta"], start["sigma"])).net.eval())
    assert torch.equal(target.load(start["xi"]).net.eval()(x), online.encoder(x))


def test_answers_are_the_classifier_on_the_projection() -> None:
    learner = learner_of(method_of())
    w, x = learner.first_weights(), images(5).x
    net = cast(Online, learner.resident(w).net.eval())
    pixels = learner.normalise(learner.pixels(x))
    expected = net.classifier(net.encoder(pixels)).detach().numpy()
    assert np.array_equal(compute_outputs(learner, w, x), expected)
    assert expected.shape == (5, 3)


@pytest.mark.parametrize("stem_norm", [True, False])
def test_sizes_of_the_paper(stem_norm: bool) -> None:
    trunk = PreActResNet18(stem_norm=stem_norm, final_norm=not stem_norm).build((32, 32, 3), 10)
    net = cast(Online, FedCR().network(GivenBlueprint(trunk)))
    projector = count_parameters(net.encoder) - count_parameters(trunk.trunk)
    assert projector == 10_500_096
    assert count_parameters(net.predictor) == 16_791_552
    assert count_parameters(net.classifier) == 20_490
    if stem_norm:
        assert count_parameters(net.encoder) == 21_666_240
        assert count_parameters(net.encoder) + count_parameters(net.predictor) == 38_457_792


def pair_at(theta: float, xi: float, **more: Any) -> OnlineAndTarget:
    method = method_of(**more)
    pair = OnlineAndTarget.at(method, learner_of(method))
    pair.online.flat.fill_(theta)
    pair.target.flat.fill_(xi)
    return pair


@pytest.mark.parametrize(
    ("xi", "theta", "steps", "expected"),
    [
        (1.0, 3.0, 1, 1.02),
        (2.0, -2.0, 1, 1.96),
        (1.0, 3.0, 7, 1.135869),
        (2.0, -2.0, 7, 1.728261),
        (1.0, 0.0, 35, 0.703448),
    ],
)
def test_the_target_follows(xi: float, theta: float, steps: int, expected: float) -> None:
    pair = pair_at(theta, xi)
    for _ in range(steps):
        pair.follow(pair.online)
    assert pair.target.parameters.numpy() == pytest.approx(expected, abs=2e-6)
    # statistics are the target's own
    assert set(pair.target.flat[pair.target.n_parameters :].tolist()) == {xi}


@pytest.mark.parametrize(
    ("ema", "left"), [(0.996, 0.869114), (0.999, 0.965589), (1.0, 1.0), (0.0, 0.0)]
)
def test_what_is_left_of_the_target_after_a_visit(ema: float, left: float) -> None:
    pair = pair_at(0.0, 1.0, ema=ema)
    for _ in range(35):
        pair.follow(pair.online)
    assert pair.target.parameters.numpy() == pytest.approx(left, abs=2e-6)


def test_averaging_targets_is_following_the_average_after_one_step_alone() -> None:
    ends = []
    for path in ([3.0, 5.0], [5.0, 3.0]):
        pair = pair_at(0.0, 1.0)
        for value in path:
            pair.online.flat.fill_(value)
            pair.follow(pair.online)
            ends.append(float(pair.target.flat[0]))
    assert ends == pytest.approx([1.02, 1.0598, 1.04, 1.0596], abs=1e-6)
    assert (ends[0] + ends[2]) / 2 == pytest.approx(1.03, abs=1e-6)
    assert (ends[1] + ends[3]) / 2 == pytest.approx(1.0597, abs=1e-6)


# -- clients ---------------------------------------------------------------------------------------


def trained(method: FedCR, learner: Learner, start: Mapping[str, Vector], **inputs: Any) -> Out:
    return run_phase(
        train_at_client, client_of(learner), theta=start["theta"], method=method, **inputs
    )


@pytest.mark.parametrize("regulariser", ["pairs", "ctrr", "byol"])
def test_a_client_leaves_nothing_but_theta(regulariser: str) -> None:
    method = method_of(regulariser=regulariser)
    learner = learner_of(method)
    start = dealt(method, learner)
    out = trained(method, learner, start, sigma=start["sigma"])
    assert {name: len(vector) for name, vector in parts(out).items()} == {
        "theta": len(start["theta"])
    }
    assert dict(out.state) == {}
    # the encoder and the predictor have moved, statistics too
    assert (parts(out)["theta"] != start["theta"]).mean() > 0.9


def test_a_client_remembers_nothing() -> None:
    method = method_of()
    learner = learner_of(method)
    start = dealt(method, learner)
    first = parts(trained(method, learner, start, sigma=start["sigma"]))
    served(method, learner, start)
    assert np.array_equal(
        parts(trained(method, learner, start, sigma=start["sigma"]))["theta"], first["theta"]
    )


@pytest.mark.parametrize(("samples", "steps"), [(450, 35), (500, 35), (64, 5), (63, 0), (1, 0)])
def test_steps_of_a_visit(samples: int, steps: int) -> None:
    method = method_of(client_classifier="none")
    learner = learner_of(method, batch_size=64, epochs=5)
    theta = dealt(method, learner)["theta"]
    out = run_phase(train_at_client, client_of(learner, samples), theta=theta, method=method)
    assert out.report["steps"] == steps
    assert (out.update is None) == (steps == 0)


@pytest.mark.parametrize(("client_classifier", "matters"), [("fresh", True), ("none", False)])
def test_the_classifier_gates_pairs(client_classifier: str, matters: bool) -> None:
    method = method_of(client_classifier=client_classifier, eta=0.5)
    learner = learner_of(method)
    start = dealt(method, learner)
    sure = 50 * start["sigma"]
    ends = [
        parts(trained(method, learner, start, sigma=sigma))["theta"]
        for sigma in (start["sigma"], sure)
    ]
    assert np.array_equal(ends[0], ends[1]) != matters


def test_the_classifier_of_a_client_is_frozen_under_weight_decay() -> None:
    method = method_of()
    learner = learner_of(method, weight_decay=0.5, epochs=3)
    start = dealt(method, learner)
    trained(method, learner, start, sigma=start["sigma"])
    assert np.array_equal(
        OnlineAndTarget.at(method, learner).layout.split(learner.shape_of().dump())[1],
        start["sigma"],
    )


def test_a_stale_classifier_comes_once_and_stays() -> None:
    method = method_of(client_classifier="stale", eta=0.5)
    learner = learner_of(method)
    start = dealt(method, learner)
    first = trained(method, learner, start, sigma=start["sigma"])
    assert np.array_equal(first.state["sigma"], start["sigma"])
    client = client_of(learner, state=first.state)
    later = run_phase(train_at_client, client, theta=start["theta"], method=method)
    assert np.array_equal(parts(later)["theta"], parts(first)["theta"])
    assert "sigma" not in later.state


def test_the_target_of_a_visit_is_the_encoder_received() -> None:
    method = method_of(whole_model=True)
    learner = learner_of(method)
    start = dealt(method, learner)
    own = parts(trained(method, learner, start, sigma=start["sigma"]))
    same = parts(trained(method, learner, start, sigma=start["sigma"], xi=start["xi"]))
    other = parts(trained(method, learner, start, sigma=start["sigma"], xi=start["xi"] + 1))
    assert np.array_equal(own["theta"], same["theta"])
    assert np.array_equal(own["xi"], same["xi"])
    assert not np.array_equal(own["theta"], other["theta"])


def test_an_image_without_sure_neighbours_still_has_its_own_views() -> None:
    q = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    unsure = torch.full((4, 3), 1 / 3)
    alone = method_of(client_classifier="none").pairs(q, q.flip(0), None)
    assert torch.equal(method_of().pairs(q, q.flip(0), unsure), alone)
    assert method_of(force_diagonal=False).pairs(q, q.flip(0), unsure) == 0
    # where there is no gate, own views are all there is
    assert torch.equal(method_of(force_diagonal=False, eta=0.0).pairs(q, q.flip(0), None), alone)


# -- the server ------------------------------------------------------------------------------------


def test_the_server_moves_all_three_and_remembers_its_optimiser() -> None:
    method = method_of()
    learner = learner_of(method)
    start = dealt(method, learner)
    first = parts(served(method, learner, start))
    layout = OnlineAndTarget.at(method, learner).layout
    assert np.array_equal(layout.join(first["theta"], first["sigma"]), first["w"])
    for key in ("theta", "sigma", "xi"):
        assert not np.array_equal(first[key], start[key])
    second = parts(served(method, learner, first))
    assert (first["optimiser"][0], second["optimiser"][0]) == (2, 4)
    forgetful = parts(
        served(method, learner, {key: first[key] for key in ("theta", "sigma", "xi")})
    )
    assert not np.array_equal(forgetful["theta"], second["theta"])


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
    learner = spec_of(config, data, cast(Scenario, _Blobs()), "cpu").make_learner()
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
