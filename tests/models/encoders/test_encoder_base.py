"""What holds for every encoder: a row's features depend on its pixels and on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rayfl.errors import ConfigError, DataError
from rayfl.models import ENCODERS, MODELS
from rayfl.models.encoders.base import ROWS, Sight, TorchEncoder, UntrainableNetwork, hash_encoder
from rayfl.models.network import build_network

SPECS: list[dict[str, Any]] = [
    {"name": "pixels"},
    {"name": "hog"},
    {"name": "hog", "hog784": True},
    {"name": "random"},
    {"name": "random", "side": 40},
]


def images(
    count: int, shape: tuple[int, int, int] = (32, 32, 3), seed: int = 0
) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def small_encoder(
    shape: tuple[int, int, int] = (16, 16, 3), sight: Sight | None = None
) -> TorchEncoder:
    network = build_network(
        MODELS.build({"name": "cnn4", "widths": [8, 8], "track_running_stats": True}),
        (16, 16, 3),
        2,
        0,
    )
    return TorchEncoder("small", network.trunk, shape, sight or Sight())


@pytest.mark.parametrize("spec", SPECS)
def test_a_row_alone_in_company_or_elsewhere_has_the_same_bits(spec: dict[str, Any]) -> None:
    x = images(ROWS + 5)
    encoder = ENCODERS.build(spec).build((32, 32, 3))
    together = encoder.encode(x)
    assert together.dtype == np.float32
    assert together.shape == (len(x), encoder.dim)
    order = np.random.default_rng(1).permutation(len(x))
    assert np.array_equal(encoder.encode(x[order]), together[order])
    for row in (0, ROWS - 1, ROWS, ROWS + 4):
        assert np.array_equal(encoder.encode(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("spec", SPECS)
def test_no_images_give_no_rows(spec: dict[str, Any]) -> None:
    encoder = ENCODERS.build(spec).build((32, 32, 3))
    assert encoder.encode(images(0)).shape == (0, encoder.dim)


@pytest.mark.parametrize("spec", SPECS)
def test_different_images_have_different_features(spec: dict[str, Any]) -> None:
    first, second = ENCODERS.build(spec).build((32, 32, 3)).encode(images(2))
    assert not np.allclose(first, second)


@pytest.mark.parametrize("name", ["pixels", "hog", "random"])
@pytest.mark.parametrize(
    "wrong", [images(2, (31, 32, 3)), images(2, (32, 32, 1)), images(2)[0], images(2) / 255]
)
def test_images_of_another_shape_or_type_are_refused(name: str, wrong: NDArray[Any]) -> None:
    with pytest.raises(DataError, match=r"takes uint8 images \(N, 32, 32, 3\); got"):
        ENCODERS.build(name).build((32, 32, 3)).encode(wrong)


def test_fingerprints_of_different_encoders_differ() -> None:
    specs = [*SPECS, {"name": "hog", "cell": 4}, {"name": "random", "seed": 1}]
    prints = [ENCODERS.build(spec).build((32, 32, 3)).fingerprint() for spec in specs]
    assert len(set(prints)) == len(prints)
    assert prints == [ENCODERS.build(spec).build((32, 32, 3)).fingerprint() for spec in specs]


def test_a_fingerprint_sees_every_tensor_and_setting() -> None:
    weights = {"a": torch.zeros(2), "b": torch.zeros(2)}
    changed = {"a": torch.zeros(2), "b": torch.tensor([0.0, 1e-30])}
    renamed = {"a": torch.zeros(2), "c": torch.zeros(2)}
    prints = {hash_encoder("k", {"side": 1}, w) for w in (weights, changed, renamed)}
    prints |= {hash_encoder("k", {"side": 2}, weights), hash_encoder("l", {"side": 1}, weights)}
    assert len(prints) == 5


def test_a_frozen_network_cannot_be_trained() -> None:
    module = UntrainableNetwork(nn.Sequential(nn.BatchNorm2d(3), nn.Dropout()))
    module.train()
    assert not any(part.training for part in module.modules())
    assert not any(p.requires_grad for p in module.parameters())


def test_encoding_changes_neither_weights_nor_the_global_generator() -> None:
    encoder = small_encoder()
    before, state = encoder.module.state_dict(), torch.random.get_rng_state()
    kept = {name: value.clone() for name, value in before.items()}
    encoder.encode(images(3, (16, 16, 3)))
    encoder.encode_tensor(
        torch.rand(3, 3, 16, 16, requires_grad=True, generator=torch.Generator().manual_seed(0))
    )
    assert all(
        torch.equal(value, kept[name]) for name, value in encoder.module.state_dict().items()
    )
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_tensor_is_encoded_as_it_comes_and_without_gradient() -> None:
    encoder = small_encoder()
    x = torch.rand(ROWS, 3, 16, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    features = encoder.encode_tensor(x)
    assert not features.requires_grad
    assert torch.equal(features, encoder.module(x.detach()))


def test_pixels_and_their_normalised_tensor_have_the_same_features() -> None:
    encoder, x = small_encoder(), images(ROWS, (16, 16, 3))
    mean, std = np.array(encoder.sight.mean, np.float32), np.array(encoder.sight.std, np.float32)
    tensor = torch.from_numpy(
        ((x.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2).copy()
    )
    np.testing.assert_allclose(encoder.encode(x), encoder.encode_tensor(tensor).numpy(), atol=1e-5)


def test_grey_images_are_seen_as_rgb() -> None:
    grey = images(4, (16, 16, 1))
    seen = small_encoder((16, 16, 1)).encode(grey)
    assert np.array_equal(seen, small_encoder().encode(np.repeat(grey, 3, axis=3)))


def test_resizing_keeps_a_constant_image_constant() -> None:
    sight = Sight(side=16)
    assert torch.allclose(
        sight.resized(torch.full((1, 3, 9, 20), 0.25)), torch.full((1, 3, 16, 16), 0.25)
    )


def test_shrinking_averages_instead_of_dropping_pixels() -> None:
    stripes = torch.zeros(1, 3, 8, 64)
    stripes[..., ::2] = 1
    assert torch.allclose(Sight(side=8).resized(stripes)[..., 1:-1], torch.tensor(0.5), atol=0.02)


@pytest.mark.parametrize("channels", [2, 4])
def test_images_that_are_neither_grey_nor_rgb_are_refused(channels: int) -> None:
    with pytest.raises(ConfigError, match=f"1 or 3 channels; got {channels}"):
        small_encoder((16, 16, channels))


def test_normalisation_by_the_batch_is_refused() -> None:
    network = build_network(MODELS.build("cnn4"), (32, 32, 3), 2, 0)
    with pytest.raises(ConfigError, match="running statistics; got 'cnn4', which keeps none"):
        TorchEncoder("cnn4", network.trunk, (32, 32, 3), Sight())


def test_features_that_are_not_finite_are_refused() -> None:
    encoder = small_encoder()
    next(encoder.module.parameters()).data.fill_(float("nan"))
    with pytest.raises(DataError, match="features must be finite; got nan or inf from 'small'"):
        encoder.encode(images(1, (16, 16, 3)))


def test_pixels_are_scaled_to_one() -> None:
    x = np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3)
    assert np.array_equal(
        ENCODERS.build("pixels").build((1, 1, 3)).encode(x), np.array([[0, 0.2, 1]], np.float32)
    )


@pytest.mark.parametrize(
    "name", ["augnet", "efficientnet_lite0", "hog", "imagenet_resnet18", "pixels", "random"]
)
def test_a_description_builds_the_same_component(name: str) -> None:
    built = ENCODERS.build(name)
    assert ENCODERS.build(ENCODERS.describe(built)) == built
    assert ENCODERS.describe(built)["name"] == name


@pytest.mark.parametrize("name", ["dino_vits16", "simclr", "state_dict"])
def test_an_encoder_from_a_file_asks_for_its_path(name: str) -> None:
    with pytest.raises(ValueError, match="path"):
        ENCODERS.build(name)
