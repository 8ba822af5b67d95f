"""FedCR: what travels, who learns what, and the numbers behind it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from rayfl.algorithms.fedcr import FedCR, OnlineAndTarget, train_at_client
from rayfl.algorithms.parts.online_target import Layout, Online, resident_pair
from rayfl.learn.fit import compute_outputs
from rayfl.learn.learner import Learner
from rayfl.models.network import count_parameters
from rayfl.models.preact_resnet import PreActResNet18
from rayfl.protocol import Vector
from tests.algorithms.fedcr_toys import (
    client_of,
    dealt,
    images,
    learner_of,
    method_of,
    parts,
    served,
    trained,
)
from tests.algorithms.toys import GivenBlueprint
from tests.phases import run_phase


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
