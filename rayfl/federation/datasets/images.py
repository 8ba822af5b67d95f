"""Image files, or the bytes of such, to uint8 arrays: decoded in threads, each failure naming its
file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Pixels
from rayfl.federation.datasets.files import damaged_file

if TYPE_CHECKING:
    from PIL.Image import Image

_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
# Small images decode in less time than it takes to hand over a task.
_PER_TASK = 256


def is_image(file: Path) -> bool:
    """An image by its suffix; hidden files, such as the twins that archives from a Mac carry, are
    none."""
    return file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")


def decode_image(
    source: Path | bytes, channels: int | None = None, side: int | None = None, label: str = ""
) -> Pixels:
    """One image as (height, width, channels): `channels` None keeps grey or colour; `side` makes it
    a square."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
            if side is not None:
                # JPEG can decode straight to a half, a quarter or an eighth: several times faster
                # on photographs.
                image.draft(None, (side, side))
            mode = (
                "RGB"
                if channels == 3
                or (channels is None and image.mode not in ("1", "L", "LA", "I;16"))
                else "L"
            )
            picture = image.convert(mode)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise damaged_file(
            source if isinstance(source, Path) else Path(label), "a whole image file", error
        ) from error
    pixels = np.asarray(picture if side is None else _cut_square(picture, side))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _cut_square(picture: Image, side: int) -> Image:
    """Scale so that the shorter edge is `side`, then cut the middle."""
    from PIL import Image, ImageOps

    return ImageOps.fit(picture, (side, side), method=Image.Resampling.BILINEAR)


def decode_images(
    sources: Sequence[Path] | Sequence[bytes],
    channels: int | None,
    side: int | None,
    labels: Sequence[str] = (),
) -> Pixels:
    """Many images as one (N, height, width, channels) array; all must come out in one shape."""
    named = labels or [str(source) for source in sources]
    if not sources:
        return np.zeros((0, side or 1, side or 1, channels or 1), dtype=np.uint8)
    first = decode_image(sources[0], channels, side, named[0])
    out = np.empty((len(sources), *first.shape), dtype=np.uint8)

    def fill(start: int) -> None:
        for at in range(start, min(start + _PER_TASK, len(sources))):
            pixels = decode_image(sources[at], first.shape[2], side, named[at])
            if pixels.shape != first.shape:
                rule = f"all images have one size, here {first.shape[:2]}"
                remedy = "Set `side` to scale them to squares"
                raise DataError(broken(rule, f"{pixels.shape[:2]} in {named[at]}", remedy))
            out[at] = pixels

    # Threads suffice: the decoders of large images let go of the interpreter lock.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(fill, range(0, len(sources), _PER_TASK)))
    return out
