"""The strong view of FixMatch (Sohn et al., NeurIPS 2020): crop, flip, RandAugment (Cubuk et al.,
2020) and Cutout.

RandAugment's fourteen operations and their ranges are torchvision's, and so are the results on
uint8 images, bit for bit where nothing is interpolated. Differences from torchvision's
`RandAugment(n, m)`:

1. Every image draws its own operations (torchvision draws once for a whole batch tensor).
2. `least` below `m` lets each image draw its magnitude from {least, ..., m}.
3. A rotated or sheared pixel is the source pixel under its centre; where that centre lies on the
   edge between two pixels the choice may differ from `grid_sample`'s.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rayfl.component import Fraction, Natural, component
from rayfl.errors import ConfigError, DataError, broken
from rayfl.learn.augment import colour
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.augment.pieces import (
    Operation,
    apply_by_choice_,
    check_colours,
    draw_integers,
    lay_out_like,
    toss_coins,
)

TOP = 30
MID_GREY = 127

Magnitude = Annotated[int, Field(ge=0, le=TOP)]


@component
class Strong:
    """Weak crop and flip, `n` random operations at magnitude `m` of 30, one grey square.

    n 0, cutout 0, padding 0 and flip 0 leave the images as they are.
    """

    n: Natural = 2
    """Operations an image goes through, one after the other."""
    m: Magnitude = 10
    """Their magnitude, of 30."""
    least: Magnitude | None = None
    """The smallest magnitude, where each image draws its own up to `m`."""
    cutout: Natural | None = None
    """Side of the square in pixels, less than the image's; null: half of the shorter side, which is
    the usual 16 of 32."""
    padding: Natural = 4
    flip: Fraction = 0.5

    def __post_init__(self) -> None:
        if self.least is not None and self.least > self.m:
            raise ConfigError(
                broken(f"strong.least must not exceed strong.m ({self.m})", self.least)
            )

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_colours("strong", x)
        # equalising and posterising are defined on 256 levels; by way of float it is a copy, free
        # to be written to
        out = x.float().round().to(torch.uint8).contiguous()
        weak = CropFlip(padding=self.padding, mode="reflect", flip=self.flip)
        out = weak(out, generator)
        least = self.m if self.least is None else self.least
        for _ in range(self.n):
            apply_random_operation_(
                out,
                least,
                self.m,
                generator,
            )
        side = self._cutout_of(min(x.shape[2:]))
        cut = cut_out_squares(out, side, generator)
        return lay_out_like(cut.float(), x)

    def _cutout_of(self, shortest: int) -> int:
        """The side of the square for images whose shorter side this is."""
        if self.cutout is None:
            return shortest // 2
        # Around most centres a larger square would leave nothing of the image to learn from.
        if self.cutout >= shortest:
            rule = f"strong.cutout is less than the shorter side of the images ({shortest})"
            remedy = "Lower it, or set null for half of the side."
            raise DataError(broken(rule, self.cutout, remedy))
        return self.cutout


def apply_random_operation_(
    x: Tensor,
    least: int,
    most: int,
    generator: torch.Generator,
) -> None:
    """Apply one of the operations to each image, at a magnitude in {least, ..., most} and with a
    random sign."""
    choice = draw_integers(len(x), generator, len(OPERATIONS))
    above = draw_integers(len(x), generator, most - least + 1)
    strength = (least + above) / TOP
    positive = toss_coins(len(x), generator, 0.5)
    signed = torch.where(positive, strength, -strength)
    amounts = [signed if name in SIGNED else strength for name in OPERATIONS]
    apply_by_choice_(
        x,
        choice,
        amounts,
        tuple(OPERATIONS.values()),
    )


def cut_out_squares(x: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """A mid-grey square around a uniform pixel of each image, cut off at the border (DeVries and
    Taylor, 2017)."""
    if side == 0:
        return x
    height, width = x.shape[2:]
    down = _draw_stretch(
        len(x),
        height,
        side,
        generator,
    ).to(x.device)
    across = _draw_stretch(
        len(x),
        width,
        side,
        generator,
    ).to(x.device)
    square = down[:, :, None] & across[:, None, :]
    return x.masked_fill(square[:, None], MID_GREY)


def _draw_stretch(
    n: int,
    length: int,
    side: int,
    generator: torch.Generator,
) -> Tensor:
    """Which of `length` positions lie within a stretch of `side` around a uniform one, (n,
    length)."""
    centre = draw_integers(n, generator, length)[:, None]
    position = torch.arange(length, device=generator.device)
    offset = position - centre + side // 2
    return (offset >= 0) & (offset < side)


def _warp_images(x: Tensor, matrix: Tensor) -> Tensor:
    """Look up each pixel at `matrix` (N, 2, 3) times its centre (x, y, 1), measured from the
    image's; black outside."""
    height, width = x.shape[2:]
    rows = torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    down = rows[:, None] - (height - 1) / 2
    across = columns - (width - 1) / 2
    a, b, shift = matrix[..., None, None].unbind(2)
    source = a * across + b * down + shift
    column = torch.floor(source[:, 0] + width / 2).long()
    row = torch.floor(source[:, 1] + height / 2).long()
    outside = (column < 0) | (column >= width) | (row < 0) | (row >= height)
    place = (row * width + column).masked_fill_(outside, 0)
    index = place.view(len(x), 1, -1).expand(-1, x.shape[1], -1)
    moved = x.flatten(2).gather(2, index).view(x.shape)
    return moved.masked_fill_(outside[:, None], 0)


