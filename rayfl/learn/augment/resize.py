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

ATTEMPTS = 10


def _check_ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    """Refuse a range whose ends are swapped or whose lower end is 0."""
    if not 0 < bounds[0] <= bounds[1]:
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
    """A crop of random area and aspect ratio, resized to `side` (None: the size of the images),
    then a flip."""

    side: Count | None = None
    scale: AreaRange = (0.08, 1.0)
    ratio: AspectRange = (3 / 4, 4 / 3)
    flip: Fraction = 0.5

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_batch("resize_crop", x)
        height, width = x.shape[2:]
        boxes = draw_boxes(len(x), (height, width), self.scale, self.ratio, generator)
        flipped = toss_coins(len(x), generator, self.flip)
        return crop_and_resize(x, boxes, (self.side or height, self.side or width), flipped)


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
    area = (
        full_height * full_width * draw_uniform(ATTEMPTS * n, generator, *scale).view(ATTEMPTS, n)
    )
    aspect = (
        draw_uniform(ATTEMPTS * n, generator, math.log(ratio[0]), math.log(ratio[1]))
        .view(ATTEMPTS, n)
        .exp()
    )
    width, height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (width > 0) & (width <= full_width) & (height > 0) & (height <= full_height)
    first = fits.int().argmax(0, keepdim=True)
    height, width, fitted = (drawn.gather(0, first)[0] for drawn in (height, width, fits))
    top = torch.floor(draw_uniform(n, generator) * (full_height - height + 1))
    left = torch.floor(draw_uniform(n, generator) * (full_width - width + 1))
    drawn = Boxes(top, left, height, width)
    return Boxes(
        *(
            torch.where(fitted, *pair)
            for pair in zip(drawn, _find_central_box(n, size, ratio, top), strict=True)
        )
    )


def _find_central_box(
    n: int, size: tuple[int, int], ratio: tuple[float, float], like: Tensor
) -> Boxes:
    """The largest centred crop whose aspect ratio lies in `ratio`, `n` times."""
    full_height, full_width = size
    aspect = min(max(full_width / full_height, ratio[0]), ratio[1])
    height, width = (
        min(full_height, round(full_width / aspect)),
        min(full_width, round(full_height * aspect)),
    )
    corner = ((full_height - height) // 2, (full_width - width) // 2)
    return Boxes(*(like.new_full((n,), side) for side in (*corner, height, width)))


def crop_and_resize(x: Tensor, boxes: Boxes, size: tuple[int, int], flipped: Tensor) -> Tensor:
    """The boxes of the images at one size in float32, mirrored where `flipped`."""
    boxes = Boxes(*(side.to(x.device) for side in boxes))
    flipped = flipped.to(x.device)
    rows = weigh_pixels(boxes.top, boxes.height, x.shape[2], size[0])
    columns = weigh_pixels(boxes.left, boxes.width, x.shape[3], size[1])
    columns = torch.where(flipped[:, None, None], columns.flip(1), columns)
    out = rows[:, None] @ x.float().contiguous() @ columns[:, None].mT
    # rounding may leave the range of the pixels by an ulp
    return lay_out_like(out.clamp_(0, 255), x)


def weigh_pixels(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """Weights (N, size, side) that resize the pixels [start, start + length) of an axis to `size`
    pixels."""
    stretch = length / size
    steps = torch.arange(size, device=start.device) + 0.5
    centre = start[:, None] + steps * stretch[:, None]
    pixel = torch.arange(side, device=start.device)
    distance = (pixel + 0.5 - centre[:, :, None]).abs_()
    weight = (1 - distance / stretch.clamp(min=1)[:, None, None]).clamp_(min=0)
    weight *= ((pixel >= start[:, None]) & (pixel < (start + length)[:, None]))[:, None]
    return weight.div_(weight.sum(2, keepdim=True))
