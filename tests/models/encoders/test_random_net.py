"""The untrained ResNet-50: one fixed map for each seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rayfl.models.encoders.base import TorchEncoder
from rayfl.models.encoders.random_net import RandomResNet50

SHAPE = (32, 32, 3)


@pytest.fixture(scope="module")
def encoder() -> TorchEncoder:
    return RandomResNet50(seed=7).build(SHAPE)


@pytest.fixture(scope="module")
def x() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (6, *SHAPE), dtype=np.uint8)


def test_its_features_are_2048_finite_numbers_that_are_not_negative(
    encoder: TorchEncoder, x: NDArray[np.uint8]
) -> None:
    features = encoder.encode(x)
    assert features.shape == (6, 2048)
    assert np.isfinite(features).all()
    assert (features >= 0).all()
    assert (np.linalg.norm(features, axis=1) > 0).all()


def test_a_seed_gives_the_same_map_and_another_seed_another(
    encoder: TorchEncoder, x: NDArray[np.uint8]
) -> None:
    again, other = (RandomResNet50(seed=seed).build(SHAPE) for seed in (7, 8))
    assert again.fingerprint() == encoder.fingerprint() != other.fingerprint()
    assert np.array_equal(again.encode(x), encoder.encode(x))
    assert not np.allclose(other.encode(x), encoder.encode(x))


def test_neighbours_in_a_batch_do_not_depend_on_earlier_batches(encoder: TorchEncoder) -> None:
    generator = torch.Generator().manual_seed(0)
    batch, other = (torch.randn(6, 3, 32, 32, generator=generator) for _ in range(2))
    first = encoder.encode_tensor(batch)
    encoder.encode_tensor(other)
    assert torch.equal(encoder.encode_tensor(batch), first)


def test_its_normalisation_is_the_identity(encoder: TorchEncoder) -> None:
    norms = [part for part in encoder.module.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(norms) == 53
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert not norm.running_mean.any()
        assert (norm.running_var == 1).all()
        assert (norm.weight == 1).all()


def test_its_convolutions_are_he_normal_over_the_fan_out(encoder: TorchEncoder) -> None:
    large = [
        p.weight
        for p in encoder.module.modules()
        if isinstance(p, nn.Conv2d) and p.weight.numel() > 200_000
    ]
    assert len(large) > 20
    for weight in large:
        expected = (2 / (weight.shape[0] * weight.shape[2] * weight.shape[3])) ** 0.5
        assert float(weight.std()) == pytest.approx(expected, rel=0.02)
