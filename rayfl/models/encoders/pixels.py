"""The pixels themselves as features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfl.component import component
from rayfl.models.encoders import base
from rayfl.models.feature_store import Features
from rayfl.models.network import Shape


@component
class FlatPixels:
    """Flattened pixels in [0, 1]."""

    def build(self, shape: Shape) -> PixelEncoder:
        return PixelEncoder(shape)


@dataclass(frozen=True)
class PixelEncoder:
    shape: Shape

    @property
    def dim(self) -> int:
        return math.prod(self.shape)

    def fingerprint(self) -> str:
        return base.fingerprint("pixels", {})

    def encode(self, x: base.Pixels) -> Features:
        base.check_pixels(x, self.shape)
        features: Features = x.reshape(len(x), self.dim).astype(np.float32) / np.float32(255)
        return features
