"""Histograms of oriented gradients (Dalal and Triggs, CVPR 2005), for whole batches at once.

Grey values in [0, 1]; central differences, zero on the border; unsigned orientations in hard bins,
weighted by magnitude and averaged over cells; blocks of 2x2 cells at stride 1, normalised to length
1, clipped at 0.2 and normalised again (L2-Hys). One image is a row of float64 arithmetic that no
other image touches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayfl.component import Count, component
from rayfl.errors import ConfigError, broken
from rayfl.models.encoders.base import Pixels, check_pixels, encode_rows, fingerprint
from rayfl.models.feature_store import Features
from rayfl.models.network import Shape

Floats = NDArray[np.float64]

_LUMA = (0.2125, 0.7154, 0.0721)
_EPSILON = 1e-5
_CLIP = 0.2
_BLOCK = 2


@component
class HoG:
    """9 orientations in cells of 8x8 give 324 numbers for a 32x32 image; `hog784` (4 orientations,
    cells of 4x4) 784.

    The paper of FB-NLL clusters CIFAR-10's users with these features.
    """

    orientations: Count = 9
    cell: Count = 8
    hog784: bool = False

    def build(self, shape: Shape) -> HogEncoder:
        orientations, cell = (4, 4) if self.hog784 else (self.orientations, self.cell)
        if shape[2] not in (1, 3):
            raise ConfigError(broken("HoG takes grey or RGB images", f"{shape[2]} channels"))
        if min(shape[:2]) < _BLOCK * cell:
            rule = f"images must hold a block of {_BLOCK}x{_BLOCK} cells of {cell}x{cell} pixels"
            raise ConfigError(broken(rule, f"{shape[0]}x{shape[1]}", "Make `cell` smaller"))
        return HogEncoder(shape, orientations, cell)


@dataclass(frozen=True)
class HogEncoder:
    shape: Shape
    orientations: int
    cell: int

    @property
    def dim(self) -> int:
        down, across = (side // self.cell - _BLOCK + 1 for side in self.shape[:2])
        return down * across * _BLOCK * _BLOCK * self.orientations

    def fingerprint(self) -> str:
        return fingerprint("hog", {"orientations": self.orientations, "cell": self.cell})

    def encode(self, x: Pixels) -> Features:
        check_pixels(x, self.shape)
        return encode_rows(self._forward, x, self.dim)

    def _forward(self, x: Pixels) -> Features:
        return _normalise_blocks(
            make_cell_histograms(to_grey(x), self.orientations, self.cell)
        ).astype(np.float32)


def to_grey(x: Pixels) -> Floats:
    """Luminance in [0, 1], (N, height, width)."""
    values = x.astype(np.float64) / 255
    if x.shape[3] == 1:
        return values[..., 0]
    red, green, blue = np.moveaxis(values, 3, 0)
    luminance: Floats = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return luminance


def make_cell_histograms(image: Floats, orientations: int, cell: int) -> Floats:
    """Mean gradient magnitude per cell and orientation, (N, cells down, cells across,
    orientations)."""
    count, height, width = image.shape
    down, across = height // cell, width // cell
    vertical, horizontal = np.zeros_like(image), np.zeros_like(image)
    vertical[:, 1:-1] = image[:, 2:] - image[:, :-2]
    horizontal[:, :, 1:-1] = image[:, :, 2:] - image[:, :, :-2]
    magnitude = np.hypot(vertical, horizontal)
    degrees = np.rad2deg(np.arctan2(vertical, horizontal)) % 180
    # 180 itself, which rounding can produce, is the direction 0.
    bins = (degrees * orientations / 180).astype(np.int64) % orientations
    histograms = np.empty((count, down, across, orientations))
    for orientation in range(orientations):
        chosen = np.where(bins == orientation, magnitude, 0.0)[:, : down * cell, : across * cell]
        histograms[..., orientation] = chosen.reshape(count, down, cell, across, cell).mean((2, 4))
    return histograms


def _normalise_blocks(histograms: Floats) -> Floats:
    """Normalised blocks of neighbouring cells, one row an image."""
    windows = np.lib.stride_tricks.sliding_window_view(histograms, (_BLOCK, _BLOCK), axis=(1, 2))
    count, down, across = windows.shape[:3]
    flat = windows.transpose(0, 1, 2, 4, 5, 3).reshape(count, down, across, -1)
    return _scale_to_unit(np.minimum(_scale_to_unit(flat), _CLIP)).reshape(count, -1)


def _scale_to_unit(vectors: Floats) -> Floats:
    """Vectors of length 1; those without length stay 0."""
    scaled: Floats = vectors / np.sqrt((vectors**2).sum(-1, keepdims=True) + _EPSILON**2)
    return scaled
