"""Robust FL: centroids in numbers, which labels are trained on, and what travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.algorithms.robust_fl import (
    Centred,
    LocalCentroids,
    RobustFL,
    RoundSettings,
    average_features,
    compare_with_centroids,
    merge_centroids,
    train_with_centroids,
)
from rayfl.arrays import Vector
from rayfl.errors import ConfigError
from rayfl.learn.losses.entropy import entropy
from rayfl.learn.selection import Selection
from rayfl.models.network import Network, add_linear_head
from rayfl.protocol import Blueprint, Out
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_baselines import (
    FIRST,
    LABELS,
    SECOND,
    batch_of,
    client_of,
    learner_of,
    measure_costs,
)
from tests.algorithms.toys import GivenBlueprint
from tests.phases import run_phase

ROWS = [
    Row(
        "robust_fl",
        {"name": "robust_fl", "warmup": 4},
        neutral={"name": "robust_fl", "tau": 0.0, "lambda_cen": 0.0, "lambda_e": 0.0},
        same_as={"name": "fedavg"},
        refused=[
            ({"tau": 1.5}, "tau"),
            ({"warmup": 0}, "warmup"),
            ({"lambda_cen": -1.0}, "lambda_cen"),
            ({"lambda_e": -1.0}, "lambda_e"),
            ({"cen_reduce": "max"}, "cen_reduce"),
        ],
    ),
]

GLOBAL = [
    [1.0, 0.5, -0.2, 0.3],
    [-0.4, 1.0, 0.1, -0.6],
    [0.2, 0.1, 1.0, 0.9],
    [0.3, -0.8, -1.0, 0.4],
]


class Fixed(nn.Module):
    """Features and logits that are given."""

    def __init__(self, features: list[list[float]], logits: list[list[float]]) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.tensor(features, dtype=torch.float64))
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def features(self, x: Tensor) -> Tensor:
        return self.vectors * 1

    def head(self, features: Tensor) -> Tensor:
        return self.logits


def rows_of(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def class_means() -> Tensor:
    means = [np.array(SECOND)[np.array(LABELS) == c].mean(axis=0) for c in range(4)]
    return torch.tensor(np.array(means))


# Of the released code: round, R_t, the loss, f_1 and f_2 after the batch.
FIGURES = [
    (
        0,
        0.0,
        2.88354085389439,
        [-1.475, -0.86, -0.2435, -1.0785],
        [0.815, -1.4855, -0.035, 1.7555],
    ),
    (
        40,
        0.3,
        16.008287405117475,
        [-0.4211297437703643, 0.9634406293833698, 0.09324830978128361, -0.6094051929247621],
        [0.9463862800733858, -0.3820155218925325, 0.7085773502843618, 1.7992704549593677],
    ),
    (
        120,
        0.3,
        36.05536568511747,
        [-0.4211297437703643, 0.9634406293833698, 0.09324830978128361, -0.6094051929247621],
        [0.9463862800733858, -0.3820155218925325, 0.7085773502843618, 1.7992704549593677],
    ),
]


@pytest.mark.parametrize(("t", "forget", "loss", "first", "second"), FIGURES)
def test_figures_of_the_released_code(
    t: int, forget: float, loss: float, first: list[float], second: list[float]
) -> None:
    """ElvinKim/FedRN, daf1183, models/Update.py, LocalUpdateRFL.train on one batch."""
    method = RobustFL(cen_reduce="sum", detach_features=True)
    local = LocalCentroids(class_means() if t == 0 else rows_of(GLOBAL))
    pull = method.settings(t).pull
    guesses = np.array(FIRST).argmax(axis=1) if t >= 100 else np.array(LABELS)
    settings = RoundSettings(forget, pull, guessing=t >= 100)
    step = compare_with_centroids(local, guesses, Selection(7), settings, method)
    value = step(Fixed(SECOND, FIRST), batch_of(learner_of(), LABELS))
    assert value is not None
    assert value.item() == pytest.approx(loss, rel=1e-12)
    assert local.rows[1].tolist() == pytest.approx(first, abs=1e-12)
    assert local.rows[2].tolist() == pytest.approx(second, abs=1e-12)


# -- centroids -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "seen", "after"),
    [
        ([1.0, 0.0], [0.6, 0.8], [0.856, 0.288]),
        ([1.0, 0.0], [0.0, 2.0], [1.0, 0.0]),
        ([1.0, 0.0], [3.0, 0.0], [3.0, 0.0]),
        ([0.0, 0.0], [0.6, 0.8], [0.6, 0.8]),
    ],
)
def test_a_centroid_follows(before: list[float], seen: list[float], after: list[float]) -> None:
    local = LocalCentroids(rows_of([before, [0.0, 1.0]]))
    local.follow(rows_of([seen]), torch.tensor([0]))
    assert local.rows[0].tolist() == pytest.approx(after)
    assert local.rows[1].tolist() == [0.0, 1.0]


def test_the_nearest_centroid() -> None:
    feature = rows_of([[0.9, 0.2]])
    local = LocalCentroids(rows_of([[1.0, 0.0], [0.0, 1.0], [0.7, 0.7]]))
    assert local.find_nearest(feature).tolist() == [0]
    # Without the first, and with nobody.
    assert LocalCentroids(local.rows * rows_of([[0], [1], [1]])).find_nearest(feature).item() == 2
    assert LocalCentroids(local.rows * 0).find_nearest(feature).item() == -1


def report(centroids: list[list[float]], held: list[int]) -> dict[str, Any]:
    return {"centroids": np.array(centroids, np.float32), "held": np.array(held)}


def test_the_server_weighs_by_likeness() -> None:
    before = np.eye(2, dtype=np.float32)
    reports = [report([[0.8, 0.6], [0, 0]], [1, 1]), report([[0.6, -0.8], [0.6, 0.8]], [1, 1])]
    found = merge_centroids(before, reports)
    np.testing.assert_allclose(found, [[0.714286, 0.0], [0.6, 0.8]], atol=1e-6)


@pytest.mark.parametrize(
    ("other", "held"),
    [
        ([[9.0, 9.0], [5.0, 5.0]], [0, 0]),
        ([[-3.0, 0.0], [0.0, -3.0]], [4, 4]),
        ([[np.nan, 1.0], [np.inf, 0.0]], [4, 4]),
    ],
)
def test_who_does_not_vote(other: list[list[float]], held: list[int]) -> None:
    """Who holds no sample of a class, who says the contrary, and who diverged."""
    before = np.eye(2, dtype=np.float32)
    voter = report([[0.8, 0.6], [0.6, 0.8]], [3, 3])
    both = merge_centroids(before, [voter, report(other, held)])
    np.testing.assert_allclose(both, voter["centroids"], atol=1e-6)
    assert np.array_equal(merge_centroids(before, [report(other, held)]), before)


def test_the_first_centroids_are_weighted_by_samples() -> None:
    reports = [report([[1.0, 0.0], [0, 0]], [3, 0]), report([[0.0, 1.0], [0, 0]], [1, 0])]
    found = merge_centroids(np.zeros((0, 0), np.float32), reports)
    assert found.tolist() == [[0.75, 0.25], [0.0, 0.0]]
    # Somebody who holds the second class makes it known later.
    later = merge_centroids(found, [report([[0.75, 0.25], [0.0, 2.0]], [0, 5])])
    assert later.tolist() == [[0.75, 0.25], [0.0, 2.0]]


def test_class_means_of_a_client() -> None:
    learner = learner_of()
    client = client_of(learner)
    w = learner.first_weights()
    found = average_features(client, w)
    net = cast(Network, learner.resident(w).net.eval())
    with torch.no_grad():
        features = net.features(learner.normalise(learner.pixels(client.x))).numpy()
    for c in range(4):
        np.testing.assert_allclose(found[c], features[client.y == c].mean(axis=0), atol=1e-5)


# -- the loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "ramp"), [(0, 0.01), (9, 0.1), (49, 0.5), (99, 1.0), (150, 1.0)])
def test_the_weight_of_the_distance(t: int, ramp: float) -> None:
    assert RobustFL(lambda_cen=2.0).settings(t).pull == pytest.approx(2 * ramp)


def test_guesses_replace_labels_after_the_warm_up() -> None:
    assert [RobustFL(warmup=3).settings(t).guessing for t in (0, 2, 3)] == [False, False, True]


def test_entropy_of_an_answer() -> None:
    answer = torch.tensor([[0.7, 0.2, 0.1]]).log()
    assert entropy(answer).item() == pytest.approx(0.801819, abs=1e-6)


def test_the_distance_of_samples_that_agree() -> None:
    features, centroids = rows_of([[0.9, 0.2], [4.0, 4.0]]), rows_of([[1.0, 0.0], [1.0, 0.0]])
    agree = torch.tensor([True, False])
    found = [
        RobustFL(cen_reduce=how).measure_distance(features, centroids, agree).item()
        for how in ("mean", "samples", "sum")
    ]
    assert found == pytest.approx([0.0125, 0.025, 0.05])


@pytest.mark.parametrize("detached", [False, True])
def test_the_distance_moves_the_network_unless_cut_off(detached: bool) -> None:
    net = Fixed(SECOND, FIRST)
    local = LocalCentroids(rows_of(GLOBAL))
    settings = RoundSettings(0.0, pull=1.0, guessing=False)
    method = RobustFL(detach_features=detached)
    step = compare_with_centroids(local, np.array(LABELS), Selection(7), settings, method)
    value = step(net, batch_of(learner_of(), LABELS))
    assert value is not None
    value.backward()  # type: ignore[no-untyped-call]
    moved = net.vectors.grad is not None and bool(net.vectors.grad.any())
    assert moved != detached


def visit(centroids: Vector | None = None, samples: int = 20, **settings: Any) -> Out:
    learner = learner_of()
    given = np.zeros((0, 0), np.float32) if centroids is None else centroids
    of_round = RoundSettings(**{"forget": 0.3, "pull": 0.5, "guessing": True, **settings})
    return run_phase(
        train_with_centroids,
        client_of(learner, samples),
        w=learner.first_weights(),
        centroids=given,
        settings=of_round,
        method=RobustFL(),
    )


def test_what_a_client_reports() -> None:
    out = visit()
    assert out.report["centroids"].shape == (4, 8)
    assert np.array_equal(out.report["held"], client_of(learner_of()).class_counts)
    # Two epochs of batches of 8, 8 and 4.
    assert out.state["kept"].sum(axis=1).tolist() == [5 + 5 + 2] * 2


def test_classes_that_a_client_does_not_hold_keep_their_centroid() -> None:
    given = np.random.default_rng(0).random((4, 8)).astype(np.float32)
    out = visit(given.copy(), samples=2)
    absent = out.report["held"] == 0
    assert absent.any()
    assert np.array_equal(out.report["centroids"][absent], given[absent])


def test_a_single_sample_is_kept() -> None:
    assert visit(samples=1, forget=0.9).state["kept"].all()


def test_guesses_cost_a_pass_and_change_what_is_learnt() -> None:
    trusting, guessing = (visit(guessing=guessing) for guessing in (False, True))
    assert not np.array_equal(cast(Vector, trusting.update), cast(Vector, guessing.update))


# -- the federation --------------------------------------------------------------------------------


def test_costs(tmp_path: Path) -> None:
    """FedRN's Table 8: M and the centroids down and up, eF, eB; one pass more for the guesses."""
    config = shortened(toy_config(ROWS[0], tmp_path, {"name": "robust_fl", "warmup": 2}), 3)
    outcome, _ = run_toy(config)
    model = len(outcome.models[None])
    # Four classes of 16 features; the counts are integers of 8 bytes.
    down, up = (model + 4 * 16) / model, (model + 4 * 16 + 4 * 2) / model
    assert measure_costs(outcome) == pytest.approx((down, up, 3, 2))
    assert outcome.history[-1]["metrics"]["robust_fl/known_classes"] == 4


def test_the_state_begins_without_centroids() -> None:
    assert len(Centred(cast(Any, None)).centroids) == 0


def blueprint(network: Any, classes: int = 10) -> Blueprint:
    return GivenBlueprint(network, classes=classes)


def test_a_network_without_features_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compares features.*got Linear"):
        RobustFL().network(blueprint(nn.Linear(2, 2)))


def test_centroids_that_are_too_large_for_a_report_are_refused() -> None:
    network = add_linear_head(nn.Identity(), 4096, 1)
    with pytest.raises(ConfigError, match="centroids of all classes take less than 524,288 bytes"):
        RobustFL().network(blueprint(network, classes=1000))
