"""Random resized crops: the resampling and the distribution of boxes are torchvision's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rayfl.learn.augment.resize import (
    Boxes,
    ResizeCrop,
    _find_central_box,
    crop_and_resize,
    draw_boxes,
    weigh_pixels,
)

RATIO = (3 / 4, 4 / 3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, height: int = 32, width: int = 32) -> Tensor:
    return torch.randint(256, (n, 3, height, width), generator=seeded(9), dtype=torch.uint8)


def boxes(*corners: tuple[int, int, int, int]) -> Boxes:
    return Boxes(*torch.tensor(corners, dtype=torch.float32).unbind(1))


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ((0, 0, 32, 32), (32, 32)),
        ((3, 7, 20, 11), (32, 32)),
        ((31, 31, 1, 1), (32, 32)),
        ((5, 0, 27, 32), (16, 8)),
        ((0, 0, 32, 32), (9, 50)),
    ],
)
@pytest.mark.parametrize("flip", [False, True])
def test_resampling_is_torchvisions(
    box: tuple[int, int, int, int], size: tuple[int, int], flip: bool
) -> None:
    from torchvision.transforms import functional

    x = noise(1)
    expected = functional.resized_crop(x.float(), *box, list(size), antialias=True)
    expected = functional.hflip(expected) if flip else expected
    out = crop_and_resize(x, boxes(box), size, torch.tensor([flip]))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-3)


def test_a_batch_resamples_each_image_by_its_own_box() -> None:
    x, flips = noise(3), torch.tensor([True, False, True])
    corners = [(0, 0, 10, 12), (5, 5, 20, 27), (31, 0, 1, 32)]
    together = crop_and_resize(x, boxes(*corners), (32, 32), flips)
    for i, corner in enumerate(corners):
        torch.testing.assert_close(
            together[i : i + 1],
            crop_and_resize(x[i : i + 1], boxes(corner), (32, 32), flips[i : i + 1]),
        )


@pytest.mark.parametrize(("side", "size"), [(32, 32), (40, 32), (33, 7), (8, 30)])
def test_weights_are_means_over_the_crop(side: int, size: int) -> None:
    start, length = torch.tensor([0.0, 3.0]), torch.tensor([float(side), 4.0])
    weight = weigh_pixels(start, length, side, size)
    torch.testing.assert_close(weight.sum(2), torch.ones(2, size))
    assert weight.min() >= 0
    assert weight[1, :, :3].abs().max() == 0
    assert weight[1, :, 7:].abs().sum() == 0


@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.08, 1.0), (0.5, 0.5)])
@pytest.mark.parametrize("size", [(32, 32), (20, 48)])
def test_boxes_lie_inside(scale: tuple[float, float], size: tuple[int, int]) -> None:
    top, left, height, width = draw_boxes(3000, size, scale, RATIO, seeded())
    assert top.min() >= 0
    assert left.min() >= 0
    assert height.min() >= 1
    assert width.min() >= 1
    assert (top + height).max() <= size[0]
    assert (left + width).max() <= size[1]
    assert all(torch.equal(side, side.round()) for side in (top, left, height, width))


def moments(corners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sides, their squares and the areas of boxes (top, left, height, width)."""
    return corners, corners**2, corners[:, 2:3] * corners[:, 3:4]


@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.08, 1.0)])
def test_boxes_are_distributed_like_torchvisions(scale: tuple[float, float]) -> None:
    from torchvision.transforms import RandomResizedCrop

    n, x = 4000, noise(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torch.tensor(
            [RandomResizedCrop.get_params(x, list(scale), list(RATIO)) for _ in range(n)]
        ).double()
    ours = torch.stack(draw_boxes(n, (32, 32), scale, RATIO, seeded()), 1).double()
    for mine, wanted in zip(moments(ours), moments(theirs), strict=True):
        difference = mine.mean(0) - wanted.mean(0)
        error = (mine.var(0) / n + wanted.var(0) / n).sqrt()
        assert (difference.abs() < 4 * error).all()


@pytest.mark.parametrize("size", [(4, 100), (100, 4), (30, 32), (7, 7)])
def test_shapes_that_never_fit_fall_back_to_the_centre(size: tuple[int, int]) -> None:
    from torchvision.transforms import RandomResizedCrop

    # an area four times the image never fits
    drawn = draw_boxes(3, size, (4.0, 4.0), RATIO, seeded())
    expected = RandomResizedCrop.get_params(noise(1, *size), [4.0, 4.0], list(RATIO))
    assert torch.stack(drawn, 1).tolist() == [list(map(float, expected))] * 3
    assert torch.equal(
        torch.stack(drawn), torch.stack(_find_central_box(3, size, RATIO, drawn.top))
    )


@pytest.mark.parametrize(("side", "expected"), [(None, (33, 40)), (32, (32, 32)), (64, (64, 64))])
def test_side(side: int | None, expected: tuple[int, int]) -> None:
    out = ResizeCrop(side=side)(noise(5, 33, 40), seeded())
    assert out.shape == (5, 3, *expected)
    assert out.dtype == torch.float32
