"""The two gentle views of semi-supervised and contrastive learning.

Contrastive: the recipe of SimCLR (Chen et al., ICML 2020) with the strengths that CTRR (Yi et al.,
CVPR 2022) uses for 32x32 images. Weak: crop and flip, as in FixMatch (Sohn et al., NeurIPS 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rayfl.component import Fraction, Natural, component
from rayfl.learn.augment.colour import (
    change_brightness,
    change_contrast,
    change_saturation,
    make_grey,
    turn_hue,
)
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.augment.pieces import (
    apply_by_choice_,
    check_colours,
    draw_uniform,
    lay_out_like,
    shape_per_image,
    toss_coins,
)
from rayfl.learn.augment.resize import AreaRange, AspectRange, ResizeCrop


@component
class Contrastive:
    """Resized crop, flip, colour jitter, greyscale. Call it twice for two views of the same images.

    Jitter applies its four changes in an order that each image draws for itself, without rounding
    in between."""

    scale: AreaRange = (0.2, 1.0)
    """The crop's share of the area."""
    ratio: AspectRange = (3 / 4, 4 / 3)
    """Its width over its height."""
    flip: Fraction = 0.5
    """How likely an image is mirrored."""
    jitter: Fraction = 0.8
    """How likely its colours change."""
    brightness: Fraction = 0.4
    """Each of the four changes by a factor of at most one plus this; hue turns by this."""
    contrast: Fraction = 0.4
    saturation: Fraction = 0.4
    hue: Fraction = 0.1
    greyscale: Fraction = 0.2
    """How likely an image loses its colours."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        check_colours("contrastive", x)
        crop = ResizeCrop(scale=self.scale, ratio=self.ratio, flip=self.flip)
        # colours are cheaper while each channel lies in one piece
        out = crop(x.contiguous(), generator)
        chosen = toss_coins(len(x), generator, self.jitter)
        strengths = (self.brightness, self.contrast, self.saturation, self.hue)
        jitter_colours_(
            out,
            chosen,
            strengths,
            generator,
        )
        coins = toss_coins(len(x), generator, self.greyscale)
        greyed = shape_per_image(coins, x)
        return lay_out_like(torch.where(greyed, make_grey(out), out), x)


@component
class Weak:
    """Crop out of the reflected image and flip; `ctrr` replaces the crop by the resized crop of
    CTRR's code."""

    padding: Natural = 4
    """Pixels of mirror image on each side."""
    flip: Fraction = 0.5
    """How likely an image is mirrored."""
    ctrr: bool = False
    """The resized crop of CTRR's code in place of the crop."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.ctrr:
            return ResizeCrop(flip=self.flip)(x, generator)
        crop = CropFlip(padding=self.padding, mode="reflect", flip=self.flip)
        return crop(x, generator)


def jitter_colours_(
    x: Tensor,
    chosen: Tensor,
    strengths: tuple[float, float, float, float],
    generator: torch.Generator,
) -> None:
    """Change brightness, contrast, saturation and hue of the chosen images by random amounts in
    random orders."""
    *factors, turn = (
        draw_uniform(
            len(x),
            generator,
            -strength,
            strength,
        )
        for strength in strengths
    )
    amounts = [*(1 + factor for factor in factors), turn]
    operations = (change_brightness, change_contrast, change_saturation, turn_hue)
    draws = torch.rand(
        len(x),
        len(amounts),
        generator=generator,
        device=generator.device,
    )
    # Who is not chosen does nothing four times, so that the draws stay the same.
    order = draws.argsort(1).masked_fill(~chosen[:, None], -1)
    for choice in order.unbind(1):
        apply_by_choice_(
            x,
            choice,
            amounts,
            operations,
        )