def _stack_matrices(rows: list[list[Tensor | float]], like: Tensor) -> Tensor:
    """The matrices (N, 2, 3) with these entries, each a number or one number an image."""
    zeros = like.new_zeros(len(like))
    filled = [torch.stack([zeros + entry for entry in row], dim=1) for row in rows]
    return torch.stack(filled, dim=1)


def shear_x(x: Tensor, strength: Tensor) -> Tensor:
    """Slide each row by up to 0.3 of its distance from the top."""
    slope = 0.3 * strength
    return _warp_images(
        x, _stack_matrices([[1.0, slope, slope * x.shape[2] / 2], [0.0, 1.0, 0.0]], strength)
    )


def shear_y(x: Tensor, strength: Tensor) -> Tensor:
    """Slide each column by up to 0.3 of its distance from the left."""
    slope = 0.3 * strength
    return _warp_images(
        x, _stack_matrices([[1.0, 0.0, 0.0], [slope, 1.0, slope * x.shape[3] / 2]], strength)
    )


def translate_x(x: Tensor, strength: Tensor) -> Tensor:
    """Move right by whole pixels, up to 150/331 of the width."""
    shift = torch.trunc(150 / 331 * x.shape[3] * strength)
    return _warp_images(x, _stack_matrices([[1.0, 0.0, -shift], [0.0, 1.0, 0.0]], strength))


def translate_y(x: Tensor, strength: Tensor) -> Tensor:
    """Move down by whole pixels, up to 150/331 of the height."""
    shift = torch.trunc(150 / 331 * x.shape[2] * strength)
    return _warp_images(x, _stack_matrices([[1.0, 0.0, 0.0], [0.0, 1.0, -shift]], strength))


def rotate(x: Tensor, strength: Tensor) -> Tensor:
    """Turn anticlockwise about the centre by up to 30 degrees."""
    angle = torch.deg2rad(30 * strength)
    cosine, sine = angle.cos(), angle.sin()
    return _warp_images(x, _stack_matrices([[cosine, -sine, 0.0], [sine, cosine, 0.0]], strength))


SIGNED = frozenset(
    (
        "shear_x",
        "shear_y",
        "translate_x",
        "translate_y",
        "rotate",
        "brightness",
        "colour",
        "contrast",
        "sharpness",
    )
)
OPERATIONS: dict[str, Operation] = {
    "identity": lambda x, _: x,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "rotate": rotate,
    "brightness": lambda x, s: colour.change_brightness(x, 1 + 0.9 * s),
    "colour": lambda x, s: colour.change_saturation(x, 1 + 0.9 * s),
    "contrast": lambda x, s: colour.change_contrast(x, 1 + 0.9 * s),
    "sharpness": lambda x, s: colour.change_sharpness(x, 1 + 0.9 * s),
    "posterize": lambda x, s: colour.posterize(x, 8 - torch.round(4 * s)),
    "solarize": lambda x, s: colour.solarize(x, 255 * (1 - s)),
    "autocontrast": lambda x, _: colour.stretch_contrast(x),
    "equalize": lambda x, _: colour.equalize(x),
}
