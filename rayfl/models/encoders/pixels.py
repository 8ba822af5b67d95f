"""The pixels themselves as features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfl.arrays import Features
from rayfl.component import component
from rayfl.models.encoders.base import RawImages, check_pixels, hash_encoder
from rayfl.models.network import Shape


@component
class Pixels:
    """Flattened pixels in [0, 1]."""

    def build(self, shape: Shape) -> PixelEncoder:
        return PixelEncoder(shape)


@dataclass(frozen=True)
class PixelEncoder:
    """Pixels of images of one shape."""

    shape: Shape

    @property
    def dim(self) -> int:
        """The length of an image's features."""
        return math.prod(self.shape)

    def fingerprint(self) -> str:
        """A hash that is one for all: the features depend on nothing else."""
        return hash_encoder("pixels", {})

    def encode(self, x: RawImages) -> Features:
        """The features of the images `x`, one row each."""
        check_pixels(x, self.shape)
        flat = x.reshape(len(x), self.dim)
        features: Features = flat.astype(np.float32) / np.float32(255)
        return features
