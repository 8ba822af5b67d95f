"""RHFL: confidence and collaboration by hand and beside the authors' code, one exchange a batch,
and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfl.algorithms import rhfl
from rayfl.algorithms.rhfl import (
    RHFL,
    Losses,
    measure_collaboration,
    measure_contributions,
    measure_divergence,
    weigh_teachers,
)
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.losses.base import CROSS_ENTROPY
from rayfl.protocol import Fleet
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import toy_fleet

LONG: dict[str, Any] = {"training": {"rounds": 16, "clients_per_round": 6}}
"""It is slow to start, and nobody has more than its own samples."""
BRIEF: dict[str, Any] = {"training": {"rounds": 3}}
PUBLIC: dict[str, Any] = {"split": {"public": 0.2}, **LONG}

ROWS = [
    Row(
        "rhfl",
        {"name": "rhfl"},
        config=PUBLIC,
        brief=BRIEF,
        # Nothing is averaged: every model has its client's samples, and wrong labels, alone.
        floor=0.7,
        refused=[
            ({"eta": -0.1}, "eta"),
            ({"public": "test"}, "public"),
            ({"first": "other"}, "first"),
            ({"pretrain_epochs": -1}, "pretrain_epochs"),
            ({"loss": "sce"}, "unknown loss 'sce'"),
        ],
    ),
    Row(
        "rhfl_pretrained",
        {
            "name": "rhfl",
            "public": "validation",
            "pretrain_epochs": 2,
            "private_epochs": "public",
            "first": "own",
            "loss": "ce",
        },
        config={"split": {"validation": {"per_class": 10}}, **LONG},
        brief=BRIEF,
        floor=0.6,
    ),
]

# Of the spec's facts.
P = {
    1: np.array([[0.7, 0.2, 0.1]], np.float32),
    2: np.array([[0.5, 0.3, 0.2]], np.float32),
    3: np.array([[0.2, 0.2, 0.6]], np.float32),
}

Z = [
    [
        [1.14, 2.06, -0.435, 1.775, 0.187],
        [-0.181, -0.091, -0.735, -0.587, 0.871],
        [-1.309, 0.687, 0.329, 0.332, 0.303],
        [-0.981, -0.353, -0.839, -1.233, -0.681],
    ],
    [
        [-0.496, -0.602, -0.478, -0.299, -0.209],
        [-3.112, -0.426, 1.334, -0.328, 1.622],
        [0.859, 0.7, 1.566, 0.532, -1.439],
        [1.655, -0.382, 0.505, 0.583, -0.022],
    ],
    [
        [-0.864, -0.208, 0.675, -0.328, -0.766],
        [-1.586, -0.176, 1.061, -0.005, 1.181],
        [0.75, 1.47, 1.426, 0.784, -0.171],
        [0.105, -0.192, -0.124, 0.956, -0.115],
    ],
]
"""Logits of three clients for four images of five classes."""


# -- confidence ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "f", "w"),
    [
        ([0.5, 0.8, 0.9], [1.0, 0.25, 0.111111], [0.403127, 0.306048, 0.290825]),
        # Losses that rise: the sum is negative, and the worst client counts most.
        ([1.2, 0.9, 1.05], [-0.166667, 0.111111, -0.047619], [0.548889, 0.142842, 0.308269]),
    ],
)
def test_confidence(now: list[float], f: list[float], w: list[float]) -> None:
    found = measure_contributions(np.ones(3), np.array(now))
    assert found == pytest.approx(f, abs=1e-6)
    assert weigh_teachers(found, 0.5) == pytest.approx(w, abs=1e-6)


@pytest.mark.parametrize("eta", [0.0, 0.5, 7.0])
@pytest.mark.parametrize("f", [0.3, -0.2, 0.0])
def test_clients_that_learn_alike_teach_alike(f: float, eta: float) -> None:
    assert weigh_teachers(np.full(4, f), eta) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("f", [[0.5, -0.5], [np.inf, 1.0], [np.nan, 1.0]])
def test_a_sum_that_says_nothing_gives_equal_weights(f: list[float]) -> None:
    assert weigh_teachers(np.array(f), 0.5).tolist() == [0.5, 0.5]


def test_two_clients_begin_at_one() -> None:
    """a = (1 + 0.5 * 3 / 4, 1 + 0.5 / 4)."""
    expected = np.exp([1.375, 1.125]) / np.exp([1.375, 1.125]).sum()
    assert weigh_teachers(np.array([3.0, 1.0]), 0.5) == pytest.approx(expected)


def test_the_first_round_weighs_all_alike_and_sums_to_more_than_one(tmp_path: Path) -> None:
    """K / (K - 1); from then on W sums to 1."""
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path))
    method = RHFL()
    losses = dict.fromkeys(range(4), 1.0)
    assert list(method.weigh({}, losses, fleet).values()) == pytest.approx([1 / 3] * 4)
    later = method.weigh(losses, {0: 0.5, 1: 0.9, 2: 0.9, 3: 0.8}, fleet)
    assert sum(later.values()) == pytest.approx(1)
    assert set(fleet.take_estimates()) == {"confidence"}


# -- collaboration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("w", "expected"),
    [
        ({1: 0.403127, 2: 0.306048, 3: 0.290825}, 0.267952),
        (dict.fromkeys((1, 2, 3), 0.5), 0.458268),
    ],
)
def test_a_student_hears_the_others(w: dict[int, float], expected: float) -> None:
    exact = {k: p.astype(np.float64) for k, p in P.items()}
    kl = {j: measure_divergence(exact[j], exact[1]) for j in (2, 3)}
    assert kl == pytest.approx({2: 0.092033, 3: 0.824503}, abs=1e-6)
    assert w[2] * kl[2] + w[3] * kl[3] == pytest.approx(expected, abs=1e-6)


def test_collaboration_is_the_mean_over_students() -> None:
    pair = {1: P[1], 2: P[2]}
    one, two = (P[k].astype(np.float64) for k in (1, 2))
    expected = 0.7 * measure_divergence(two, one) + 0.2 * measure_divergence(one, two)
    assert measure_collaboration(pair, {1: 0.2, 2: 0.7}) == pytest.approx(expected / 2)
    assert np.isnan(measure_collaboration({1: P[1]}, {1: 1.0}))


def test_identical_clients_have_nothing_to_teach() -> None:
    alike = dict.fromkeys(range(4), P[1])
    assert measure_collaboration(alike, dict.fromkeys(alike, 1 / 3)) == 0


def test_cross_entropy_with_the_weighted_answers_has_the_gradient_of_the_divergences() -> None:
    """Which is what a client trains on."""
    logits = torch.tensor([[1.0, -0.5, 0.3]], dtype=torch.float64, requires_grad=True)
    weights = {2: 0.306048, 3: 0.290825}
    teachers = {j: torch.from_numpy(P[j]).double() for j in weights}
    divergences = sum(
        (w * F.kl_div(logits.log_softmax(1), teachers[j], reduction="batchmean"))
        for j, w in weights.items()
    )
    (expected,) = torch.autograd.grad(divergences, logits)  # type: ignore[arg-type]
    targets = sum((w * teachers[j] for j, w in weights.items()), torch.zeros(1, 3))
    (found,) = torch.autograd.grad(CROSS_ENTROPY.mean(logits, targets), logits)
    torch.testing.assert_close(found, expected)


# -- beside the authors' code (FangXiuwen/Robust_FL, 1d63582, folder RHFL) ------------------------


def test_confidence_of_the_authors() -> None:
    """HHF/HHF.py, "Calculate Client Confidence with label quality and model performance"."""
    before = np.array([2.305, 2.3079, 2.0153, 1.7858, 1.5539])
    now = np.array([2.2366, 2.222, 2.1836, 1.9517, 1.0545])
    theirs = [0.1809244, 0.18285355, 0.15707225, 0.15544541, 0.3237044]
    found = weigh_teachers(measure_contributions(before, now), RHFL().eta)
    assert found == pytest.approx(theirs, abs=1e-8)


def test_robust_loss_of_the_authors() -> None:
    """loss.py, SCELoss(alpha=0.1, beta=1.0), image by image."""
    logits = [
        [-0.23, 1.08, -2.346, 0.215, 1.995, -0.86, 4.862, -4.79, -0.155, -0.918],
        [3.138, 1.567, -0.5, 0.159, 1.691, 6.77, 5.608, -3.586, 2.994, 1.378],
        [-0.814, 0.425, 0.389, 2.044, 0.609, -0.613, -1.236, 2.062, -0.226, -1.27],
    ]
    found = RHFL().loss(torch.tensor(logits), torch.tensor([0, 3, 7]))
    theirs = [9.678869247436523, 9.89471435546875, 6.138219356536865]
    assert found.tolist() == pytest.approx(theirs, rel=1e-6)


def test_collaboration_of_the_authors() -> None:
    """HHF/HHF.py, "Update Participants' Models via KL Loss and Data Quality": three clients' losses
    on four images, and the gradient of the first one's logits."""
    logits = torch.tensor(Z, dtype=torch.float64)
    weights = {0: 0.5, 1: 0.2, 2: 0.3}
    p = {k: logits[k].softmax(1) for k in weights}
    losses = [
        sum(weights[j] * measure_divergence(p[j].numpy(), p[k].numpy()) for j in p if j != k)
        for k in p
    ]
    theirs = [0.21261953360059863, 0.29538843967406014, 0.19359755901403758]
    assert losses == pytest.approx(theirs, rel=1e-6)
    answers = {k: rows.numpy().astype(np.float32) for k, rows in p.items()}
    assert measure_collaboration(answers, weights) == pytest.approx(np.mean(theirs), rel=1e-5)
    first = logits[0].requires_grad_()
    targets = sum((weights[j] * p[j] for j in (1, 2)), torch.zeros(4, 5))
    (gradient,) = torch.autograd.grad(CROSS_ENTROPY.mean(first, targets), first)
    assert gradient[0].tolist() == pytest.approx(
        [0.00451526, 0.03025063, -0.03859807, 0.01592343, -0.01209126], abs=1e-7
    )
    assert gradient[3].tolist() == pytest.approx(
        [-0.01818366, 0.02495875, 0.00490571, -0.02378055, 0.01209974], abs=1e-7
    )


