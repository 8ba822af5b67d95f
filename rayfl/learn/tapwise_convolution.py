"""Convolutions of a few pixels, tap by tap.

Where an image has shrunk to four pixels, more than half of what a convolution multiplies is
padding. Here each tap of the kernel is one matrix product with the pixels that it meets anywhere,
with its matrix as it lies in the kernel, and nothing else is multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Part = tuple[slice, slice]
"""Some rows and columns of an image or an answer."""


@dataclass(frozen=True)
class Tap:
    """A tap of a kernel: its row and column, and the pixels that it meets at which positions of the
    answer."""

    row: int
    column: int
    pixels: Part
    positions: Part

    def matrix(self, kernel: Tensor) -> Tensor:
        """What it does to a pixel: (out, in)."""
        return kernel[:, :, self.row, self.column]


@dataclass(frozen=True)
class Taps:
    """All taps that meet anything, the answer's height and width, and where the kernel's gradient
    belongs."""

    taps: Sequence[Tap]
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
    def forward(ctx: Any, x: Tensor, weight: Tensor, of: Taps) -> Tensor:
        pixels = _channels_behind(x)
        ctx.save_for_backward(pixels, weight)
        ctx.of, ctx.dtype = of, x.dtype
        answer = pixels.new_zeros(len(x), of.height, of.width, len(weight))
        for tap in of.taps:
            _add_rows(
                answer, tap.positions, _take_rows(pixels, tap.pixels) @ tap.matrix(weight).t()
            )
        return answer.permute(0, 3, 1, 2).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, None]:
        pixels, weight = ctx.saved_tensors
        answer, back = (
            _channels_behind(slope),
            torch.zeros_like(pixels) if ctx.needs_input_grad[0] else None,
        )
        for tap in ctx.of.taps:
            sloping = _take_rows(answer, tap.positions)
            if ctx.of.slopes is not None:
                tap.matrix(ctx.of.slopes).addmm_(sloping.t(), _take_rows(pixels, tap.pixels))
            if back is not None:
                _add_rows(back, tap.pixels, sloping @ tap.matrix(weight))
        return None if back is None else back.permute(0, 3, 1, 2).to(ctx.dtype), None, None


def _channels_behind(x: Tensor) -> Tensor:
    """(image, row, column, channel), which is how channels-last images lie."""
    return x.to(torch.float32).permute(0, 2, 3, 1)


def _take_rows(images: Tensor, part: Part) -> Tensor:
    """A part of all images as a matrix, a row for each pixel."""
    return images[:, part[0], part[1]].flatten(0, 2)


def _add_rows(images: Tensor, part: Part, rows: Tensor) -> None:
    """Add a matrix to a part of all images."""
    place = images[:, part[0], part[1]]
    place.add_(rows.view(place.shape))
