"""What a place keeps, and how pixels become input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.learn.learner import Learner, Passes, affine, draw_seed
from rayfl.learn.training import LocalTraining, Normalisation
from tests.learn.toys import conv_net, dropout_net, learner, linear_net

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 2), dtype=np.uint8)


def test_residents_are_made_once_a_name() -> None:
    place = learner()
    assert place.resident() is place.resident()
    assert place.resident(name="peer") is not place.resident()
    ones, zeros = np.ones(387, np.float32), np.zeros(387, np.float32)
    place.resident(ones)
    place.resident(zeros, "peer")
    assert np.array_equal(place.resident().dump(), ones)
    assert np.array_equal(place.resident(name="peer").dump(), zeros)


def test_kept_things_are_made_once() -> None:
    place, made = learner(), []
    for _ in range(2):
        assert place.keep("encoder", lambda: made.append(1) or "it") == "it"  # type: ignore[func-returns-value]
    assert made == [1]


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.0,), (1.0,)), ((0.5,), (0.25,)), ((0.1, 0.9), (0.5, 2.0))],
    ids=["none", "one", "a channel"],
)
def test_pixels_are_scaled_to_one_then_normalised(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    place = Learner(linear_net, LocalTraining(), Normalisation(mean=mean, std=std))
    found = place.normalise(place.pixels(IMAGES)).numpy()
    expected = (IMAGES / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(found, expected.transpose(0, 3, 1, 2), atol=1e-6)


def test_one_image_alone_is_normalised_to_the_same_bits() -> None:
    place = Learner(linear_net, LocalTraining(), Normalisation(mean=(0.3, 0.7), std=(0.2, 0.3)))
    whole = place.normalise(place.pixels(IMAGES))
    assert torch.equal(place.normalise(place.pixels(IMAGES[2:3])), whole[2:3])


@pytest.mark.parametrize("writeable", [True, False])
def test_pixels_keep_their_bytes_channels_last(writeable: bool) -> None:
    x = IMAGES.copy()
    x.flags.writeable = writeable
    pixels = learner().pixels(x)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (4, 2, 8, 8)
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), x)


def test_scale_and_shift() -> None:
    scale, shift = affine(Normalisation(mean=(0.5,), std=(0.25,)), torch.device("cpu"))
    assert scale.item() == pytest.approx(1 / 63.75)
    assert shift.item() == -2.0


def test_torchs_draws_are_bound_to_the_stream() -> None:
    place, draws = learner(), []
    for seed in (1, 1, 2):
        place.seed(np.random.default_rng(seed))
        draws.append(torch.rand(2).tolist())
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(("build", "smallest"), [(linear_net, 1), (dropout_net, 1), (conv_net, 1)])
def test_most_networks_can_train_on_one_sample(
    build: Callable[[], nn.Module], smallest: int
) -> None:
    place = learner(build)
    place.probe(IMAGES)
    assert place.smallest_batch == smallest


def test_batch_statistics_of_one_value_need_two_samples() -> None:
    place = learner(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(128), nn.Linear(128, 3)))
    place.probe(IMAGES)
    assert place.smallest_batch == 2


def test_the_smallest_batch_is_not_guessed() -> None:
    with pytest.raises(RuntimeError, match="smallest_batch is known after `probe`"):
        _ = learner().smallest_batch


def test_probing_uses_up_no_draws() -> None:
    """Whoever visits a place first must draw what it would draw later."""
    place = learner(dropout_net)
    place.seed(np.random.default_rng(5))
    before = torch.random.get_rng_state()
    place.probe(IMAGES)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_passes_are_taken_once() -> None:
    passes = Passes(3, 4)
    assert passes.take() == (3, 4)
    assert passes.take() == (0, 0)


def test_a_fresh_seed_is_the_draw_below_a_power_of_two() -> None:
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    assert [draw_seed(one) for _ in range(2000)] == [
        int(other.integers(1 << 62)) for _ in range(2000)
    ]
    assert one.random() == other.random()