# -- rounds ----------------------------------------------------------------------------------------


def count_phases(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    phases: list[str] = []
    execute = InlineFleet.execute

    def noted(self: InlineFleet, number: int, phase: Any, *more: Any) -> Any:
        phases.append(phase.__name__)
        return execute(self, number, phase, *more)

    monkeypatch.setattr(InlineFleet, "execute", noted)
    return phases


def test_a_public_batch_costs_one_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """72 public images in batches of 16."""
    phases = count_phases(monkeypatch)
    run_toy(shortened(toy_config(ROWS[0], tmp_path), 1))
    own = [name for name in phases if hasattr(rhfl, name)]
    assert own == ["begin_alone", "report_loss", *["distil"] * 5, "train_alone"]


def test_what_is_sent_are_answers(tmp_path: Path) -> None:
    """Up: P of every batch and Lbar. Down: the others' P, and which images are asked about; no
    model either way."""
    outcome, fleet = run_toy(shortened(toy_config(ROWS[0], tmp_path), 1))
    metrics = outcome.history[0]["metrics"]
    images, clients, classes = 72, 6, 4
    assert fleet.size("public") == images
    answers = images * classes * 4
    rows = (16 + images + (images - 16)) * 4
    assert metrics["cost/up_mb"] * 1e6 == pytest.approx(clients * (answers + 4))
    assert metrics["cost/down_mb"] * 1e6 == pytest.approx(clients * (5 * answers + rows))
    visited = fleet.sample(0)
    own = sum(map(fleet.size, visited))
    # Asked once about their own samples and about every public image; trained on both.
    assert metrics["cost/backward"] == clients * images + 2 * own
    assert metrics["cost/forward"] == metrics["cost/backward"] + clients * images + own


def test_nothing_is_averaged_and_labels_stay(tmp_path: Path) -> None:
    outcome, fleet = run_toy(shortened(toy_config(ROWS[0], tmp_path), 2))
    assert len({model.tobytes() for model in outcome.models.values()}) == 6
    assert not any("y" in entries for entries in fleet.table.values())


def test_public_labels_are_out_of_bounds(tmp_path: Path) -> None:
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path))
    assert fleet.executor.holdings.sets["public"].y is None


