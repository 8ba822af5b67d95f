"""Random crop out of a padded image, and random horizontal flip: the usual augmentation for small
images."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.component import Fraction, Natural, component
from rayfl.errors import DataError, broken
from rayfl.learn.augment.pieces import (
    check_batch,
    draw_integers,
    lay_out_like,
    shape_per_image,
    toss_coins,
)

Mode = Literal["zero", "reflect"]


@component
class CropFlip:
    """Crop of the original size at a uniform offset out of the image padded on all sides, then a
    flip.

    padding 0 and flip 0 leave the images as they are.
    """

    padding: Natural = 4
    mode: Mode = "zero"
    flip: Fraction = 0.5

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_batch("crop_flip", x)
        return flip_randomly(
            crop_randomly(x, self.padding, self.mode, generator), self.flip, generator
        )


def crop_randomly(x: Tensor, padding: int, mode: Mode, generator: torch.Generator) -> Tensor:
    """Each image at its own one of the (2 * padding + 1)^2 offsets, all equally likely."""
    if padding == 0 or not len(x):
        return x
    height, width = x.shape[2:]
    top, left = (draw_integers(len(x), generator, 2 * padding + 1).to(x.device) for _ in range(2))
    windows = pad_images(x, padding, mode).unfold(2, height, 1).unfold(3, width, 1)
    return lay_out_like(windows[torch.arange(len(x), device=x.device), :, top, left], x)


def flip_randomly(x: Tensor, heads: float, generator: torch.Generator) -> Tensor:
    """Each image mirrored left to right with probability `heads`."""
    if heads == 0:
        return x
    flipped = shape_per_image(toss_coins(len(x), generator, heads), x)
    return lay_out_like(torch.where(flipped, x.flip(-1), x), x)


def pad_images(x: Tensor, by: int, mode: Mode) -> Tensor:
    """Images with `by` more pixels on each side: black, or the mirror image without the border
    pixel itself."""
    if mode == "zero":
        return F.pad(x, (by,) * 4)
    height, width = x.shape[2:]
    if by >= min(height, width):
        rule = f"reflection pads by less than the side of an image ({height}x{width})"
        raise DataError(broken(rule, by, "Reduce padding, or choose mode: zero."))
    return _mirror_border(_mirror_border(x, by, 2), by, 3)


def _mirror_border(x: Tensor, by: int, axis: int) -> Tensor:
    """`by` more pixels on both ends of an axis; torch's own reflection does not take uint8 on every
    device."""
    side = x.shape[axis]
    before, after = x.narrow(axis, 1, by), x.narrow(axis, side - 1 - by, by)
    return torch.cat((before.flip(axis), x, after.flip(axis)), axis)
