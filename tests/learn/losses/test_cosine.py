"""Directions and cosines at the edges of float32."""

from __future__ import annotations

import pytest
import torch

from rayfl.learn.losses.cosine import compare_cosines, scale_to_unit


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_unit_has_length_one(scale: float) -> None:
    x = scale * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scale_to_unit(x).norm(dim=1), torch.ones(8))


def test_a_zero_row_stays_zero_and_passes_no_gradient() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    direction = scale_to_unit(x)
    direction.sum().backward()  # type: ignore[no-untyped-call]
    assert direction.tolist() == [[0.0, 0.0], pytest.approx([0.6, 0.8])]
    assert x.grad is not None
    assert x.grad[0].tolist() == [0.0, 0.0]
    assert x.grad[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_cosines_are_at_least_float32(dtype: torch.dtype) -> None:
    assert (
        compare_cosines(torch.ones(2, 3, dtype=dtype), torch.ones(4, 3, dtype=dtype)).dtype
        == torch.float32
    )


def test_cosines_ignore_autocast() -> None:
    a = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = compare_cosines(a, a)
    assert torch.equal(inside, compare_cosines(a, a))


def test_cosines_keep_float64() -> None:
    a = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert compare_cosines(
        a, torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    ).item() == pytest.approx(0.5**0.5, abs=1e-15)
