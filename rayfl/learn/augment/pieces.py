"""Draws, shapes and groups that the augmentations share.

All random numbers come from the caller's generator, on the generator's own device: a generator on
the CPU gives the same crops and colours to images on any device, and grouping images by a drawn
operation costs no synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rayfl.errors import DataError, broken

Operation = Callable[[Tensor, Tensor], Tensor]
"""A change of images by an amount each."""


def draw_uniform(
    n: int,
    generator: torch.Generator,
    low: float = 0.0,
    high: float = 1.0,
) -> Tensor:
    """`n` draws from U[low, high)."""
    drawn = torch.rand(n, generator=generator, device=generator.device)
    return low + (high - low) * drawn


def draw_integers(n: int, generator: torch.Generator, bound: int) -> Tensor:
    """`n` draws from {0, ..., bound - 1}."""
    return torch.randint(
        bound,
        (n,),
        generator=generator,
        device=generator.device,
    )


def toss_coins(n: int, generator: torch.Generator, heads: float) -> Tensor:
    """`n` draws that are true with probability `heads`: never at 0, always at 1."""
    return draw_uniform(n, generator) < heads


def shape_per_image(values: Tensor, x: Tensor) -> Tensor:
    """A vector with one entry an image, on the device of `x` and shaped to broadcast over (C, H,
    W)."""
    return values.to(x.device).view(
        -1,
        1,
        1,
        1,
    )


def lay_out_like(out: Tensor, x: Tensor) -> Tensor:
    """`out` in the memory format of `x`."""
    last = x.is_contiguous(memory_format=torch.channels_last)
    # One channel, or one pixel, is contiguous in both formats.
    if last and not x.is_contiguous():
        return out.contiguous(memory_format=torch.channels_last)
    return out.contiguous()


def apply_by_choice_(
    x: Tensor,
    choice: Tensor,
    amounts: Sequence[Tensor],
    operations: Sequence[Operation],
) -> None:
    """Replace image i by operation `choice[i]` of it, by `amounts[choice[i]][i]`; -1 leaves it.

    All images that share an operation share one call.
    """
    pairs = zip(operations, amounts, strict=True)
    for number, (operation, amount) in enumerate(pairs):
        members = (choice == number).nonzero()[:, 0]
        if not len(members):
            continue
        there = members.to(x.device)
        own = amount[members].to(x.device)
        x.index_copy_(0, there, operation(x[there], own))


def check_batch(name: str, x: Tensor) -> None:
    """Refuse what is not a batch of images."""
    if x.ndim != 4:
        rule = f"{name} takes a batch of images (N, C, H, W)"
        raise DataError(broken(rule, f"shape {tuple(x.shape)}"))


def check_colours(name: str, x: Tensor) -> None:
    """Refuse images that are neither grey nor RGB."""
    check_batch(name, x)
    channels = x.shape[1]
    if channels not in (1, 3):
        rule = f"{name} takes images of 1 or 3 channels"
        remedy = "Choose an augmentation that only moves pixels, such as crop_flip."
        raise DataError(broken(rule, channels, remedy))
