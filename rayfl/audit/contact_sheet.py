"""The most suspicious images on one sheet, each with its label as given and as suggested."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayfl.audit.findings import Findings
from rayfl.federation.dataset import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

MOST = 50
COLUMNS = 10
TILE = 112
"""Pixels of an image's side on the sheet."""
GAP = 10
LINES = 3
LINE = 14
LETTERS = 17
"""Of a line below an image."""
GROUND, INK, SOFT, MARK = "#ffffff", "#1a1d21", "#565d66", "#b3261e"


def draw_contact_sheet(
    findings: Findings, dataset: Dataset, names: dict[int, str], most: int = MOST
) -> bytes:
    """The sheet as PNG: image, given -> suggested, score and site, the worst first.

    Parameters
    ----------
    names
        What clients are called.
    most
        How many images at most."""
    from PIL import Image, ImageDraw, ImageFont

    worst = findings.samples.worst(most)
    rows = max(-(-len(worst) // COLUMNS), 1)
    cell = (TILE + GAP, TILE + LINES * LINE + GAP)
    sheet = Image.new("RGB", (COLUMNS * cell[0] + GAP, rows * cell[1] + GAP), GROUND)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11)
    if not len(worst):
        pen.text((GAP, GAP), "No label is flagged.", INK, font)
    for number, place in enumerate(worst.tolist()):
        x = GAP + (number % COLUMNS) * cell[0]
        y = GAP + (number // COLUMNS) * cell[1]
        row = int(findings.samples.rows[place])
        sheet.paste(open_image(dataset.train.x[row], TILE), (x, y))
        texts = describe_sample(findings, place, names)
        for line, (text, colour) in enumerate(zip(texts, (INK, MARK, SOFT), strict=True)):
            pen.text((x, y + TILE + 1 + line * LINE), text, colour, font)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def describe_sample(findings: Findings, place: int, names: dict[int, str]) -> Sequence[str]:
    """Three short lines: the given label, the suggested one, score and site."""
    samples = findings.samples
    given = findings.classes[int(samples.given[place])]
    suggested = findings.classes[int(samples.suggested[place])]
    site = names[int(samples.clients[place])]
    score = f"{samples.score[place]:.2f} at {site}"
    return [shorten(given), shorten(f"-> {suggested}"), shorten(score)]


def shorten(text: str) -> str:
    """As many letters as fit below an image."""
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}\u2026"


def open_image(pixels: NDArray[np.uint8], side: int) -> Image:
    """An image of a dataset, as large as a tile, its proportions kept."""
    from PIL import Image

    colour = pixels[..., 0] if pixels.shape[2] == 1 else pixels[..., :3]
    picture = Image.fromarray(np.ascontiguousarray(colour)).convert("RGB")
    scale = side / max(picture.size)
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    # Small images keep their pixels; large ones are averaged.
    way = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    tile = Image.new("RGB", (side, side), GROUND)
    tile.paste(picture.resize(size, way), ((side - size[0]) // 2, (side - size[1]) // 2))
    return tile
