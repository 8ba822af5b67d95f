"""Soft labels, distillation, consistency and logit adjustment: printed digits and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import softmax
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from rayfl.errors import ConfigError, DataError
from rayfl.learn.losses.distillation import distillation, kl_divergence, soften
from rayfl.learn.losses.logit_adjustment import adjust_logits, log_prior
from rayfl.learn.losses.soft_cross_entropy import soft_cross_entropy
from rayfl.learn.losses.squared_error import squared_error


def draw(n: int, classes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)


# -- soft cross-entropy ----------------------------------------------------------------------------


def test_soft_cross_entropy_of_joint_optimisation() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 0.0]])
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    assert soft_cross_entropy(logits, rows).mean().item() == pytest.approx(1.001264, abs=1e-6)


@pytest.mark.parametrize(
    "rows", [torch.zeros(2, dtype=torch.long), torch.zeros(2, 3), torch.zeros(2, 4).long()]
)
def test_soft_targets_of_another_shape_are_refused(rows: Tensor) -> None:
    with pytest.raises(DataError, match=r"one row of probabilities a sample, \(2, 4\); got torch"):
        soft_cross_entropy(torch.zeros(2, 4), rows)


# -- distillation ----------------------------------------------------------------------------------


def test_divergence_is_scipys() -> None:
    teacher, student = draw(6, 4, 0), draw(6, 4, 1)
    expected = [
        scipy_entropy(softmax(t), softmax(s)) for t, s in zip(teacher, student, strict=True)
    ]
    assert kl_divergence(soften(teacher), student).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rows", "answer", "expected"),
    [
        ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2], 0.085123),
        ([0.6, 0.3, 0.1], [0.5, 0.3, 0.2], 0.040078),
        ([0.5, 0.3, 0.2], [0.7, 0.2, 0.1], 0.092033),
        ([0.2, 0.2, 0.6], [0.7, 0.2, 0.1], 0.824503),
        ([1.0, 0.0, 0.0], [0.5, 0.3, 0.2], 0.693147),
    ],
    ids=["helper 1", "helper 2", "teacher 2", "teacher 3", "one-hot"],
)
def test_divergences_in_print(rows: list[float], answer: list[float], expected: float) -> None:
    found = kl_divergence(torch.tensor([rows]), torch.tensor([answer]).log())
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_divergence_of_two_softmaxes() -> None:
    teacher, student = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    assert distillation(student, teacher).item() == pytest.approx(0.302929, abs=1e-6)


def test_distillation_of_fednoro() -> None:
    prior = log_prior([1, 1, 2])
    adjusted = adjust_logits(torch.tensor([[1.0, 0.0, -1.0]]), prior)
    teacher = torch.tensor([[0.8, 0.0, 0.0]])
    expected = [[0.576117, 0.211942, 0.211942]]
    assert soften(teacher, 0.8).tolist() == [pytest.approx(expected[0], abs=1e-6)]
    divergence = distillation(adjusted, teacher, teacher_temperature=0.8)
    assert divergence.item() == pytest.approx(0.007402, abs=1e-6)
    label = F.cross_entropy(adjusted, torch.tensor([0]))
    assert (0.8 * divergence + 0.2 * label).item() == pytest.approx(0.104684, abs=1e-6)


def test_an_absent_class_costs_a_constant() -> None:
    logits = torch.tensor([[1.0, 0.5, 0.0]], requires_grad=True)
    adjusted = adjust_logits(logits, log_prior([1, 1, 0]))
    q = torch.tensor([[0.5, 0.3, 0.2]])
    found = kl_divergence(q, adjusted)
    known = torch.tensor([[1.0, 0.5]]).log_softmax(1)
    kept = q[0, :2] * (q[0, :2].log() - known[0])
    assert found.item() == pytest.approx(kept.sum().item() + 0.2 * math.log(0.2), abs=1e-6)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] == 0


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_gradient_of_distillation_reaches_the_student_alone(temperature: float) -> None:
    teacher, student = draw(5, 4, 0).requires_grad_(), draw(5, 4, 1).requires_grad_()
    distillation(student, teacher, temperature, scaled=True).sum().backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    difference = (student / temperature).softmax(1) - (teacher / temperature).softmax(1)
    torch.testing.assert_close(student.grad, temperature * difference.detach())


def test_equal_networks_have_nothing_to_teach() -> None:
    logits = draw(5, 4, 0)
    assert distillation(logits, logits, 0.8).abs().max() < 1e-12


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature of a distillation must be positive; got"):
        soften(torch.zeros(1, 2), temperature)
    with pytest.raises(ConfigError, match="temperature of a distillation must be positive; got"):
        distillation(torch.zeros(1, 2), torch.zeros(1, 2), temperature, 1.0)


# -- consistency -----------------------------------------------------------------------------------


def test_squared_error_in_print() -> None:
    student = torch.tensor([[0.4, 0.4, 0.2]]).log()
    teacher = torch.tensor([[0.657895, 0.236842, 0.105263]])
    assert squared_error(student, teacher).item() == pytest.approx(0.102105, abs=1e-6)
    answers = torch.tensor([[0.7, 0.3], [0.2, 0.8]]).log()
    assert squared_error(answers, torch.eye(2)).mean().item() / 2 == pytest.approx(0.065, abs=1e-6)


# -- logit adjustment ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0.0, 0.0, 0.0], [2.302585, 1.203973, 0.510826]),
        ([1.0, 0.0, -1.0], [1.070093, 0.971480, 1.278333]),
    ],
)
def test_adjusted_losses_in_print(logits: list[float], expected: list[float]) -> None:
    rows = torch.tensor([logits]).expand(3, -1)
    adjusted = adjust_logits(rows, log_prior([10, 30, 60]))
    losses = F.cross_entropy(adjusted, torch.arange(3), reduction="none")
    assert losses.tolist() == pytest.approx(expected, abs=1e-6)


def test_equal_counts_and_no_strength_are_cross_entropy() -> None:
    logits, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
    plain = F.cross_entropy(logits, y, reduction="none")
    even = adjust_logits(logits, log_prior([7, 7, 7, 7]))
    torch.testing.assert_close(F.cross_entropy(even, y, reduction="none"), plain)
    assert adjust_logits(logits, log_prior([1, 0, 0, 2]), tau=0.0) is logits


def test_an_absent_class_is_never_answered() -> None:
    assert log_prior([3, 0, 1]).tolist() == pytest.approx(
        [math.log(0.75), -math.inf, math.log(0.25)]
    )
    p = adjust_logits(torch.zeros(1, 3), log_prior([3, 0, 1])).softmax(1)
    assert p[0].tolist() == pytest.approx([0.75, 0.0, 0.25])


@pytest.mark.parametrize("counts", [[0, 0], [], [1, -1], [np.nan, 1]])
def test_counts_that_make_no_prior_are_refused(counts: list[float]) -> None:
    with pytest.raises(DataError, match="counts of a class prior are not negative, and one"):
        log_prior(counts)
