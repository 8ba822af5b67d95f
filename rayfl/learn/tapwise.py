"""Convolutions of a few pixels, tap by tap.

Where an image has shrunk to four pixels, more than half of what a convolution multiplies is padding. Here every pair of
a position and a pixel that meet in a tap is one matrix product, of all images with the tap's matrix as it lies in the
kernel, and nothing else is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tap = tuple[int, int]


@dataclass(frozen=True)
class Meeting:
    """A position of the answer meets a pixel of the image in a tap of the kernel."""

    position: int
    pixel: int
    tap: Tap


@dataclass(frozen=True)
class Meetings:
    """All of them, the answer's height and width, and where the kernel's gradient belongs, if it has one."""

    pairs: Sequence[Meeting]
    height: int
    width: int
    slopes: Tensor | None

    def convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of images."""
        answer: Tensor = Tapwise.apply(x, weight, self)
        return answer if bias is None else answer + bias.view(-1, 1, 1)


class Tapwise(torch.autograd.Function):
    """The answer and its gradients, in float32; that of the kernel goes straight to its place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, meetings: Meetings) -> Tensor:
        pixels = by_pixel(x)
        ctx.save_for_backward(pixels, weight)
        ctx.meetings, ctx.like = meetings, x
        positions = pixels.new_zeros(len(x), meetings.height * meetings.width, len(weight))
        for met in meetings.pairs:
            positions[:, met.position].addmm_(pixels[:, met.pixel], matrix(weight, met.tap).t())
        return as_images(positions, meetings.height, meetings.width).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, None]:
        pixels, weight = ctx.saved_tensors
        positions, back = by_pixel(slope), torch.zeros_like(pixels)
        for met in ctx.meetings.pairs:
            sloping = positions[:, met.position]
            if ctx.meetings.slopes is not None:
                matrix(ctx.meetings.slopes, met.tap).addmm_(sloping.t(), pixels[:, met.pixel])
            if ctx.needs_input_grad[0]:
                back[:, met.pixel].addmm_(sloping, matrix(weight, met.tap))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        height, width = ctx.like.shape[2:]
        return as_images(back, height, width).to(ctx.like.dtype), None, None


def by_pixel(x: Tensor) -> Tensor:
    """(image, pixel, channel), which is how channels-last images lie."""
    return x.to(torch.float32).permute(0, 2, 3, 1).flatten(1, 2)


def as_images(pixels: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `by_pixel`."""
    return pixels.view(len(pixels), height, width, -1).permute(0, 3, 1, 2)


def matrix(kernel: Tensor, tap: Tap) -> Tensor:
    """What one tap does to a pixel: (out, in)."""
    row, column = tap
    return kernel[:, :, row, column]
