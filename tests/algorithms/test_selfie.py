"""SELFIE: whose label is refurbished, which samples are trained on, and what a client keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfl.algorithms.selfie import (
    NOT_YET,
    Refurbishing,
    Selfie,
    measure_shares,
    measure_uncertainty,
    train_on_refurbished,
)
from rayfl.learn.losses.small_loss import count_kept
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_baselines import (
    Answers,
    batch_of,
    client_of,
    learner_of,
    measure_costs,
)
from tests.phases import run_phase

ROWS = [
    Row(
        "selfie",
        {"name": "selfie", "warmup": 4, "queue": 4, "eps": 0.1},
        neutral={"name": "selfie", "warmup": 0, "tau": 0.0, "eps": None},
        same_as={"name": "fedavg"},
        refused=[
            ({"tau": 1.5}, "tau"),
            ({"eps": -0.1}, "eps"),
            ({"queue": 0}, "queue"),
            ({"warmup": -1}, "warmup"),
            ({"unfilled": "zeros"}, "unfilled"),
        ],
    ),
]

ANSWERS = [
    [0, 0, 0, 0, 0, 1, 0],
    [1, 2, 1, 1, 2, 1, 1],
    [3, 3, 3, 3, 3, 3, 3],
    [0, 1, 2, 3, 0, 1, 2],
]
"""The classes that four samples were answered with in seven epochs."""


def refurbish(epochs: int, state: dict[str, Any] | None = None, **settings: Any) -> Refurbishing:
    """Four samples after so many of the answers."""
    learner = learner_of()
    method = Selfie(**{"queue": 5, "eps": 0.35, "tau": 0.3, **settings})
    visit = Refurbishing(client_of(learner, 4, state), method)
    for epoch in range(epochs):
        visit.answers.record(np.arange(4), np.array(ANSWERS)[:, epoch])
        visit._refurbish(np.arange(4))
    return visit


@pytest.mark.parametrize(
    ("epochs", "theirs"),
    [
        *((epochs, [0, NOT_YET, NOT_YET, 0]) for epochs in (1, 2, 3, 4)),
        *((epochs, [0, NOT_YET, 3, 0]) for epochs in (5, 6, 7)),
    ],
)
def test_labels_of_the_released_code(epochs: int, theirs: list[int]) -> None:
    """ElvinKim/FedRN, 0b34b9a, models/correctors.py, SelfieCorrector.correct_samples: a history
    begins full of zeros, and makes class 0 of whatever is seen first."""
    assert refurbish(epochs, unfilled="class_0").refurbished.tolist() == theirs


def test_nothing_is_refurbished_before_its_history_is_full() -> None:
    assert refurbish(4).refurbished.tolist() == [NOT_YET] * 4
    assert refurbish(5).refurbished.tolist() == [0, NOT_YET, 3, NOT_YET]


def test_what_was_refurbished_once_stays_so() -> None:
    """Sample 0 is answered with 0 five times, then with 1 among them: F rises to 0.36."""
    visit = refurbish(6)
    shares = measure_shares(visit.answers.rows, 4)
    assert measure_uncertainty(shares)[0] == pytest.approx(0.360964, abs=1e-6)
    assert visit.refurbished[0] == 0


@pytest.mark.parametrize(
    ("split", "classes", "expected"),
    [
        ((15, 0), 10, 0.0),
        ((14, 1), 10, 0.106372),
        ((14, 1), 50, 0.062610),
        ((14, 1), 100, 0.053186),
        ((13, 2), 10, 0.170536),
        ((8, 7), 10, 0.300064),
    ],
)
def test_uncertainty(split: tuple[int, int], classes: int, expected: float) -> None:
    answers = np.repeat([0, 1], split)[None]
    found = measure_uncertainty(measure_shares(answers, classes))
    assert found.tolist() == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize(("classes", "passes"), [(134, False), (135, True)])
def test_the_papers_threshold_asks_for_one_answer_only(classes: int, passes: bool) -> None:
    answers = np.repeat([0, 1], (14, 1))[None]
    found = measure_uncertainty(measure_shares(answers, classes))
    assert bool(found[0] <= 0.05) == passes


@pytest.mark.parametrize(("batch", "clean"), [(1, 1), (4, 3), (7, 5), (10, 7)])
def test_how_many_are_clean_in_the_released_code(batch: int, clean: int) -> None:
    """ElvinKim/FedRN, 0b34b9a, models/correctors.py, separate_clean_and_unclean_samples at a rate
    of 0.3."""
    assert count_kept(batch, 1 - 0.3, "up") == clean


class Counting(Answers):
    """Notes how many samples pass."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__(rows)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return super().forward(x)


