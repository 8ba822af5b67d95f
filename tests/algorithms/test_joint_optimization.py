"""Joint optimisation: its loss in numbers, which answers make a label, and what a client keeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rayfl.algorithms.joint_optimization import (
    FittedLabels,
    JointOptimization,
    average_answers,
    fit_jointly,
)
from rayfl.learn.answer_history import AnswerHistory
from rayfl.learn.losses.entropy import entropy, prior_cross_entropy
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_baselines import (
    FIRST,
    LABELS,
    ROWS as SOFT,
    Answers,
    batch_of,
    client_of,
    learner_of,
    measure_costs,
)
from tests.phases import run_phase

NEUTRAL = {"name": "joint_optimization", "alpha": 0.0, "beta": 0.0, "warmup": 1000}

ROWS = [
    Row(
        "joint_optimization",
        {"name": "joint_optimization", "warmup": 2, "queue": 3},
        neutral=NEUTRAL,
        same_as={"name": "fedavg"},
        refused=[
            ({"alpha": -1.0}, "alpha"),
            ({"beta": -1.0}, "beta"),
            ({"queue": 0}, "queue"),
            ({"labels_are": "mixed"}, "labels_are"),
            ({"prior": "given"}, "prior"),
        ],
    ),
]

PROBABILITIES = [
    [[0.174, 0.037, 0.633, 0.156], [0.513, 0.164, 0.063, 0.261], [0.482, 0.165, 0.189, 0.164]],
    [[0.163, 0.376, 0.188, 0.273], [0.018, 0.116, 0.555, 0.311], [0.209, 0.377, 0.206, 0.209]],
    [[0.068, 0.391, 0.164, 0.376], [0.001, 0.381, 0.317, 0.302], [0.747, 0.007, 0.244, 0.003]],
    [[0.523, 0.052, 0.151, 0.274], [0.264, 0.407, 0.008, 0.32], [0.233, 0.058, 0.063, 0.646]],
    [[0.031, 0.382, 0.413, 0.175], [0.551, 0.222, 0.222, 0.004], [0.047, 0.263, 0.479, 0.212]],
]
"""Answers to three samples in five epochs."""


def loss_of(logits: list[list[float]], rows: list[list[float]], **settings: Any) -> Tensor:
    """L of a batch whose labels are these rows."""
    classes = len(rows[0])
    learner = learner_of(classes)
    client = client_of(learner, len(rows), {"soft": np.array(rows)}, classes)
    labels = FittedLabels(client, JointOptimization(**settings), renewing=False)
    return labels.fit_network(Answers(logits), batch_of(learner, LABELS[: len(rows)]))


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [({}, 4.626988567168899), ({"alpha": 0.3, "beta": 2.0}, 4.413511731992957)],
)
def test_figures_of_the_released_code(settings: dict[str, float], theirs: float) -> None:
    """ElvinKim/FedRN, 0b34b9a, models/update.py, LocalUpdateJointOptim.joint_optim_loss."""
    assert loss_of(FIRST, SOFT, **settings).item() == pytest.approx(theirs, abs=1e-6)


def test_the_loss_by_hand() -> None:
    logits, rows = [[2.0, 1.0, 0.0], [0.0, 3.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    assert loss_of(logits, rows, alpha=0, beta=0).item() == pytest.approx(1.001264, abs=1e-6)
    assert loss_of(logits, rows).item() == pytest.approx(3.192065, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_the_two_terms(seed: int) -> None:
    logits = torch.randn(9, 5, generator=torch.Generator().manual_seed(seed))
    assert prior_cross_entropy(logits).item() > math.log(5)
    assert prior_cross_entropy(torch.zeros(9, 5)).item() == pytest.approx(math.log(5))
    assert ((entropy(logits) >= 0) & (entropy(logits) <= math.log(5))).all()


def remember(epochs: int, length: int = 3) -> AnswerHistory:
    history = AnswerHistory({}, samples=3, length=length, width=4)
    for answers in PROBABILITIES[:epochs]:
        history.record(np.arange(3), answers)
    return history


@pytest.mark.parametrize(
    ("epochs", "first", "last"),
    [
        (1, [0.057999998, 0.012333333, 0.21100001, 0.052], 0),
        (2, [0.11233333, 0.13766666, 0.27366665, 0.143], 0),
        (3, [0.135, 0.268, 0.32833335, 0.26833335], 0),
        (4, [0.25133333, 0.273, 0.16766667, 0.30766666], 0),
        (5, [0.20733334, 0.275, 0.24266668, 0.275], 0),
    ],
)
def test_labels_of_the_released_code(epochs: int, first: list[float], last: int) -> None:
    """ElvinKim/FedRN, 0b34b9a, models/correctors.py, JointOptimCorrector.update_labels: a queue of
    three, which is divided by three before it is full."""
    found = average_answers(remember(epochs), "length")
    assert found[0].tolist() == pytest.approx(first, abs=1e-6)
    assert found[2].argmax() == last


@pytest.mark.parametrize("epochs", [1, 2, 3, 5])
def test_labels_are_probabilities_from_the_first_answer_on(epochs: int) -> None:
    found = average_answers(remember(epochs), "filled")
    assert found.sum(axis=1) == pytest.approx(np.ones(3), abs=2e-3)
    expected = np.mean(PROBABILITIES[max(epochs - 3, 0) : epochs], axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_queue_of_one_is_the_last_answer() -> None:
    found = average_answers(remember(4, length=1), "filled")
    np.testing.assert_allclose(found, PROBABILITIES[3], rtol=1e-6)


def visit(
    state: dict[str, Any] | None = None, renewing: bool = True, **settings: Any
) -> dict[str, Any]:
    """What a client keeps of one visit of two epochs."""
    learner = learner_of()
    method = JointOptimization(**{"queue": 3, **settings})
    out = run_phase(
        fit_jointly,
        client_of(learner, state=state),
        w=learner.first_weights(),
        renewing=renewing,
        method=method,
    )
    return dict(out.state)


def test_the_warm_up_remembers_answers_and_keeps_labels() -> None:
    state = visit(renewing=False)
    assert set(state) == {"answers", "answered"}
    assert state["answered"].tolist() == [2] * 20
    again = visit(state, renewing=False)
    assert again["answered"].tolist() == [4] * 20
    # The state that was read is as it was.
    assert state["answered"].tolist() == [2] * 20


def test_every_epoch_ends_with_new_labels() -> None:
    state = visit()
    np.testing.assert_allclose(state["soft"].sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(state["soft"], state["answers"][:, :2].mean(axis=1), atol=1e-6)
    assert np.array_equal(state["y"], state["soft"].argmax(axis=1))
    hard = visit(labels_are="hard")["soft"]
    assert set(np.unique(hard)) == {0.0, 1.0}


def test_labels_settle_where_the_network_does_not_move() -> None:
    state: dict[str, Any] = {}
    learner = learner_of(lr=0.0)
    found = []
    for _ in range(2):
        client = client_of(learner, state=state)
        out = run_phase(
            fit_jointly,
            client,
            w=learner.first_weights(),
            renewing=True,
            method=JointOptimization(labels_are="hard"),
        )
        state = dict(out.state)
        found.append(state["soft"])
    assert np.array_equal(*found)


def test_samples_without_an_answer_keep_their_label() -> None:
    learner = learner_of(drop_last=True, epochs=1)
    client = client_of(learner)
    w = learner.first_weights()
    method = JointOptimization()
    state = run_phase(fit_jointly, client, w=w, renewing=True, method=method).state
    left_out = state["answered"] == 0
    assert left_out.sum() == 4
    assert np.array_equal(state["soft"][left_out], np.eye(4)[client.y[left_out]])


def test_answers_that_are_not_finite_are_not_remembered() -> None:
    history = AnswerHistory({}, samples=3, length=2, width=2)
    history.record(np.array([0, 2]), [[np.nan, 0.5], [0.25, 0.75]])
    assert history.counts.tolist() == [0, 0, 1]
    assert not history.rows[0].any()


def test_a_local_prior_is_that_of_the_given_labels() -> None:
    client = client_of(learner_of())
    labels = FittedLabels(client, JointOptimization(prior="local"), renewing=False)
    assert labels.prior is not None
    assert labels.prior.tolist() == pytest.approx((client.class_counts / 20).tolist())


def test_costs_are_those_of_the_papers_table(tmp_path: Path) -> None:
    """FedRN's Table 8: M down, M up, eF, eB."""
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 3))
    assert measure_costs(outcome) == pytest.approx((1, 1, 2, 2))
    assert outcome.history[-1]["metrics"]["labels/right_after"] > 0
