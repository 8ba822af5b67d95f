"""Generalised cross-entropy against closed forms and printed digits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import ConfigError
from rayfl.learn.losses.gce import gce

ZERO = torch.tensor([0])


def two_class_logits(p: float) -> Tensor:
    """Logits whose softmax gives the first class probability p."""
    return torch.tensor([[math.log(p), math.log1p(-p)]], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("p", "gamma", "expected"),
    [
        (0.9, 0.6, 0.102099),
        (0.5, 0.6, 0.567077),
        (0.1, 0.6, 1.248019),
        (0.5, 1e-6, 0.693147),
        (0.5, 1.0, 0.5),
    ],
)
def test_values_at_given_probabilities(p: float, gamma: float, expected: float) -> None:
    assert gce(two_class_logits(p), ZERO, gamma).item() == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_of_two_images(dtype: torch.dtype) -> None:
    logits, y = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]], dtype=dtype), torch.tensor([0, 1])
    assert gce(logits, y, 0.6).mean().item() == pytest.approx(0.884005, abs=1e-6)
    assert gce(logits, y, 0.0).mean().item() == pytest.approx(1.751264, abs=1e-6)


def test_gradient_of_the_own_logit() -> None:
    logits = torch.tensor(
        [[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64, requires_grad=True
    )
    gce(logits, torch.tensor([0, 1]), 0.6).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[[0, 1], [0, 1]].tolist() == pytest.approx([-0.262132, -0.149077], abs=5e-7)
    assert logits.grad.sum(1).tolist() == pytest.approx([0, 0], abs=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.6, 1.0])
def test_gradient_is_that_of_cross_entropy_times_a_power_of_p(gamma: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randint(4, (6,), generator=generator)
    (ours,) = torch.autograd.grad(gce(logits, y, gamma).sum(), logits)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), logits)
    p = logits.softmax(1).gather(1, y[:, None])
    torch.testing.assert_close(ours, p**gamma * plain)


def test_gamma_zero_is_cross_entropy_bitwise() -> None:
    logits, y = torch.randn(9, 5, generator=torch.Generator().manual_seed(2)), torch.arange(9) % 5
    assert torch.equal(gce(logits, y, 0.0), F.cross_entropy(logits, y, reduction="none"))


def test_small_gamma_does_not_cancel_in_float32() -> None:
    logits, y = torch.randn(9, 5, generator=torch.Generator().manual_seed(2)), torch.arange(9) % 5
    torch.testing.assert_close(gce(logits, y, 1e-7), gce(logits, y, 0.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("floor", [0.0, 1e-4])
def test_an_impossible_label_gives_the_bound_and_a_finite_gradient(floor: float) -> None:
    logits = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    loss = gce(logits, ZERO, 0.6, floor)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    bound = (1 - floor**0.6) / 0.6
    assert loss.item() == pytest.approx(bound, abs=1e-6)
    assert bound <= 1.666667
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


def test_the_floor_changes_nothing_above_it() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert torch.equal(gce(logits, ZERO, floor=1e-4), gce(logits, ZERO))


@pytest.mark.parametrize("gamma", [-0.1, 1.5, math.nan])
def test_gamma_outside_its_range_is_refused(gamma: float) -> None:
    with pytest.raises(ConfigError, match=r"must lie in \[0, 1\]; got"):
        gce(torch.zeros(1, 2), ZERO, gamma)
