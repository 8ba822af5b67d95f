"""What holds for every augmentation, and the grouping of images by a drawn operation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rayfl.errors import DataError
from rayfl.learn.augment import AUGMENTATIONS
from rayfl.learn.augment.pieces import apply_by_choice_, draw_integers, draw_uniform, toss_coins

MOVES_PIXELS: list[dict[str, Any]] = [
    {"name": "none"},
    {"name": "crop_flip"},
    {"name": "crop_flip", "mode": "reflect"},
    {"name": "weak"},
]
CHANGES_VALUES: list[dict[str, Any]] = [
    {"name": "weak", "ctrr": True},
    {"name": "resize_crop"},
    {"name": "contrastive"},
    {"name": "strong"},
    {"name": "strong", "n": 5, "m": 30, "least": 0},
]
RANDOM = [*MOVES_PIXELS[1:], *CHANGES_VALUES]
EVERY = [*MOVES_PIXELS, *CHANGES_VALUES]
IDENTITIES: list[dict[str, Any]] = [
    {"name": "none"},
    {"name": "crop_flip", "padding": 0, "flip": 0},
    {"name": "weak", "padding": 0, "flip": 0},
    {"name": "strong", "n": 0, "cutout": 0, "padding": 0, "flip": 0},
    {"name": "resize_crop", "scale": (1, 1), "ratio": (1, 1), "flip": 0},
    {
        "name": "contrastive",
        "scale": (1, 1),
        "ratio": (1, 1),
        "flip": 0,
        "jitter": 0,
        "greyscale": 0,
    },
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(
    n: int = 24, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0
) -> Tensor:
    """Smooth coloured images with the whole range of values, uint8."""
    coarse = torch.rand(n, channels, 5, 5, generator=seeded(seed))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return (255 * fine.clamp(0, 1)).to(torch.uint8)


def test_the_registry_names_what_it_builds() -> None:
    assert {spec["name"] for spec in EVERY} == set(AUGMENTATIONS.names())


@pytest.mark.parametrize("spec", EVERY, ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_shape_type_range_and_layout(spec: dict[str, Any], dtype: torch.dtype) -> None:
    x = photos().to(dtype)
    for layout in (torch.contiguous_format, torch.channels_last):
        before = x.contiguous(memory_format=layout)
        after = AUGMENTATIONS.build(spec)(before, seeded())
        assert after.shape == x.shape
        assert after.dtype == (dtype if spec in MOVES_PIXELS else torch.float32)
        assert after.is_contiguous(memory_format=layout)
        assert 0 <= after.min() <= after.max() <= 255
        assert torch.equal(before, x)


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_layout_does_not_change_values(spec: dict[str, Any]) -> None:
    plain = AUGMENTATIONS.build(spec)(photos(), seeded())
    last = AUGMENTATIONS.build(spec)(
        photos().contiguous(memory_format=torch.channels_last), seeded()
    )
    torch.testing.assert_close(plain, last, rtol=0, atol=1e-3)


@pytest.mark.parametrize("spec", RANDOM, ids=str)
def test_equal_generators_give_equal_bits_and_other_seeds_other_images(
    spec: dict[str, Any],
) -> None:
    augment = AUGMENTATIONS.build(spec)
    torch.manual_seed(1)
    first = augment(photos(), seeded(7))
    torch.manual_seed(2)
    assert torch.equal(augment(photos(), seeded(7)), first)
    assert not torch.equal(augment(photos(), seeded(8)), first)


@pytest.mark.parametrize("spec", RANDOM, ids=str)
def test_two_calls_are_two_views_and_leave_the_global_generator_alone(spec: dict[str, Any]) -> None:
    augment, generator = AUGMENTATIONS.build(spec), seeded()
    state = torch.get_rng_state()
    assert not torch.equal(augment(photos(), generator), augment(photos(), generator))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("spec", RANDOM, ids=str)
def test_each_image_draws_for_itself(spec: dict[str, Any]) -> None:
    same = photos(1).expand(32, -1, -1, -1)
    views = AUGMENTATIONS.build(spec)(same, seeded())
    assert len(torch.unique(views, dim=0)) > 16


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_an_image_does_not_see_the_others(spec: dict[str, Any]) -> None:
    x, other = photos(seed=1), photos(seed=2)
    other[5] = x[5]
    augment = AUGMENTATIONS.build(spec)
    assert torch.equal(augment(x, seeded())[5], augment(other, seeded())[5])


@pytest.mark.parametrize("spec", IDENTITIES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_neutral_settings_leave_every_bit(spec: dict[str, Any], channels: int) -> None:
    x = photos(channels=channels, height=28, width=28)
    assert torch.equal(AUGMENTATIONS.build(spec)(x, seeded()).to(torch.uint8), x)


@pytest.mark.parametrize("spec", EVERY, ids=str)
@pytest.mark.parametrize(
    "shape", [(0, 3, 32, 32), (1, 3, 32, 32), (3, 1, 28, 28), (4, 3, 20, 48), (2, 3, 8, 8)]
)
def test_other_batches_and_shapes(spec: dict[str, Any], shape: tuple[int, int, int, int]) -> None:
    n, channels, height, width = shape
    x = photos(max(n, 1), channels, height, width)[:n]
    after = AUGMENTATIONS.build(spec)(x, seeded())
    assert after.shape == x.shape
    assert after.float().isfinite().all()


@pytest.mark.parametrize("spec", RANDOM, ids=str)
def test_a_single_image_without_batch_axis_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(
        DataError, match=r"takes a batch of images \(N, C, H, W\); got shape \(3, 32, 32\)"
    ):
        AUGMENTATIONS.build(spec)(photos(1)[0], seeded())


@pytest.mark.parametrize("name", ["contrastive", "strong"])
def test_colours_need_grey_or_rgb(name: str) -> None:
    with pytest.raises(
        DataError, match=r"images of 1 or 3 channels; got 2\. Choose an augmentation"
    ):
        AUGMENTATIONS.build(name)(photos(channels=2), seeded())


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        ({"name": "crop_flip", "padding": -1}, "padding"),
        ({"name": "crop_flip", "mode": "wrap"}, "mode"),
        ({"name": "weak", "flip": 1.5}, "flip"),
        ({"name": "strong", "m": 31}, "m"),
        ({"name": "resize_crop", "scale": (0.9, 0.2)}, "0 < low <= high"),
        ({"name": "contrastive", "ratio": (0, 1)}, "ratio"),
        ({"name": "contrastive", "blur": 0.5}, "blur"),
    ],
)
def test_impossible_settings_are_refused(spec: dict[str, Any], setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        AUGMENTATIONS.build(spec)


@pytest.mark.parametrize(("heads", "share"), [(0.0, 0.0), (0.3, 0.3), (1.0, 1.0)])
def test_coins(heads: float, share: float) -> None:
    tolerance = 4 * (share * (1 - share) / 20_000) ** 0.5
    assert toss_coins(20_000, seeded(), heads).double().mean().item() == pytest.approx(
        share, abs=tolerance
    )


def test_uniform_and_integers_cover_their_range() -> None:
    draws = draw_uniform(20_000, seeded(), -2.0, 6.0)
    assert -2 <= draws.min() <= draws.max() < 6
    assert draws.mean().item() == pytest.approx(2, abs=4 * 8 / (12 * 20_000) ** 0.5)
    counts = torch.bincount(draw_integers(20_000, seeded(), 5))
    assert counts.tolist() == pytest.approx([4000] * 5, abs=4 * (20_000 * 0.2 * 0.8) ** 0.5)


def test_apply_by_choice_keeps_images_and_amounts_together() -> None:
    x = torch.arange(7.0).view(7, 1, 1, 1)
    amounts = [torch.arange(7.0), 10 * torch.arange(7.0), torch.zeros(7)]

    def add(images: Tensor, amount: Tensor) -> Tensor:
        return images + amount.view(-1, 1, 1, 1)

    def refuse(images: Tensor, amount: Tensor) -> Tensor:
        raise AssertionError("no image chose this")

    apply_by_choice_(x, torch.tensor([1, 0, 1, 0, 0, 1, -1]), amounts, [add, add, refuse])
    assert x.flatten().tolist() == [0, 2, 22, 6, 8, 55, 6]
