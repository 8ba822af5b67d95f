"""FedCon: what travels, what stays, and its losses, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.fedcon import (
    FedCon,
    TwoTops,
    contrast,
    ramp_weight,
    stay_longer,
    train_at_server,
)
from rayfl.algorithms.parts.shared_part import find_places, put_part
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.learner import Learner
from rayfl.learn.losses.byol import byol_symmetric
from rayfl.learn.losses.distillation import kl_divergence
from rayfl.learn.resident import Resident
from rayfl.models.network import Network
from rayfl.protocol import Client, Out, Shard, Vector
from tests.algorithms.conformance import Row
from tests.algorithms.semi_toys import SERVED, run_row
from tests.learn.kit import first_weights, make_client, make_learner
from tests.phases import run_phase

METHOD: dict[str, Any] = {"name": "fedcon", "server_epochs": 2, "ramp": 4}

ROWS = [
    Row(
        "fedcon",
        METHOD,
        SERVED,
        neutral={**METHOD, "consistency": 0.0, "target": "self"},
        same_as={**METHOD, "consistency": 0.0, "target": "teacher"},
        refused=[
            ({"ramp": 0}, "ramp"),
            ({"ema": 1.1}, "ema"),
            ({"target": "student"}, "target"),
            ({"widening": 0}, "widening"),
            ({"horizon": 0}, "horizon"),
        ],
    )
]


def build_two_tops(i: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU())
        return TwoTops(Network(trunk, nn.Linear(6, 3), 6), 3)


def make_place(**settings: Any) -> Learner:
    augment = CropFlip(padding=1)
    return make_learner(
        build_two_tops, **{"batch_size": 8, "lr": 0.1, "augment": augment, **settings}
    )


def trunk_places(learner: Learner) -> np.ndarray[Any, np.dtype[np.int64]]:
    network = learner.shape_of()
    return find_places(network, cast(TwoTops, network.net).trunk)


@pytest.mark.parametrize(
    ("t", "expected"), [(0, 0.006738), (10, 0.017422), (50, 0.286505), (100, 1.0), (300, 1.0)]
)
def test_the_ramp(t: int, expected: float) -> None:
    """get_current_consistency_weight of fedcon-main.py, zewei-long/fedcon-pytorch @ 54732ec, gives
    these."""
    assert ramp_weight(t, 100) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.9996), (10_000, 0.9998), (20_000, 1.0), (40_000, 1.0)]
)
def test_the_teachers_decay(step: int, expected: float) -> None:
    """target_ema of models/byol.py gives these up to 20000, and 0.9996 again at 40000."""
    assert stay_longer(step, 20_000) == pytest.approx(expected)


def test_divergence_of_student_from_teacher() -> None:
    teacher = torch.tensor([[1.0, 1.0, 0.0]])
    student = torch.tensor([[2.0, 0.0, 0.0]])
    assert kl_divergence(teacher.softmax(1), student).item() == pytest.approx(0.377550, abs=1e-6)
    assert kl_divergence(student.softmax(1), student).item() == pytest.approx(0, abs=1e-7)


def test_figure_of_the_authors_divergence() -> None:
    """softmax_kl_loss of fedcon-main.py over the length of the batch, on six rows of four."""
    student, teacher = (torch.sin(torch.arange(24.0) * k).view(6, 4) * 4 for k in (1.0, 1.7))
    found = kl_divergence(teacher.softmax(1), student).mean()
    assert found.item() == pytest.approx(3.173876, abs=1e-5)


def test_the_clients_loss_is_minus_the_mean_cosine() -> None:
    one, other = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])
    for scale in (1.0, 7.0):
        found = byol_symmetric(one, other, scale * other, scale * one).mean() / 4 - 1
        # Each prediction against the other view's target: both are equal to it here.
        assert found.item() == pytest.approx(-1)
    apart = byol_symmetric(one, one, -one, -one).mean() / 4 - 1
    assert apart.item() == pytest.approx(1)


def test_a_part_has_its_own_order() -> None:
    """What is cut out of the whole is the vector of the part's own network."""
    learner = make_place()
    w = first_weights(learner)
    places = trunk_places(learner)
    own = Resident(cast(TwoTops, build_two_tops()).trunk, torch.device("cpu"))
    assert np.array_equal(w[places], own.dump())
    filled = put_part(w, places, np.zeros(len(places), np.float32))
    assert not filled[places].any()
    assert np.array_equal(np.delete(filled, places), np.delete(w, places))