@pytest.mark.parametrize(("first", "apart"), [("same", 1), ("own", 6)])
def test_first_weights(first: str, apart: int, tmp_path: Path) -> None:
    start, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "rhfl", "first": first}), 0)
    )
    assert len({model.tobytes() for model in start.models.values()}) == apart


def play(method: RHFL, fleet: InlineFleet) -> Losses:
    fleet.round = -1
    state = method.init(fleet, fleet.initial())
    fleet.round = 0
    return method.round(state, fleet, 0)


@pytest.mark.parametrize("cohort", [[0], [3, 5]])
def test_a_lone_client_skips_collaboration(
    cohort: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(self: Fleet, t: int, among: Any = None) -> list[int]:
        return cohort

    monkeypatch.setattr(InlineFleet, "sample", choose)
    phases = count_phases(monkeypatch)
    state = play(RHFL(), toy_fleet(toy_config(ROWS[0], tmp_path)))
    assert ("distil" in phases) == (len(cohort) > 1)
    assert sorted(state.before) == cohort


def test_whose_answers_are_not_finite_teaches_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = rhfl.answer_batch

    def fail(client: Any, *more: Any) -> Any:
        return answer(client, *more) * np.float32(np.nan if client.id == 1 else 1)

    monkeypatch.setattr(rhfl, "answer_batch", fail)
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path, training={"clients_per_round": 6}))
    play(RHFL(), fleet)
    for k in fleet.clients:
        w = fleet.state(k, "w")
        assert w is not None
        assert np.isfinite(fleet.get(w)).all()


