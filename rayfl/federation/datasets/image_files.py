"""Image files, or the bytes of such, to uint8 arrays: decoded in threads, each failure naming its
file."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels
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
_GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
# What Pillow calls grey pictures of 16 bits; older ones read them as 32 bits.
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
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
    as_shown: bool = False,
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
    as_shown
        As a viewer shows it: turned as its EXIF data say, transparent parts on white, of 16 bits
        the upper 8.
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
            shown = _show_image(image) if as_shown else image
            if channels is None:
                channels = 1 if shown.mode in _GREY_MODES else 3
            picture = shown.convert("RGB" if channels == 3 else "L")
        if side is not None:
            picture = _cut_square(picture, side, margin)
        pixels = np.asarray(picture)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _show_image(image: Image) -> Image:
    """The picture upright, opaque and of 8 bits."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode in _SIXTEEN_BITS:
        values = np.asarray(upright).astype(np.int64)
        if values.min() < 0 or values.max() >= 1 << 16:
            raise ValueError(f"grey values from {values.min()} to {values.max()}, not of 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if upright.mode == "F":
        raise ValueError("grey values with fractions, whose white nobody knows")
    if "A" not in upright.getbands() and "transparency" not in upright.info:
        return upright
    grey = upright.mode in ("1", "L", "LA", "La")
    layer = upright.convert("RGBA")
    white = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(white, layer).convert("L" if grey else "RGB")


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

    def fill(at: int) -> None:
        pixels = decode_image(sources[at], first.shape[2], side, names[at], margin)
        out[at] = _fit_shape(pixels, first.shape, names[at])

    _fill_in_threads(fill, len(sources))
    return out


def _fit_shape(
    pixels: Pixels,
    shape: tuple[int, ...],
    name: str,
) -> Pixels:
    """The pixels, if they have the size of all."""
    if pixels.shape[:2] != shape[:2]:
        rule = f"all images have one size, here {shape[:2]}"
        found = f"{pixels.shape[:2]} in {name}"
        raise DataError(broken(rule, found, "Set `side` to scale them to squares"))
    return pixels


def _fill_in_threads(fill: Callable[[int], None], count: int) -> None:
    """Call `fill` for every number below `count`."""

    def fill_many(start: int) -> None:
        for at in range(start, min(start + _PER_TASK, count)):
            fill(at)

    # Threads suffice: the decoders of large images let go of the interpreter lock.
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        # Drawn out of the map, or its errors would stay inside.
        list(pool.map(fill_many, range(0, count, _PER_TASK)))


# -- images of one's own ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownImages:
    """Images that came in, and those that did not.

    x       uint8 (N, height, width, channels)
    whole   which of the sources they are, in order
    faults  why the others are damaged, by source
    """

    x: Pixels
    whole: Ints
    faults: dict[int, DataError]


def decode_as_shown(
    sources: Sequence[Path | bytes],
    channels: int | None,
    side: int | None,
    labels: Sequence[str],
    skip: bool = False,
) -> ShownImages:
    """Images of any mode as one array, each as a viewer shows it.

    Parameters
    ----------
    sources
        Files, or the bytes of files.
    channels
        1 for grey, 3 for colour; None makes all of them coloured as soon as one is.
    side
        Makes squares of so many pixels; without it, all must have one size.
    labels
        What refusals call the images.
    skip
        Leave damaged ones out in place of refusing the first.
    """
    faults: dict[int, DataError] = {}
    decoded: list[Pixels | None] = [None] * len(sources)

    def fill(at: int) -> None:
        try:
            decoded[at] = decode_image(sources[at], channels, side, labels[at], as_shown=True)
        except DataError as fault:
            if not skip:
                raise
            faults[at] = fault

    _fill_in_threads(fill, len(sources))
    whole = [at for at, pixels in enumerate(decoded) if pixels is not None]
    kept = [pixels for pixels in decoded if pixels is not None]
    # The stack takes them over one by one, so that they do not lie in memory twice.
    decoded.clear()
    x = _stack_images(kept, [labels[at] for at in whole], channels, side)
    return ShownImages(x, np.array(whole, dtype=np.int64), dict(sorted(faults.items())))


def _stack_images(
    pictures: list[Pixels],
    names: Sequence[str],
    channels: int | None,
    side: int | None,
) -> Pixels:
    """One array; grey pictures among coloured ones are repeated in every channel. Empties the
    list."""
    if not pictures:
        return np.zeros((0, side or 1, side or 1, channels or 1), dtype=np.uint8)
    deepest = max(pixels.shape[2] for pixels in pictures)
    shape = (*pictures[0].shape[:2], deepest)
    out = _make_room((len(pictures), *shape))
    pictures.reverse()
    for at, name in enumerate(names):
        out[at] = _fit_shape(pictures.pop(), shape, name)
    return out
