"""Image files, or the bytes of such, to uint8 arrays: decoded in threads, each failure naming its
file."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Pixels
from rayfl.federation.datasets.on_disk import damaged_file, refuse_damage
from rayfl.federation.decoding import refuse_undecodable
from rayfl.regular_files import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What is read, whatever a file is called: other decoders start other programs."""
_MOST_PIXELS = 90_000_000
"""Beyond the largest cameras, and where Pillow itself begins to warn."""
_GREY_MODES = ("1", "L", "LA", "I;16")
# Small images decode in less time than it takes to hand over a task.
_PER_TASK = 256
_MOST_THREADS = 8


def is_image(file: Path) -> bool:
    """An image by its suffix; hidden files, such as the twins that archives from a Mac carry, are
    none."""
    return file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")


def decode_image(
    source: Path | bytes,
    channels: int | None = None,
    side: int | None = None,
    label: str = "",
    margin: int = 0,
) -> Pixels:
    """One image as (height, width, channels).

    Parameters
    ----------
    source
        A file, or the bytes of one.
    channels
        1 for grey, 3 for colour; None keeps what it has.
    side
        Makes it a square of so many pixels.
    label
        What a refusal calls an image that has no file of its own.
    margin
        Pixels by which the shorter edge is longer than `side` before the middle is cut.
    """
    from PIL import Image

    place = source if isinstance(source, Path) else Path(label)
    with refuse_damage(place, "a whole image file"):
        stream = open_regular(source) if isinstance(source, Path) else io.BytesIO(source)
        with stream, Image.open(stream, formats=_FORMATS) as image:
            if math.prod(image.size) > _MOST_PIXELS:
                rule = f"a picture of at most {_MOST_PIXELS:,} pixels"
                raise damaged_file(place, rule, "{} x {}".format(*image.size))
            # With a margin the pixels are to be those of the usual two steps, from the whole photo.
            if side is not None and not margin:
                # JPEG can decode straight to a half, a quarter or an eighth: several times faster
                # on photographs.
                image.draft(None, (side, side))
            if channels is None:
                channels = 1 if image.mode in _GREY_MODES else 3
            picture = image.convert("RGB" if channels == 3 else "L")
        if side is not None:
            picture = _cut_square(picture, side, margin)
        pixels = np.asarray(picture)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _cut_square(picture: Image, side: int, margin: int) -> Image:
    """Scale so that the shorter edge is `side` and a margin, then cut the middle."""
    from PIL import Image, ImageOps

    if not margin:
        return ImageOps.fit(picture, (side, side), method=Image.Resampling.BILINEAR)
    # Rounded as torchvision's Resize and CenterCrop do.
    shorter = min(picture.size)
    width, height = (edge * (side + margin) // shorter for edge in picture.size)
    scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return scaled.crop((left, top, left + side, top + side))


def _make_room(shape: tuple[int, ...]) -> Pixels:
    """An array for all images."""
    remedy = "Set `side` to scale the images down"
    with refuse_undecodable(f"{shape[0]} images of {shape[1:]} fit into memory", remedy):
        return np.empty(shape, dtype=np.uint8)


def decode_images(
    sources: Sequence[Path] | Sequence[bytes],
    channels: int | None,
    side: int | None,
    labels: Sequence[str] = (),
    margin: int = 0,
) -> Pixels:
    """Many images as one (N, height, width, channels) array; all must come out in one shape.

    Parameters
    ----------
    sources
        Files, or the bytes of files.
    channels
        1 for grey, 3 for colour; None takes those of the first image for all.
    side
        Makes squares of so many pixels.
    labels
        What refusals call the images; without them, their files.
    margin
        As for `decode_image`.
    """
    names = labels or [str(source) for source in sources]
    if not sources:
        return np.zeros((0, side or 1, side or 1, channels or 1), dtype=np.uint8)
    first = decode_image(sources[0], channels, side, names[0], margin)
    out = _make_room((len(sources), *first.shape))

    def fill(start: int) -> None:
        stop = min(start + _PER_TASK, len(sources))
        for at in range(start, stop):
            pixels = decode_image(sources[at], first.shape[2], side, names[at], margin)
            if pixels.shape != first.shape:
                rule = f"all images have one size, here {first.shape[:2]}"
                found = f"{pixels.shape[:2]} in {names[at]}"
                raise DataError(broken(rule, found, "Set `side` to scale them to squares"))
            out[at] = pixels

    # Threads suffice: the decoders of large images let go of the interpreter lock.
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        starts = range(0, len(sources), _PER_TASK)
        # Drawn out of the map, or its errors would stay inside.
        list(pool.map(fill, starts))
    return out
