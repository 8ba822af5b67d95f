"""Which frozen encoder an audit reads, where nobody says."""

from __future__ import annotations

import importlib.util
from typing import Any

SMALL_SIDE = 16
"""Images below it are taken pixel by pixel."""
EFFICIENT = "efficientnet_lite_pytorch"
SIDE = 128
"""What colour images are enlarged or shrunk to: at 224 encoding takes three times as long."""
COLOURS = 3
COLOURLESS = (
    "Histograms of gradients tell coloured images badly apart, so that right labels look wrong. "
    "Install `rayfl[encoders]`; without it, the network of a finished run may be the better judge "
    "(`rayfl audit RUN --encoder own`)."
)
CELLS = 7
"""Cells of gradients along a side."""


def choose_encoder(shape: tuple[int, int, int]) -> dict[str, Any]:
    """EfficientNet-Lite0 for colour images, if the extra `encoders` is installed; histograms of
    gradients for others; pixels where images are tiny.

    Parameters
    ----------
    shape
        (height, width, channels) of an image.
    """
    height, width, channels = shape
    side = min(height, width)
    if channels == COLOURS and importlib.util.find_spec(EFFICIENT) is not None:
        return {"name": "efficientnet_lite0", "side": SIDE}
    if side < SMALL_SIDE or channels not in (1, COLOURS):
        return {"name": "pixels"}
    return {"name": "hog", "cell": max(4, side // CELLS)}
