"""FedEMA's model update inside FedCR: how much of itself a client keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.fedcr_fedema import (
    FedCRFedEma,
    first_scaler,
    kernel_spans,
    measure_divergence,
    mix_networks,
    own_share,
    start_visit,
    train_returning,
)
from rayfl.algorithms.parts.online_target import Online, resident_pair
from rayfl.fleet.executor import Task
from rayfl.fleet.streams import Streams
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.models.mlp import MLP
from rayfl.models.preact_resnet import PreActResNet18
from rayfl.protocol import Client, Vector
from tests.algorithms.conformance import Row, run_toy, toy_config
from tests.algorithms.fedcr_toy import BRIEF, ONE_ROUND, SMALL, TOY
from tests.algorithms.toys import GivenBlueprint
from tests.phases import run_phase


def settings(**more: Any) -> dict[str, Any]:
    return {"name": "fedcr_fedema", **SMALL, **ONE_ROUND, **more}


ROWS = [
    Row(
        "fedcr_fedema",
        settings(),
        TOY,
        brief=BRIEF,
        refused=[
            ({"target": 1.5}, "target"),
            ({"scaler": -1}, "scaler"),
            ({"whole_model": True}, "must be false"),
        ],
    ),
    Row(
        "fedcr_fedema_drift",
        settings(divergence="local_drift", selective=True, client_classifier="stale"),
        TOY,
        brief=BRIEF,
    ),
]


def test_the_first_return_sets_the_scaler() -> None:
    assert first_scaler(0.7, 0.5) == pytest.approx(1.4)
    assert own_share(1.4, 0.3) == pytest.approx(0.42)
    assert own_share(1.4, 1.0) == 1


@pytest.mark.parametrize("distance", [1e-6, 0.5, 40.0])
@pytest.mark.parametrize("target", [0.0, 0.7, 1.0])
def test_at_the_first_distance_the_share_is_the_target(distance: float, target: float) -> None:
    assert own_share(first_scaler(target, distance), distance) == pytest.approx(target)


def test_without_a_distance_there_is_no_scaler_yet() -> None:
    assert first_scaler(0.7, 0.0) is None
    assert own_share(None, 3.0) == 0


def test_larger_divergence_keeps_more() -> None:
    shares = [own_share(1.4, distance) for distance in np.linspace(0, 2, 50)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(("mu", "expected"), [(0.42, 0.42), (0.0, 0.0), (1.0, 1.0)])
def test_parameters_mix_and_statistics_are_global(mu: float, expected: float) -> None:
    start = mix_networks(mu, np.ones(5, np.float32), np.zeros(5, np.float32), 3)
    np.testing.assert_allclose(start, [expected] * 3 + [0.0] * 2, rtol=1e-6)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_the_ends_of_a_mixture_are_exact(mu: float) -> None:
    own, theta = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    assert np.array_equal(mix_networks(mu, own, theta, 1000), own if mu else theta)


def test_divergence_is_a_mean_of_norms() -> None:
    one, other = np.array([3, 4, 9, 0], np.float32), np.array([0, 0, 9, 1], np.float32)
    assert measure_divergence(one, other, [slice(0, 2), slice(3, 4)]) == pytest.approx((5 + 1) / 2)
    assert measure_divergence(one, one, [slice(0, 4)]) == 0


def online_on(trunk: Any) -> Online:
    method = FedCRFedEma(projector_hidden=4, projector_out=3)
    return cast(Online, method.network(GivenBlueprint(trunk)))


def encoder_on(trunk: Any) -> nn.Module:
    return online_on(trunk).encoder


def test_figures_of_features_show_what_the_classifier_sees() -> None:
    network = online_on(MLP(hidden=(7,)).build((4, 4, 1), 3)).eval()
    x = torch.rand(2, 1, 4, 4)
    seen = network.features(x)
    assert seen.shape == (2, 3)
    assert torch.equal(network.classifier(seen), network(x))


def test_kernels_are_convolutions_off_the_shortcuts() -> None:
    encoder = encoder_on(PreActResNet18().build((8, 8, 3), 2))
    spans = kernel_spans(encoder)
    # the stem and two convolutions in each of eight blocks; the three shortcuts do not count
    assert len(spans) == 17
    assert spans[0] == slice(0, 64 * 3 * 9)
    assert max(span.stop - span.start for span in spans) == 512 * 512 * 9


def test_without_convolutions_weight_matrices_count() -> None:
    spans = kernel_spans(encoder_on(MLP(hidden=(7,)).build((4, 4, 1), 3)))
    assert [span.stop - span.start for span in spans] == [16 * 7, 7 * 4, 4 * 3]
    assert [span.start for span in spans] == [0, 16 * 7 + 7, 16 * 7 + 7 + 7 * 4 + 4 + 4 + 4]


# -- one client ------------------------------------------------------------------------------------


def learner_of(method: FedCRFedEma) -> Learner:
    def build(i: int = 0) -> nn.Module:
        torch.manual_seed(0)
        return method.network(GivenBlueprint(MLP(hidden=(7,)).build((4, 4, 1), 3)))

    return Learner(
        build,
        LocalTraining(optimizer="adam", lr=0.01, batch_size=8, drop_last=True),
        Normalisation(),
    )


def client_of(learner: Learner, state: Mapping[str, Any], samples: int = 20) -> Client:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples, 4, 4, 1), np.uint8)
    return Client(3, x, None, state, Streams(0)(Task(3, 0, {}, {})), learner)


def visited(method: FedCRFedEma, learner: Learner) -> tuple[Vector, dict[str, Any]]:
    """The network that a client was sent in round 4, and what it remembers of its visit."""
    _, _, layout = resident_pair(learner)
    theta, _ = layout.split(learner.first_weights())
    out = run_phase(train_returning, client_of(learner, {}), theta=theta, method=method, t=4)
    assert "_mu" not in out.report
    return theta, dict(out.state)


def small(**more: Any) -> FedCRFedEma:
    return FedCRFedEma(projector_hidden=6, projector_out=5, client_classifier="none", **more)


def test_a_client_remembers_both_networks() -> None:
    method = small()
    learner = learner_of(method)
    theta, state = visited(method, learner)
    assert set(state) == {"theta", "xi", "round", "drift"}
    spans = kernel_spans(resident_pair(learner)[1].net)
    assert state["drift"] == pytest.approx(measure_divergence(theta, state["theta"], spans))
    assert state["round"] == 4


def test_a_return_starts_from_a_mixture_and_its_own_target() -> None:
    method = small()
    learner = learner_of(method)
    theta, state = visited(method, learner)
    start = start_visit(client_of(learner, state), method, theta, 9)
    assert start.mu == pytest.approx(0.7)
    assert start.xi is state["xi"]
    count = resident_pair(learner)[2].classifier
    expected = 0.7 * state["theta"][:count] + 0.3 * theta[:count]
    np.testing.assert_allclose(start.theta[:count], expected, rtol=1e-5, atol=1e-7)
    assert np.array_equal(start.theta[count:], theta[count:])
    later = start_visit(
        client_of(learner, {**state, "scaler": start.scaler}), method, theta + 100, 12
    )
    assert later.mu == 1
    assert later.scaler == start.scaler


@pytest.mark.parametrize(("scaler", "mu"), [(0.0, 0.0), (1e9, 1.0)])
def test_a_constant_scaler_needs_no_first_return(scaler: float, mu: float) -> None:
    method = small(scaler=scaler)
    learner = learner_of(method)
    theta, state = visited(method, learner)
    start = start_visit(client_of(learner, state), method, theta, 5)
    assert start.mu == mu
    assert np.array_equal(start.theta, theta) == (mu == 0)


def test_an_unmoved_network_is_the_global_one() -> None:
    method = small()
    learner = learner_of(method)
    _, state = visited(method, learner)
    start = start_visit(client_of(learner, state), method, state["theta"], 9)
    assert (start.mu, start.scaler) == (0.0, None)
    assert np.array_equal(start.theta, state["theta"])


def test_divergence_may_be_the_drift_of_the_last_visit() -> None:
    method = small(divergence="local_drift", scaler=1.0)
    learner = learner_of(method)
    theta, state = visited(method, learner)
    start = start_visit(client_of(learner, {**state, "drift": 0.25}), method, theta + 100, 9)
    assert start.mu == 0.25


@pytest.mark.parametrize(("t", "mixes"), [(5, True), (6, False)])
def test_selective_mixing_asks_for_two_visits_in_a_row(t: int, mixes: bool) -> None:
    method = small(selective=True)
    learner = learner_of(method)
    theta, state = visited(method, learner)
    start = start_visit(client_of(learner, state), method, theta, t)
    assert (start.mu > 0) == (start.xi is not None) == mixes
    assert np.array_equal(start.theta, theta) != mixes


def test_a_visit_without_a_step_is_forgotten() -> None:
    method = small()
    learner = learner_of(method)
    theta, _ = resident_pair(learner)[2].split(learner.first_weights())
    client = client_of(learner, {}, samples=7)
    out = run_phase(train_returning, client, theta=theta, method=method, t=0)
    assert (out.report["steps"], out.update, dict(out.state)) == (0, None, {})


# -- rounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("selective", "same"), [(True, True), (False, False)])
def test_without_two_visits_in_a_row_it_is_fedcr(
    selective: bool, same: bool, tmp_path: Path
) -> None:
    """The cohorts of this seed are client 0, client 1 and client 0 again: selective mixing
    overwrites each time."""
    alone = {
        **TOY,
        "training": {**TOY["training"], "clients_per_round": 1, "rounds": 4},
        "seeds": {"training": 1},
    }
    rows = [
        Row("plain", {**settings(), "name": "fedcr"}, alone),
        Row("other", settings(selective=selective), alone),
    ]
    runs = [run_toy(toy_config(row, tmp_path), directory=row.name) for row in rows]
    assert [runs[0][1].sample(t) for t in range(1, 4)] == [[0], [1], [0]]
    assert (runs[0][0].sha256 == runs[1][0].sha256) == same


def test_shares_are_logged_and_traffic_is_that_of_fedcr(tmp_path: Path) -> None:
    own, _ = run_toy(toy_config(ROWS[0], tmp_path), directory="own")
    plain, _ = run_toy(
        toy_config(Row("plain", {**settings(), "name": "fedcr"}, TOY), tmp_path), directory="plain"
    )
    for here, there in zip(own.history, plain.history, strict=True):
        for way in ("cost/up_mb", "cost/down_mb"):
            assert here["metrics"][way] == there["metrics"][way]
    # four of six clients visit each round: from the second federated round on, some return
    for record in own.history[2:]:
        assert 0 < record["metrics"]["mixing/own_share"] <= 1
        assert 0 <= record["metrics"]["mixing/deaf_to_server"] <= 1
    assert "mixing/own_share" not in own.history[1]["metrics"]
