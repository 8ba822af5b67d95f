"""BYOL's loss: printed values, range, gradient and independence of the rest of the batch."""

from __future__ import annotations

import pytest
import torch

from rayfl.learn.losses.byol import byol, byol_symmetric

Q = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=torch.float64)
Z = torch.tensor([[0.8, 0.6], [0.96, 0.28], [0.28, 0.96]], dtype=torch.float64)


def test_values_are_squared_distances() -> None:
    loss = byol(Q, Z)
    assert loss.tolist() == pytest.approx([0.4, 0.4, 0.08], abs=5e-7)
    assert loss.mean().item() == pytest.approx(0.293333, abs=5e-7)
    torch.testing.assert_close(loss, (Q - Z).norm(dim=1) ** 2)


@pytest.mark.parametrize(
    ("other", "expected"), [([3.0, 0.0], 0.0), ([0.0, 7.0], 2.0), ([-2.0, 0.0], 4.0)]
)
def test_range(other: list[float], expected: float) -> None:
    assert byol(torch.tensor([[0.5, 0.0]]), torch.tensor([other])).item() == expected


@pytest.mark.parametrize("length", [0.5, 1.0, 4.0])
def test_squared_norm_of_the_gradient(length: float) -> None:
    q = (length * Q).requires_grad_()
    byol(q, Z).sum().backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None
    cosine = (Q * Z).sum(1)
    torch.testing.assert_close(q.grad.square().sum(1), 4 * (1 - cosine**2) / length**2)
    assert (q.grad * q).sum(1).abs().max() < 1e-14


def test_aligned_pairs_have_no_gradient() -> None:
    q = Z.clone().requires_grad_()
    byol(q, 3 * Z).sum().backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None
    assert q.grad.abs().max() < 1e-14


def test_no_gradient_reaches_the_target() -> None:
    q, z = Q.clone().requires_grad_(), Z.clone().requires_grad_()
    byol(q, z).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is None


@pytest.mark.parametrize(("c", "d"), [(2.0, 1.0), (1.0, 30.0), (0.01, 5.0)])
def test_scale_changes_nothing(c: float, d: float) -> None:
    torch.testing.assert_close(byol(c * Q, d * Z), byol(Q, Z))


def test_an_image_does_not_see_the_others() -> None:
    other_q, other_z = Q.flip(0).clone(), Z.flip(0).clone()
    other_q[0], other_z[0] = Q[0], Z[0]
    assert byol(other_q, other_z)[0] == byol(Q, Z)[0]


def test_symmetric_form_crosses_the_views() -> None:
    generator = torch.Generator().manual_seed(0)
    q1, q2, z1, z2 = torch.randn(4, 5, 3, generator=generator).unbind(0)
    assert torch.equal(byol_symmetric(q1, q2, z1, z2), byol(q1, z2) + byol(q2, z1))
    torch.testing.assert_close(byol_symmetric(q1, q2, z1, z2), byol_symmetric(q2, q1, z2, z1))


def test_zero_vectors_are_finite() -> None:
    q = torch.zeros(2, 3, requires_grad=True)
    loss = byol(q, torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == [0.0, 1.0]
    assert q.grad is not None
    assert q.grad.isfinite().all()