def test_epochs_before_collaboration_and_by_the_public_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """max(72 // 48, 1) = 1 epoch for each of 48 samples."""
    method = {"name": "rhfl", "pretrain_epochs": 3, "private_epochs": "public"}
    outcome, fleet = run_toy(shortened(toy_config(ROWS[0], tmp_path, method), 2))
    all_samples = sum(map(fleet.size, fleet.clients))
    passes = [record["metrics"]["cost/backward"] for record in outcome.history]
    assert passes == [4 * all_samples + 6 * 72, all_samples + 6 * 72]


# -- refusals --------------------------------------------------------------------------------------


def test_a_public_set_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RHFL needs the set 'public'"):
        run_toy(toy_config(Row("bare", {"name": "rhfl"}), tmp_path))


def test_a_single_client_has_nobody_to_learn_from(tmp_path: Path) -> None:
    alone: dict[str, Any] = {"clients": 1, "noise": "none", "training": {"clients_per_round": 1}}
    lone = toy_config(ROWS[0], tmp_path, **alone)
    with pytest.raises(ConfigError, match="at least two with data; got 1"):
        run_toy(lone)


def test_a_public_set_below_a_whole_batch_is_refused(tmp_path: Path) -> None:
    whole = toy_config(ROWS[0], tmp_path, training={"drop_last": True, "batch_size": 80})
    with pytest.raises(ConfigError, match="72 images for batches of 80"):
        run_toy(whole)
