"""Random resized crop (Szegedy et al., Going deeper with convolutions, CVPR 2015), for a whole
batch at once.

Resizing is separable and linear, so that cropping, resizing and flipping image i is `rows_i @
image_i @ columns_i^T` with two small matrices of interpolation weights. The weights are those of
antialiased bilinear interpolation: a triangle as wide as the larger of one input and one output
pixel, cut off at the crop's border."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from pydantic import AfterValidator
from torch import Tensor

from rayfl.component import Count, Fraction, Positive, component
from rayfl.learn.augment.pieces import check_batch, draw_uniform, lay_out_like, toss_coins
from rayfl.learn.roots import square_root

ATTEMPTS = 10
"""Shapes that are drawn before the centred one is taken, as in torchvision."""


def _check_ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    """Refuse a range whose ends are swapped or whose lower end is 0."""
    low, high = bounds
    if not 0 < low <= high:
        raise ValueError(f"a range (low, high) has 0 < low <= high; got {bounds}")
    return bounds


AreaRange = Annotated[tuple[Fraction, Fraction], AfterValidator(_check_ascending)]
AspectRange = Annotated[tuple[Positive, Positive], AfterValidator(_check_ascending)]


class Boxes(NamedTuple):
    """One crop an image, in whole pixels."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


@component
class ResizeCrop:
    """A crop of random area and aspect ratio, resized, then a flip."""

    side: Count | None = None
    """Of the square result; null: the size of the images."""
    scale: AreaRange = (0.08, 1.0)
    """The crop's share of the area."""
    ratio: AspectRange = (3 / 4, 4 / 3)
    """Its width over its height."""
    flip: Fraction = 0.5
    """How likely an image is mirrored."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_batch("resize_crop", x)
        height, width = x.shape[2:]
        boxes = draw_boxes(
            len(x),
            (height, width),
            self.scale,
            self.ratio,
            generator,
        )
        flipped = toss_coins(len(x), generator, self.flip)
        size = (self.side or height, self.side or width)
        return crop_and_resize(
            x,
            boxes,
            size,
            flipped,
        )


def draw_boxes(
    n: int,
    size: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Boxes:
    """The first of ten random shapes that fits, else the largest centred crop with an allowed
    aspect ratio."""
    full_height, full_width = size
    drawn = draw_uniform(ATTEMPTS * n, generator, *scale).view(ATTEMPTS, n)
    area = full_height * full_width * drawn
    logs = draw_uniform(
        ATTEMPTS * n,
        generator,
        math.log(ratio[0]),
        math.log(ratio[1]),
    )
    aspect = logs.view(ATTEMPTS, n).exp()
    width = square_root(area * aspect).round()
    height = square_root(area / aspect).round()
    fits = (width > 0) & (width <= full_width) & (height > 0) & (height <= full_height)
    first = fits.int().argmax(0, keepdim=True)
    height = height.gather(0, first)[0]
    width = width.gather(0, first)[0]
    fitted = fits.gather(0, first)[0]
    top = torch.floor(draw_uniform(n, generator) * (full_height - height + 1))
    left = torch.floor(draw_uniform(n, generator) * (full_width - width + 1))
    pairs = zip(
        Boxes(
            top,
            left,
            height,
            width,
        ),
        _find_central_box(
            n,
            size,
            ratio,
            top,
        ),
        strict=True,
    )
    return Boxes(*(torch.where(fitted, *pair) for pair in pairs))


def _find_central_box(
    n: int,
    size: tuple[int, int],
    ratio: tuple[float, float],
    like: Tensor,
) -> Boxes:
    """The largest centred crop whose aspect ratio lies in `ratio`, `n` times."""
    full_height, full_width = size
    aspect = min(max(full_width / full_height, ratio[0]), ratio[1])
    height = min(full_height, round(full_width / aspect))
    width = min(full_width, round(full_height * aspect))
    top = (full_height - height) // 2
    left = (full_width - width) // 2
    sides = (top, left, height, width)
    return Boxes(*(like.new_full((n,), side) for side in sides))


def crop_and_resize(
    x: Tensor,
    boxes: Boxes,
    size: tuple[int, int],
    flipped: Tensor,
) -> Tensor:
    """The boxes of the images at one size in float32, mirrored where `flipped`."""
    boxes = Boxes(*(side.to(x.device) for side in boxes))
    mirrored = flipped.to(x.device)[:, None, None]
    rows = weigh_pixels(
        boxes.top,
        boxes.height,
        x.shape[2],
        size[0],
    )
    columns = weigh_pixels(
        boxes.left,
        boxes.width,
        x.shape[3],
        size[1],
    )
    columns = torch.where(mirrored, columns.flip(1), columns)
    pixels = x.float().contiguous()
    out = rows[:, None] @ pixels @ columns[:, None].mT
    # rounding may leave the range of the pixels by an ulp
    return lay_out_like(out.clamp_(0, 255), x)


def weigh_pixels(
    start: Tensor,
    length: Tensor,
    side: int,
    size: int,
) -> Tensor:
    """Weights (N, size, side) that resize the pixels [start, start + length) of an axis to `size`
    pixels."""
    stretch = length / size
    steps = torch.arange(size, device=start.device) + 0.5
    centre = start[:, None] + steps * stretch[:, None]
    pixel = torch.arange(side, device=start.device)
    distance = (pixel + 0.5 - centre[:, :, None]).abs_()
    reach = stretch.clamp(min=1)[:, None, None]
    weight = (1 - distance / reach).clamp_(min=0)
    end = start + length
    inside = (pixel >= start[:, None]) & (pixel < end[:, None])
    weight *= inside[:, None]
    return weight.div_(weight.sum(2, keepdim=True))