def test_clean_and_refurbished_samples_are_trained_on() -> None:
    """Of four samples with label 2 the released code (patch_clean_with_corrected_sample_batch)
    keeps 0, 2 and 3, under the labels 0, 3 and 0."""
    state = {**refurbish(7, unfilled="class_0").state}
    learner = learner_of()
    method = Selfie(tau=0.5, queue=5, eps=None)
    visit = Refurbishing(client_of(learner, 4, state), method)
    learner.probe(visit.client.x)
    # The first and the third have the smallest losses for label 2.
    rows = [[0.0, 0, 5, 0], [4.0, 0, 0, 0], [0.0, 0, 4, 0], [3.0, 0, 0, 0]]
    net = Counting(rows)
    loss = visit.train_on_chosen(net, batch_of(learner, [2, 2, 2, 2]))
    assert net.seen == [4, 3]
    assert np.flatnonzero(visit.chosen.state["kept"][0]).tolist() == [0, 2, 3]
    # `Answers` gives its first rows to whatever is passed.
    expected = torch.nn.functional.cross_entropy(net.rows[:3], torch.tensor([0, 3, 0]))
    assert loss is not None
    assert loss.item() == pytest.approx(expected.item())


def visit_of(state: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    learner = learner_of(lr=0.0)
    client = client_of(learner, state=state)
    method = Selfie(**{"queue": 2, **settings})
    out = run_phase(train_on_refurbished, client, w=learner.first_weights(), method=method)
    return dict(out.state)


def test_with_eps_one_every_sample_is_refurbished_when_its_history_is_full() -> None:
    found = visit_of(eps=1.0)
    assert (found["refurbished"] != NOT_YET).all()
    assert found["answered"].tolist() == [2] * 20
    # The network does not move: both answers are the same, and the label is theirs.
    assert np.array_equal(found["y"], found["answers"][:, 0])
    assert found["kept"][1].all()


def test_the_threshold_of_losses_is_by_given_labels() -> None:
    """What was refurbished in an earlier visit changes nothing at what is clean by its loss."""
    first = visit_of(eps=None, tau=0.4)
    twisted = {"refurbished": np.full(20, 3), "y": np.full(20, 3), "answered": np.zeros(20, int)}
    second = visit_of({**first, **twisted}, eps=None, tau=0.4)
    assert second["kept"].all()
    assert np.array_equal(first["y"], client_of(learner_of()).y)
    assert (second["y"] == 3).all()


def test_histories_go_on_from_visit_to_visit() -> None:
    first = visit_of(queue=15, eps=0.05)
    second = visit_of(first, queue=15, eps=0.05)
    assert second["answered"].tolist() == [4] * 20
    assert first["answered"].tolist() == [2] * 20
    assert (second["refurbished"] == NOT_YET).all()


def test_costs(tmp_path: Path) -> None:
    """FedRN's Table 8: M down, M up, 2eF in its total (the kept part passes twice), eB."""
    method = {"name": "selfie", "warmup": 0, "tau": 0.0}
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path, method), 1))
    assert measure_costs(outcome) == pytest.approx((1, 1, 4, 2))
