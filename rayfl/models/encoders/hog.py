"""Histograms of oriented gradients (Dalal and Triggs, CVPR 2005), for whole batches at once.

Grey values in [0, 1]; central differences, zero on the border; unsigned orientations in hard bins,
weighted by magnitude and averaged over cells; blocks of 2x2 cells at stride 1, normalised to length
1, clipped at 0.2 and normalised again (L2-Hys). One image is a row of float64 arithmetic that no
other image touches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayfl.arrays import Features, Floats
from rayfl.component import Count, component
from rayfl.errors import ConfigError, broken
from rayfl.models.encoders.base import RawImages, check_pixels, encode_rows, hash_encoder
from rayfl.models.network import Shape

# The luma weights of ITU-R BT.709.
_RED, _GREEN, _BLUE = 0.2125, 0.7154, 0.0721
_EPSILON = 1e-5
_CLIP = 0.2
_BLOCK = 2


@component
class HoG:
    """9 orientations in cells of 8x8 give 324 numbers for a 32x32 image; `hog784` (4 orientations,
    cells of 4x4) 784.

    The paper of FB-NLL clusters CIFAR-10's users with HoG and prints no parameters: these are the
    usual ones. Beside Fig. 5 it speaks of 784 numbers.
    """

    orientations: Count = 9
    cell: Count = 8
    hog784: bool = False

    def build(self, shape: Shape) -> HogEncoder:
        height, width, channels = shape
        orientations, cell = self.orientations, self.cell
        if self.hog784:
            orientations, cell = 4, 4
        if channels not in (1, 3):
            raise ConfigError(broken("HoG takes grey or RGB images", f"{channels} channels"))
        if min(height, width) < _BLOCK * cell:
            block = f"{_BLOCK}x{_BLOCK} cells of {cell}x{cell} pixels"
            rule = f"images must hold a block of {block}"
            raise ConfigError(broken(rule, f"{height}x{width}", "Make `cell` smaller"))
        return HogEncoder(shape, orientations, cell)


@dataclass(frozen=True)
class HogEncoder:
    """Histograms for images of one shape."""

    shape: Shape
    orientations: int
    cell: int

    @property
    def dim(self) -> int:
        """The length of an image's features."""
        height, width, _ = self.shape
        down = height // self.cell - _BLOCK + 1
        across = width // self.cell - _BLOCK + 1
        numbers_per_block = _BLOCK * _BLOCK * self.orientations
        return down * across * numbers_per_block

    def fingerprint(self) -> str:
        """A hash of the settings, on which alone the features depend."""
        settings = {"orientations": self.orientations, "cell": self.cell}
        return hash_encoder("hog", settings)

    def encode(self, x: RawImages) -> Features:
        """The features of the images `x`, one row each."""
        check_pixels(x, self.shape)
        return encode_rows(self._forward, x, self.dim)

    def _forward(self, x: RawImages) -> Features:
        histograms = make_cell_histograms(to_grey(x), self.orientations, self.cell)
        return _normalise_blocks(histograms).astype(np.float32)


def to_grey(x: RawImages) -> Floats:
    """Luminance of the images `x` in [0, 1], (N, height, width)."""
    values = x.astype(np.float64) / 255
    if x.shape[3] == 1:
        return values[..., 0]
    red, green, blue = np.moveaxis(values, 3, 0)
    luminance: Floats = _RED * red + _GREEN * green + _BLUE * blue
    return luminance


def make_cell_histograms(
    image: Floats,
    orientations: int,
    cell: int,
) -> Floats:
    """Mean gradient magnitude per cell and orientation, (N, cells down, cells across,
    orientations).

    Parameters
    ----------
    image
        Grey images, (N, height, width).
    orientations
        How many bins half a turn has.
    cell
        The side of a cell, in pixels; what is left at the right and below is not used.
    """
    count, height, width = image.shape
    down = height // cell
    across = width // cell
    magnitude, degrees = _measure_gradients(image)
    # 180 itself, which rounding can produce, is the direction 0.
    bins = (degrees * orientations / 180).astype(np.int64) % orientations
    histograms = np.empty((count, down, across, orientations))
    for orientation in range(orientations):
        chosen = np.where(bins == orientation, magnitude, 0.0)
        whole = chosen[:, : down * cell, : across * cell]
        cells = whole.reshape(count, down, cell, across, cell)
        histograms[..., orientation] = cells.mean((2, 4))
    return histograms


def _measure_gradients(image: Floats) -> tuple[Floats, Floats]:
    """Magnitude and unsigned direction in degrees, from central differences."""
    vertical = np.zeros_like(image)
    vertical[:, 1:-1] = image[:, 2:] - image[:, :-2]
    horizontal = np.zeros_like(image)
    horizontal[:, :, 1:-1] = image[:, :, 2:] - image[:, :, :-2]
    direction = np.arctan2(vertical, horizontal)
    return np.hypot(vertical, horizontal), np.rad2deg(direction) % 180


def _normalise_blocks(histograms: Floats) -> Floats:
    """Normalised blocks of neighbouring cells, one row an image."""
    block = (_BLOCK, _BLOCK)
    windows = np.lib.stride_tricks.sliding_window_view(histograms, block, axis=(1, 2))
    count, down, across = windows.shape[:3]
    # The window's two axes come last; orientations belong behind them.
    ordered = windows.transpose(0, 1, 2, 4, 5, 3)
    flat = ordered.reshape(count, down, across, -1)
    clipped = np.minimum(_scale_to_unit(flat), _CLIP)
    return _scale_to_unit(clipped).reshape(count, -1)


def _scale_to_unit(vectors: Floats) -> Floats:
    """Vectors of length 1; those without length stay 0."""
    squares = (vectors**2).sum(-1, keepdims=True)
    scaled: Floats = vectors / np.sqrt(squares + _EPSILON**2)
    return scaled
