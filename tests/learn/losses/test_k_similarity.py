"""The K-similarity constraint: neighbours, printed values, gradient, invariances, small batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rayfl.errors import ConfigError
from rayfl.learn.losses.k_similarity import find_nearest_in_batch, k_similarity


def polar(degrees: list[float], lengths: list[float]) -> Tensor:
    angle, length = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64)), torch.tensor(lengths)
    return torch.stack((length * angle.cos(), length * angle.sin()), 1)


REFERENCE = polar([0, 10, 90, 105], [3, 1, 0.5, 2])
FEATURES = polar([0, 20, 60, 90], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("k", "self_in_den", "expected", "mean"),
    [
        (1, True, [0.915171, 1.071446, 1.273893, 1.027141], 1.071913),
        (1, False, [0.242591, 0.528829, 0.699021, 0.207102], 0.419386),
        (2, True, [0.707401, 0.626405, 0.733561, 0.866425], 0.733448),
        (3, True, [0.672580, 0.542617, 0.574872, 0.820039], 0.652527),
    ],
)
def test_values(k: int, self_in_den: bool, expected: list[float], mean: float) -> None:
    loss = k_similarity(FEATURES, REFERENCE, k, self_in_den=self_in_den)
    assert loss.tolist() == pytest.approx(expected, abs=5e-7)
    assert loss.mean().item() == pytest.approx(mean, abs=5e-7)


def test_mean_for_two_neighbours_without_self() -> None:
    loss = k_similarity(FEATURES, REFERENCE, 2, self_in_den=False)
    assert loss.mean().item() == pytest.approx(0.080921, abs=5e-7)


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, [[1], [0], [3], [2]]), (2, [[1, 2], [0, 2], [3, 1], [2, 1]]), (9, [3, 3, 3, 3])],
)
def test_neighbours(k: int, expected: list[object]) -> None:
    found = find_nearest_in_batch(REFERENCE, k)
    assert (found.tolist() if k < 9 else [len(row) for row in found]) == expected


def test_all_neighbours_without_self_is_exactly_zero() -> None:
    z = FEATURES.clone().requires_grad_()
    loss = k_similarity(z, REFERENCE, 3, self_in_den=False)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == [0.0] * 4
    assert z.grad is not None
    assert z.grad.abs().max() < 1e-15


@pytest.mark.parametrize(("self_in_den", "expected"), [(True, 2.525729), (False, 2.505526)])
def test_collapsed_features(self_in_den: bool, expected: float) -> None:
    reference = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    loss = k_similarity(torch.ones(50, 3), reference, 4, self_in_den=self_in_den)
    assert loss.tolist() == pytest.approx([expected] * 50, abs=2e-6)


def test_lower_bound() -> None:
    best = math.log(5 * math.exp(1 / 0.3) + 45 * math.exp(-1 / 0.3)) - math.log(
        4 * math.exp(1 / 0.3)
    )
    assert best == pytest.approx(0.234532, abs=5e-7)
    features = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert k_similarity(features, features, 4).min() >= best
    two_heaps = torch.tensor([[1.0, 0.0]] * 5 + [[-1.0, 0.0]] * 45, dtype=torch.float64)
    assert k_similarity(two_heaps, two_heaps, 4)[:5].tolist() == pytest.approx(
        [best] * 5, abs=1e-12
    )


def test_raw_features_would_give_other_values() -> None:
    raw = FEATURES @ FEATURES.T / 0.3
    without_normalising = (
        raw.logsumexp(1) - raw.gather(1, find_nearest_in_batch(REFERENCE, 1))[:, 0]
    )
    expected = [0.290861, 9.186576, 0.009602, 18.692317]
    assert without_normalising.tolist() == pytest.approx(expected, abs=5e-7)
    assert k_similarity(FEATURES, REFERENCE, 1).tolist() != pytest.approx(expected, abs=0.1)


def test_gradient() -> None:
    z = FEATURES.clone().requires_grad_()
    k_similarity(z, REFERENCE, 1).mean().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    expected = [0, -0.200750, -0.111834, 0.307261, 0.261006, -0.150692, -0.112735, 0]
    assert z.grad.flatten().tolist() == pytest.approx(expected, abs=5e-7)
    assert (z.grad * z).sum(1).abs().max() < 1e-12


@pytest.mark.parametrize("self_in_den", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_scaling_rotating_and_permuting_change_nothing(seed: int, self_in_den: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    z, s = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64).unbind(0)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    lengths = torch.rand(12, 1, generator=generator, dtype=torch.float64) + 0.1
    order = torch.randperm(12, generator=generator)
    expected = k_similarity(z, s, self_in_den=self_in_den).mean()
    for changed_z, changed_s in (
        (lengths * z, s),
        (z, lengths * s),
        (z @ rotation, s @ rotation),
        (z[order], s[order]),
    ):
        torch.testing.assert_close(
            k_similarity(changed_z, changed_s, self_in_den=self_in_den).mean(), expected
        )


@pytest.mark.parametrize("self_in_den", [True, False])
def test_a_short_batch_uses_the_neighbours_that_it_has(self_in_den: bool) -> None:
    few = k_similarity(FEATURES, REFERENCE, 50, self_in_den=self_in_den)
    assert torch.equal(few, k_similarity(FEATURES, REFERENCE, 3, self_in_den=self_in_den))


def test_a_single_image_has_no_loss() -> None:
    z = FEATURES[:1].clone().requires_grad_()
    loss = k_similarity(z, REFERENCE[:1])
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == [0.0]
    assert z.grad is not None
    assert z.grad.abs().max() == 0


def test_duplicates_rank_by_index_and_never_include_the_image() -> None:
    found = find_nearest_in_batch(torch.ones(64, 3), 63)
    assert found.tolist() == [
        [other for other in range(64) if other != image] for image in range(64)
    ]


def test_no_gradient_reaches_the_encoder() -> None:
    z, s = FEATURES.clone().requires_grad_(), REFERENCE.clone().requires_grad_()
    k_similarity(z, s).sum().backward()  # type: ignore[no-untyped-call]
    assert s.grad is None


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e18])
def test_extreme_features_are_finite(scale: float) -> None:
    z = (scale * FEATURES.float()).requires_grad_()
    loss = k_similarity(z, scale * REFERENCE.float())
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite().all()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize(
    ("k", "temperature", "rule"), [(0, 0.3, "k of at least 1"), (4, 0.0, "must be positive")]
)
def test_impossible_settings_are_refused(k: int, temperature: float, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"{rule}; got 0"):
        k_similarity(FEATURES, REFERENCE, k, temperature)
