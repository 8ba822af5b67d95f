"""MOON's model-contrastive loss: printed values, bounds, invariances."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rayfl.errors import ConfigError
from rayfl.learn.losses.model_contrastive import model_contrastive


def rows(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(
    ("z", "z_global", "z_previous", "expected"),
    [
        (rows(1, 0), rows(1, 1), rows(0, 1), 0.217622),
        (rows(1, 2, 2), rows(2, 1, 2), rows(-1, 0, 1), 0.239647),
        (rows(1, 0), rows(5, 0), rows(-2, 0), 0.018150),
        (rows(1, 0), rows(-5, 0), rows(2, 0), 4.018150),
    ],
)
def test_values(z: Tensor, z_global: Tensor, z_previous: Tensor, expected: float) -> None:
    assert model_contrastive(z, z_global, [z_previous]).item() == pytest.approx(expected, abs=5e-7)


def test_equal_models_give_log_two_and_no_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    other = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    loss = model_contrastive(z, other, [other])
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == pytest.approx([math.log(2)] * 6, abs=1e-12)
    assert z.grad is not None
    assert z.grad.abs().max() < 1e-15


def test_bounds_over_random_features() -> None:
    z, z_global, z_previous = torch.randn(
        3, 500, 3, generator=torch.Generator().manual_seed(0)
    ).unbind(0)
    loss = model_contrastive(z, z_global, [z_previous])
    assert loss.min() >= 0.018149
    assert loss.max() <= 4.018151


def test_without_an_earlier_model_the_loss_and_its_gradient_are_exactly_zero() -> None:
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = model_contrastive(z, torch.ones(6, 4))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == [0.0] * 6
    assert z.grad is not None
    assert z.grad.abs().max() == 0


@pytest.mark.parametrize("which", range(3))
def test_scale_changes_nothing(which: int) -> None:
    tensors = list(torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0)).unbind(0))
    expected = model_contrastive(tensors[0], tensors[1], [tensors[2]])
    tensors[which] = 37 * tensors[which]
    torch.testing.assert_close(model_contrastive(tensors[0], tensors[1], [tensors[2]]), expected)


def test_every_earlier_model_is_a_negative() -> None:
    z, positive, *negatives = (
        torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0)).double().unbind(0)
    )
    share = [torch.exp(torch.cosine_similarity(z, other) / 0.5) for other in (positive, *negatives)]
    expected = -(share[0] / sum(share[1:], share[0])).log()
    torch.testing.assert_close(model_contrastive(z, positive, negatives), expected)


def test_permuting_the_batch_permutes_the_losses() -> None:
    z, z_global, z_previous = torch.randn(
        3, 6, 4, generator=torch.Generator().manual_seed(0)
    ).unbind(0)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = model_contrastive(z[order], z_global[order], [z_previous[order]])
    assert torch.equal(shuffled, model_contrastive(z, z_global, [z_previous])[order])


def test_gradient_reaches_the_local_model_only() -> None:
    z, z_global, z_previous = (torch.randn(3, 2, requires_grad=True) for _ in range(3))
    model_contrastive(z, z_global, [z_previous]).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert z_global.grad is None
    assert z_previous.grad is None


@pytest.mark.parametrize("zero", range(3))
def test_a_zero_vector_is_finite(zero: int) -> None:
    tensors = [torch.ones(2, 3) for _ in range(3)]
    tensors[zero] = torch.zeros(2, 3)
    z = tensors[0].requires_grad_()
    loss = model_contrastive(z, tensors[1], [tensors[2]])
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite().all()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("tau", [0.0, -0.5])
def test_a_temperature_that_is_not_positive_is_refused(tau: float) -> None:
    with pytest.raises(
        ConfigError, match="temperature of the model-contrastive loss must be positive; got"
    ):
        model_contrastive(rows(1, 0), rows(1, 0), tau=tau)
