"""Histograms of oriented gradients against worked cases and scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from rayfl.errors import ConfigError
from rayfl.models.encoders.hog import HoG, make_cell_histograms, to_grey
from rayfl.models.network import Shape

RGB: Shape = (32, 32, 3)


def images(seed: int, count: int = 4, shape: Shape = RGB) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize(
    ("spec", "shape", "dim"),
    [
        (HoG(), RGB, 3 * 3 * 4 * 9),
        (HoG(), (32, 32, 1), 324),
        (HoG(hog784=True), RGB, 784),
        (HoG(), (28, 28, 1), 2 * 2 * 4 * 9),
        (HoG(), (16, 40, 3), 1 * 4 * 4 * 9),
        (HoG(orientations=6, cell=4), (8, 8, 1), 4 * 6),
    ],
)
def test_the_length_of_the_features(spec: HoG, shape: Shape, dim: int) -> None:
    encoder = spec.build(shape)
    assert encoder.dim == dim
    assert encoder.encode(images(0, 2, shape)).shape == (2, dim)


@pytest.mark.parametrize(
    ("spec", "orientations", "cell"), [(HoG(), 9, 8), (HoG(hog784=True), 4, 4)]
)
@pytest.mark.parametrize("shape", [RGB, (28, 28, 1), (30, 45, 3)])
def test_it_agrees_with_scikit_image(spec: HoG, orientations: int, cell: int, shape: Shape) -> None:
    feature = pytest.importorskip("skimage.feature")
    color = pytest.importorskip("skimage.color")
    x = images(1, 3, shape)
    flat = [color.rgb2gray(image) if shape[2] == 3 else image[..., 0] / 255 for image in x]
    layout = {"pixels_per_cell": (cell, cell), "cells_per_block": (2, 2), "block_norm": "L2-Hys"}
    theirs = np.stack([feature.hog(image, orientations=orientations, **layout) for image in flat])
    np.testing.assert_allclose(spec.build(shape).encode(x), theirs, atol=1e-6)


@pytest.mark.parametrize("value", [0, 77, 255])
def test_a_constant_image_has_no_gradient(value: int) -> None:
    assert not HoG().build(RGB).encode(np.full((1, *RGB), value, np.uint8)).any()


@pytest.mark.parametrize(
    ("step", "orientation"),
    [((0, 1), 0), ((0, -1), 0), ((1, 0), 4), ((-1, 0), 4), ((1, 1), 2), ((1, -1), 6)],
)
def test_a_ramp_fills_the_bin_of_its_direction(step: tuple[int, int], orientation: int) -> None:
    down, across = np.mgrid[:32, :32]
    ramp = 0.5 + (step[0] * down + step[1] * across) / 128
    histograms = make_cell_histograms(ramp[None], orientations=9, cell=8)[0, 1:-1, 1:-1]
    assert histograms.shape == (2, 2, 9)
    expected = np.zeros(9)
    expected[orientation] = np.hypot(*step) * 2 / 128
    np.testing.assert_allclose(histograms, np.broadcast_to(expected, (2, 2, 9)), atol=1e-12)


def test_the_border_has_no_gradient_across_it() -> None:
    across = np.broadcast_to(np.arange(16) / 16, (1, 16, 16))
    histograms = make_cell_histograms(across, orientations=9, cell=8)
    np.testing.assert_allclose(histograms[0, :, :, 0], 7 / 8 * 2 / 16)


def test_luminance_weighs_the_colours() -> None:
    pure = np.eye(3, dtype=np.uint8).reshape(3, 1, 1, 3) * 255
    np.testing.assert_allclose(to_grey(pure).ravel(), [0.2125, 0.7154, 0.0721])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_block_has_length_one_and_no_negative_number(seed: int) -> None:
    blocks = HoG().build(RGB).encode(images(seed)).reshape(-1, 36)
    assert (blocks >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(blocks, axis=1), 1, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.integers(1, 60))
def test_brightness_contrast_and_inversion_change_nothing(seed: int, shift: int) -> None:
    x = images(seed) // 4
    encoder = HoG().build(RGB)
    features = encoder.encode(x)
    np.testing.assert_allclose(encoder.encode(x + np.uint8(shift)), features, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(x * np.uint8(3)), features, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(255 - x), features, atol=1e-6)


@pytest.mark.parametrize("shape", [(15, 32, 3), (8, 8, 1)])
def test_an_image_smaller_than_a_block_is_refused(shape: Shape) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"2x2 cells of 8x8 pixels; got {shape[0]}x{shape[1]}. Make `cell` smaller",
    ):
        HoG().build(shape)


def test_other_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match="grey or RGB images; got 4 channels"):
        HoG().build((32, 32, 4))
