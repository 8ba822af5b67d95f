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
    """Pixels on each side."""
    mode: Mode = "zero"
    """What they are: black, or the mirror image."""
    flip: Fraction = 0.5
    """How likely an image is mirrored."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_batch("crop_flip", x)
        cropped = crop_randomly(
            x,
            self.padding,
            self.mode,
            generator,
        )
        return flip_randomly(cropped, self.flip, generator)


def crop_randomly(
    x: Tensor,
    padding: int,
    mode: Mode,
    generator: torch.Generator,
) -> Tensor:
    """Each image at its own one of the (2 * padding + 1)^2 offsets, all equally likely."""
    if padding == 0 or not len(x):
        return x
    height, width = x.shape[2:]
    offsets = 2 * padding + 1
    top = draw_integers(len(x), generator, offsets).to(x.device)
    left = draw_integers(len(x), generator, offsets).to(x.device)
    # Views of every window at once: only the chosen ones are copied.
    padded = pad_images(x, padding, mode)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    images = torch.arange(len(x), device=x.device)
    return lay_out_like(windows[images, :, top, left], x)


def flip_randomly(x: Tensor, heads: float, generator: torch.Generator) -> Tensor:
    """Each image mirrored left to right with probability `heads`."""
    if heads == 0:
        return x
    coins = toss_coins(len(x), generator, heads)
    flipped = shape_per_image(coins, x)
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
    rows = _mirror_border(x, by, 2)
    return _mirror_border(rows, by, 3)


def _mirror_border(x: Tensor, by: int, axis: int) -> Tensor:
    """`by` more pixels on both ends of an axis; torch's own reflection does not take uint8 on every
    device."""
    side = x.shape[axis]
    before = x.narrow(axis, 1, by).flip(axis)
    after = x.narrow(axis, side - 1 - by, by).flip(axis)
    return torch.cat((before, x, after), axis)
