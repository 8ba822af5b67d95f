"""Terms of entropy and prior, and the selection of samples of small loss."""

from __future__ import annotations

import math

import pytest
import torch

from rayfl.errors import ConfigError
from rayfl.learn.losses.entropy import (
    entropy,
    negative_entropy,
    prior_cross_entropy,
    prior_divergence,
)
from rayfl.learn.losses.small_loss import Rounding, count_kept, select_small_losses

JOINT = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 0.0]])


def test_terms_of_joint_optimisation() -> None:
    assert prior_cross_entropy(JOINT).item() == pytest.approx(1.426004, abs=1e-6)
    assert prior_divergence(JOINT).item() == pytest.approx(0.327392, abs=1e-6)
    assert entropy(JOINT).mean().item() == pytest.approx(0.599495, abs=1e-6)


def test_entropy_of_a_row() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    expected = [0.801819, 0.0, math.log(3)]
    assert entropy(p.log()).tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(negative_entropy(p.log()), -entropy(p.log()))


def test_an_impossible_class_leaves_the_entropy_and_its_gradient_finite() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    adjusted = torch.cat((logits, torch.full((1, 1), -math.inf)), dim=1)
    entropy(adjusted).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-7


def test_regulariser_of_dividemix() -> None:
    uneven = torch.tensor([[0.7, 0.2, 0.1]]).log()
    assert prior_divergence(uneven).item() == pytest.approx(0.324287, abs=1e-6)
    assert prior_divergence(torch.zeros(4, 3)).item() == pytest.approx(0, abs=1e-7)


def test_a_prior_that_is_met_costs_its_entropy() -> None:
    prior = torch.tensor([0.5, 0.5, 0.0])
    answers = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).log()
    assert prior_cross_entropy(answers, prior).item() == pytest.approx(math.log(2), abs=1e-6)
    assert prior_divergence(answers, prior).item() == pytest.approx(0, abs=1e-6)


def test_a_class_that_nobody_is_given_stays_finite() -> None:
    answers = torch.tensor([[0.0, -1e4]], requires_grad=True)
    value = prior_cross_entropy(answers)
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == pytest.approx(-math.log(1e-8) / 2, abs=1e-4)
    assert answers.grad is not None
    assert answers.grad.isfinite().all()


# -- small losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "share", "rounding", "expected"),
    [
        *((50, 1 - rate, "down", m) for rate, m in ((0.0, 50), (0.002020, 49), (0.101010, 44))),
        *((b, 0.8, "down", m) for b, m in ((1, 1), (3, 2), (4, 3), (7, 5), (10, 8))),
        (10, 1 - 0.9, "down", 1),
        *((b, 0.8, "up", m) for b, m in ((50, 40), (7, 6), (1, 1))),
        (10, 0.0, "up", 1),
        (0, 0.5, "down", 0),
    ],
)
def test_how_many_are_kept(samples: int, share: float, rounding: Rounding, expected: int) -> None:
    assert count_kept(samples, share, rounding) == expected


def test_the_exchange_of_co_teaching() -> None:
    first = torch.tensor([0.2, 1.5, 0.4, 2.0, 0.3])
    second = torch.tensor([0.25, 0.35, 1.2, 1.9, 0.5])
    of_first, of_second = (select_small_losses(losses, 1 - 0.4) for losses in (first, second))
    assert of_first.tolist() == [0, 4, 2]
    assert of_second.tolist() == [0, 1, 4]
    assert first[of_second].mean().item() == pytest.approx(0.666667, abs=1e-6)
    assert second[of_first].mean().item() == pytest.approx(0.65, abs=1e-6)


def test_ties_go_to_the_earlier_and_no_number_is_largest() -> None:
    losses = torch.tensor([math.nan, 0.5, 0.5, math.inf, 0.1], requires_grad=True)
    chosen = select_small_losses(losses, 0.6)
    assert chosen.tolist() == [4, 1, 2]
    assert not chosen.requires_grad
    assert select_small_losses(losses, 1.0).tolist() == [4, 1, 2, 0, 3]


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"share of samples to be kept lies in \[0, 1\]; got"):
        count_kept(10, share)
