"""The label contrastive loss against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from rayfl.learn.losses.cosine import scale_to_unit
from rayfl.learn.losses.label_contrast import label_contrast

Z = scale_to_unit(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]]))
Y = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(("temperature", "expected"), [(0.1, 0.063780), (0.5, 0.430190)])
def test_the_mean_over_a_batch(temperature: float, expected: float) -> None:
    assert label_contrast(Z, Y, temperature).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=["one label", "all others"])
def test_nothing_to_tell_apart_or_to_bring_together(labels: list[int]) -> None:
    z = Z.clone().requires_grad_()
    loss = label_contrast(z, torch.tensor(labels))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_an_image_without_a_partner_is_an_other_alone() -> None:
    """It is in denominators and has no term of its own."""
    z = torch.cat([Z[:2], Z[3:]])
    scores = z @ z.T / 0.5
    terms = [
        torch.logsumexp(scores[i][[k for k in range(3) if k != i]], 0) - scores[i, 1 - i]
        for i in range(2)
    ]
    found = label_contrast(z, torch.tensor([0, 0, 1]), 0.5)
    assert found.item() == pytest.approx(float(sum(terms)) / 2, abs=1e-6)


def test_rotated_latents_and_renamed_labels() -> None:
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    assert label_contrast(Z @ turn, 1 - Y).item() == pytest.approx(label_contrast(Z, Y).item())
