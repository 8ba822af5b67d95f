"""Changes of colour, each image by its own amount.

uint8 images stay uint8, with torchvision's conventions about cutting off fractions; float images
stay float and are not rounded. Values stay in [0, 255]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.learn.augment.pieces import shape_per_image

LUMA = (0.2989, 0.587, 0.114)
GREY_LEVELS = 256


def make_grey(x: Tensor) -> Tensor:
    """One channel of luma (ITU-R 601-2); the image itself if it has one channel already."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).to(x.dtype).unsqueeze(1)


def _blend_images(x: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    """`factor` of the image and 1 - `factor` of the other one: 1 leaves it, 0 replaces it, above 1
    moves away."""
    factor = shape_per_image(factor, x)
    mixed = factor * x
    mixed += (1 - factor) * other
    return mixed.clamp_(0, 255).to(x.dtype)


def change_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Towards or away from black."""
    return _blend_images(x, 0.0, factor)


def change_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Towards or away from the mean grey of the image."""
    return _blend_images(x, make_grey(x).float().mean((1, 2, 3), keepdim=True), factor)


def change_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Towards or away from the grey image; nothing happens to a grey one."""
    return x if x.shape[1] == 1 else _blend_images(x, make_grey(x), factor)


def turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of float images by a share of the colour circle; nothing happens to a grey
    image.

    A channel of an HSV colour is v - chroma * t, with t in [0, 1] a trapezium over the distance on
    the circle between the hue and the channel's own place (Smith, Color gamut transform pairs,
    SIGGRAPH 1978)."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    safe = chroma.clamp(min=torch.finfo(x.dtype).tiny)
    sixth = torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    sixth = torch.where(value == red, (green - blue) / safe, sixth)
    sixth += 6 * turn.to(x.device)[:, None, None]
    channels = torch.tensor([5.0, 3.0, 1.0], device=x.device)
    place = sixth[:, None] + channels.view(
        1,
        3,
        1,
        1,
    )
    place = place.remainder_(6)
    share = torch.minimum(place, 4 - place).clamp_(0, 1)
    return (value[:, None] - chroma[:, None] * share).clamp_(0, 255)


def change_sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Towards or away from the image smoothed with weights 1 around a 5; border pixels stay."""
    if min(x.shape[2:]) < 3:
        return x
    pixels = x.float()
    centre = pixels[:, :, 1:-1, 1:-1]
    around = F.avg_pool2d(pixels, 3, stride=1)
    smooth = (9 * around + 4 * centre) / 13
    pixels = pixels.clone()
    pixels[:, :, 1:-1, 1:-1] = smooth if x.is_floating_point() else smooth.round()
    return _blend_images(x, pixels, factor)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading `bits` of each uint8 value."""
    dropped = shape_per_image(8 - bits.long(), x)
    return ((x.long() >> dropped) << dropped).to(x.dtype)


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above the threshold."""
    return torch.where(x >= shape_per_image(threshold, x), 255 - x, x)


def stretch_contrast(x: Tensor) -> Tensor:
    """Stretch each channel to the whole range; a constant channel stays."""
    low = x.amin((2, 3), keepdim=True).float()
    high = x.amax((2, 3), keepdim=True).float()
    flat = low == high
    start = low.masked_fill(flat, 0)
    factor = (255 / (high - low)).masked_fill(flat, 1)
    stretched = (x - start) * factor
    return stretched.clamp_(0, 255).to(x.dtype)


def equalize(x: Tensor) -> Tensor:
    """Flatten the histogram of each channel of uint8 images, as PIL does."""
    planes = x.flatten(2).flatten(0, 1).long()
    length = GREY_LEVELS * len(planes)
    # One histogram for all channels: each has 256 bins of its own.
    offset = GREY_LEVELS * torch.arange(len(planes), device=x.device)[:, None]
    bins = torch.bincount((planes + offset).flatten(), minlength=length)
    counts = bins.view(-1, GREY_LEVELS)
    last = counts.gather(1, planes.amax(1, keepdim=True))
    step = (planes.shape[1] - last) // (GREY_LEVELS - 1)
    before = counts.cumsum(1) - counts
    table = ((before + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    # a channel with too few pixels below its brightest level has no step and stays
    out = torch.where(step == 0, planes, table.gather(1, planes))
    return out.view(x.shape).to(x.dtype)
