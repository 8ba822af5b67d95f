"""Clipped logits: values, bounds of the loss, and what clipping leaves alone."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rayfl.errors import ConfigError
from rayfl.learn.losses.logit_clip import logit_clip
from tests.algorithms.fedrn_baselines import FIRST, LABELS

ROW = torch.tensor([[3.0, 4.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("tau", "clipped", "losses"),
    [
        (1.0, [0.6, 0.8], [0.798139, 0.598139]),
        (2.0, [1.2, 1.6], [0.913015, 0.513015]),
        (5.0, [3.0, 4.0], [1.313262, 0.313262]),
        (9.0, [3.0, 4.0], [1.313262, 0.313262]),
    ],
)
def test_values(tau: float, clipped: list[float], losses: list[float]) -> None:
    out = logit_clip(ROW, tau)
    assert out[0].tolist() == pytest.approx(clipped, abs=1e-12)
    both = F.cross_entropy(out.expand(2, -1), torch.tensor([0, 1]), reduction="none")
    assert both.tolist() == pytest.approx(losses, abs=5e-7)


def test_compat_clips_to_the_inverse() -> None:
    assert logit_clip(ROW, 2.0, compat=True)[0].tolist() == pytest.approx([0.3, 0.4], abs=1e-12)
    assert torch.equal(logit_clip(ROW, 1.0, compat=True), logit_clip(ROW, 1.0))


@pytest.mark.parametrize(
    ("classes", "low", "high"),
    [
        (7, 1.110976, 2.926932),
        (9, 1.327027, 3.182470),
        (10, 1.419869, 3.289309),
        (100, 3.617304, 5.603848),
    ],
)
def test_range_of_the_loss_at_tau_one(classes: int, low: float, high: float) -> None:
    best = torch.full((1, classes), -1 / classes, dtype=torch.float64)
    best[0, 0] += 1
    for direction, expected in ((best, low), (-best, high)):
        loss = F.cross_entropy(logit_clip(1000 * direction), torch.tensor([0]))
        assert loss.item() == pytest.approx(expected, abs=5e-7)
    logits = 50 * torch.randn(
        200, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    losses = F.cross_entropy(logit_clip(logits), torch.arange(200) % classes, reduction="none")
    assert ((losses >= low) & (losses <= high)).all()


@pytest.mark.parametrize(("classes", "largest"), [(10, 0.241746), (100, 0.026855)])
def test_largest_reachable_probability(classes: int, largest: float) -> None:
    logits = torch.full((1, classes), -1 / classes, dtype=torch.float64)
    logits[0, 3] += 1
    assert logit_clip(1e6 * logits).softmax(1).max().item() == pytest.approx(largest, abs=5e-7)


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_prediction_is_unchanged_and_longer_logits_clip_alike(tau: float) -> None:
    logits = 5 * torch.randn(
        50, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    out = logit_clip(logits, tau)
    assert torch.equal(out.argmax(1), logits.argmax(1))
    assert (out.norm(dim=1) <= tau * (1 + 1e-12)).all()
    torch.testing.assert_close(logit_clip(7 * logits, tau), out)


def test_gradient_of_a_clipped_row_is_orthogonal_to_it() -> None:
    logits = (
        4 * torch.randn(20, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ).requires_grad_()
    F.cross_entropy(logit_clip(logits, 0.5), torch.arange(20) % 6).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert (logits.grad * logits).sum(1).abs().max() < 1e-14
    assert logits.grad.norm() > 1e-3


@pytest.mark.parametrize("tau", [100.0, math.inf])
def test_a_large_threshold_changes_nothing(tau: float) -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    out = logit_clip(logits, tau)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(out, logits)
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.ones(5, 4))


def test_zero_logits_stay_and_have_a_finite_gradient() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    out = logit_clip(logits)
    F.cross_entropy(out, torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    assert out.tolist() == [[0.0] * 3] * 2
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([-1 / 3, 1 / 6, 1 / 6])


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
def test_a_threshold_that_is_not_positive_is_refused(tau: float) -> None:
    with pytest.raises(ConfigError, match="tau must be positive; got"):
        logit_clip(ROW, tau)


@pytest.mark.parametrize(
    ("tau", "norm", "theirs"),
    [
        (1.0, 2.0, 1.4103015166950468),
        (1.5, 2.0, 1.383375284229743),
        (2.0, 2.0, 1.3692588726175656),
        (0.5, 2.0, 1.5856162954257165),
        (1.0, 3.0, 1.4355889599881582),
    ],
)
def test_figures_of_released_code(tau: float, norm: float, theirs: float) -> None:
    """hongxin001/LogitClip, 7e45730, algorithms/clip.py, LogitClipping.train_batch, which adds 1e-7
    to every norm and clips to 1 / tau."""
    logits = torch.tensor(FIRST, dtype=torch.float64)
    clipped = logit_clip(logits, tau, compat=True, norm=norm)
    found = F.cross_entropy(clipped, torch.tensor(LABELS)).item()
    assert found == pytest.approx(theirs, rel=1e-7)
