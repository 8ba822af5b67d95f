"""Symmetric cross-entropy: printed digits, gradient, symmetry over labels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.learn.losses.symmetric_ce import LOG_ZERO, symmetric_ce
from tests.algorithms.fedrn_baselines import FIRST, LABELS

LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)


def test_log_zero_is_the_usual_clip() -> None:
    assert pytest.approx(-9.210340, abs=5e-7) == LOG_ZERO


@pytest.mark.parametrize(
    ("label", "alpha", "beta", "expected"),
    [
        (0, 1.0, 0.0, 0.169846),
        (0, 0.0, 1.0, 1.438704),
        (0, 0.5, 0.5, 0.804275),
        (0, 0.1, 1.0, 1.455688),
        (2, 1.0, 0.0, 3.169846),
        (2, 0.0, 1.0, 8.823413),
        (2, 0.5, 0.5, 5.996630),
        (2, 0.1, 1.0, 9.140398),
    ],
)
def test_values_of_one_image(label: int, alpha: float, beta: float, expected: float) -> None:
    assert symmetric_ce(LOGITS, torch.tensor([label]), alpha, beta).item() == pytest.approx(
        expected, abs=5e-7
    )


@pytest.mark.parametrize(
    ("classes", "alpha", "beta", "expected"),
    [
        (10, 1.0, 0.0, 2.302585),
        (10, 0.0, 1.0, 8.289306),
        (10, 0.5, 0.5, 5.295946),
        (100, 0.5, 0.5, 6.861704),
    ],
)
def test_values_of_uniform_logits(classes: int, alpha: float, beta: float, expected: float) -> None:
    logits = torch.full((1, classes), 0.7, dtype=torch.float64)
    assert symmetric_ce(logits, torch.tensor([3]), alpha, beta).item() == pytest.approx(
        expected, abs=5e-7
    )


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [
        (1.0, 0.0, [0.843795, 0.114195, -0.957990]),
        (0.0, 1.0, [0.326487, 0.044185, -0.370672]),
        (0.5, 0.5, [0.585141, 0.079190, -0.664331]),
    ],
)
def test_gradient(alpha: float, beta: float, expected: list[float]) -> None:
    logits = LOGITS.clone().requires_grad_()
    symmetric_ce(logits, torch.tensor([2]), alpha, beta).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert logits.grad.sum().item() == pytest.approx(0, abs=1e-12)


def reverse_of_all_labels(logits: Tensor) -> Tensor:
    """The reverse cross-entropy of one image for each of its C possible labels."""
    return symmetric_ce(
        logits.expand(logits.shape[1], -1), torch.arange(logits.shape[1]), alpha=0.0, beta=1.0
    )


@pytest.mark.parametrize("seed", range(4))
def test_reverse_cross_entropy_sums_to_a_constant_over_labels(seed: int) -> None:
    logits = 3 * torch.randn(
        1, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    reverse = reverse_of_all_labels(logits)
    assert reverse.sum().item() == pytest.approx(82.893063, abs=5e-7)
    assert ((reverse >= 0) & (reverse <= -LOG_ZERO)).all()


def test_reverse_gradient_fades_for_impossible_labels() -> None:
    logits = torch.tensor([[-40.0, 0.0, 40.0]], requires_grad=True)
    symmetric_ce(logits, torch.tensor([0]), alpha=0.0, beta=1.0).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-20


def test_a_certain_right_label_costs_exactly_nothing() -> None:
    assert symmetric_ce(torch.tensor([[200.0, 0.0]]), torch.tensor([0])).item() == 0


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = symmetric_ce(logits, torch.tensor([1]))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_neutral_setting_is_cross_entropy_bitwise() -> None:
    logits, y = torch.randn(9, 5, generator=torch.Generator().manual_seed(2)), torch.arange(9) % 5
    assert torch.equal(
        symmetric_ce(logits, y, 1.0, 0.0), F.cross_entropy(logits, y, reduction="none")
    )


@pytest.mark.parametrize(
    ("alpha", "beta", "theirs", "again"),
    [
        (0.5, 0.5, 4.561719430005253, 4.561719479633373),
        (0.1, 1.0, 7.345136157146437, 7.345136256402678),
        (1.0, 1.0, 9.123438860010506, 9.123438959266746),
        (6.0, 0.1, 12.57010604922106, 12.570106059146685),
    ],
)
def test_figures_of_released_code(alpha: float, beta: float, theirs: float, again: float) -> None:
    """YisenWang/symmetric_cross_entropy_for_noisy_labels, ec778df, loss.py, symmetric_cross_entropy
    (with numpy in TensorFlow's place), and HanxunH/SCELoss-Reproduce, c81fb33, loss.py, SCELoss,
    which clips probabilities."""
    logits = torch.tensor(FIRST, dtype=torch.float64)
    found = symmetric_ce(logits, torch.tensor(LABELS), alpha, beta).mean().item()
    assert found == pytest.approx(theirs, rel=1e-9)
    assert found == pytest.approx(again, rel=1e-7)