def visit(client: Client, trunk: Vector, **settings: Any) -> Out:
    return run_phase(contrast, client, trunk=trunk, method=FedCon(**settings))


def test_the_trunk_alone_travels() -> None:
    learner = make_place()
    client = make_client(24, learner, labels=False)
    trunk = first_weights(learner)[trunk_places(learner)]
    out = visit(client, trunk)
    assert isinstance(out.update, Mapping)
    assert list(out.update) == ["trunk"]
    assert len(out.update["trunk"]) == len(trunk)
    assert not np.array_equal(out.update["trunk"], trunk)
    assert sorted(out.state) == ["predictor", "target"]


def test_a_first_target_is_what_was_received() -> None:
    """At ema 1 it stays there; later visits go on with their own."""
    learner = make_place()
    client = make_client(24, learner, labels=False)
    trunk = first_weights(learner)[trunk_places(learner)]
    out = visit(client, trunk, ema=1.0)
    parameters = cast(TwoTops, learner.shape_of().net).trunk.parameters()
    n = sum(parameter.numel() for parameter in parameters)
    assert np.array_equal(out.state["target"][:n], trunk[:n])
    again = Client(0, client.x, None, out.state, client.rng, learner, classes=3)
    later = visit(again, trunk + 1, ema=1.0)
    assert np.array_equal(later.state["target"][:n], trunk[:n])
    assert not np.array_equal(later.state["predictor"], out.state["predictor"])


def test_one_image_teaches_nothing() -> None:
    """The predictor's BatchNorm cannot take it; such a client does not count."""
    learner = make_learner(lambda i=0: TwoTops(linear_network(), 3), batch_size=8)
    client = make_client(1, learner, labels=False)
    out = visit(client, first_weights(learner)[trunk_places(learner)])
    assert (out.report["steps"], out.update) == (0, None)


def linear_network() -> Network:
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(16, 6)), nn.Linear(6, 3), 6)


def serve(learner: Learner, target: str, weight: float, teacher: Vector) -> Mapping[str, Vector]:
    owner = make_client(16, learner)
    server = Client(-1, owner.x[:0], owner.y[:0], {}, owner.rng, learner, classes=3)
    w = first_weights(learner)
    out = run_phase(
        train_at_server,
        server,
        w=w,
        trunk=w[trunk_places(learner)],
        teacher=teacher,
        step=0,
        horizon=100,
        weight=weight,
        epochs=1,
        memory=None,
        data=Shard(owner.x, owner.y),
        method=FedCon(target=target),  # type: ignore[arg-type]
    )
    assert isinstance(out.update, Mapping)
    return out.update


@pytest.mark.parametrize(("target", "read"), [("teacher", True), ("self", False)])
def test_who_the_server_agrees_with(target: str, read: bool) -> None:
    """The teacher's weights matter, unless the server asks itself as in the released code."""
    teachers = [first_weights(make_place(), i) for i in (1, 2)]
    one, other = (serve(make_place(), target, 1.0, teacher)["w"] for teacher in teachers)
    assert np.array_equal(one, other) is not read


def test_the_classifier_is_not_averaged(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 2)
    plain = run_row(Row("plain", {"name": "fedavg"}, SERVED), tmp_path, 1, name="plain")
    metrics = outcome.history[1]["metrics"]
    # A trunk of 64 x 16 + 16 numbers to and from each of four clients.
    assert metrics["cost/up_mb"] * 1e6 == pytest.approx(4 * 4 * (64 * 16 + 16), rel=0.01)
    assert metrics["cost/down_mb"] < plain.history[0]["metrics"]["cost/down_mb"]
    assert metrics["clients/idle"] == 0


def test_passes_of_a_round(tmp_path: Path) -> None:
    """Two views through the online network, and two through the target."""
    found = run_row(ROWS[0], tmp_path, 1).history[0]["metrics"]
    assert found["cost/forward"] == 2 * found["cost/backward"]
    assert found["cost/server_forward"] == 2 * found["cost/server_backward"] == 320


def test_clients_rest_while_the_server_pretrains(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 3, method={"pretraining": 3})
    found = [record["metrics"]["clients/participants"] for record in outcome.history]
    assert found == [0, 0, 4]
