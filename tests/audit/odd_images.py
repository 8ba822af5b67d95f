"""Images whose class can be seen, in folders of classes and sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("east", "north", "south", "west")
QUADRANTS = {"east": (0, 10), "north": (0, 0), "south": (10, 10), "west": (10, 0)}


def paint_class(name: str, rng: np.random.Generator) -> Image.Image:
    """A texture that no other image has, with a bright quadrant that tells the class."""
    coarse = rng.integers(0, 120, (10, 10)).repeat(2, axis=0).repeat(2, axis=1)
    down, across = QUADRANTS[name]
    coarse[down : down + 10, across : across + 10] += 110
    return Image.fromarray(coarse.astype(np.uint8))


def fill_site(root: Path, site: str, counts: dict[str, int], wrong: bool = False) -> None:
    """Images of a site by class; at a wrong one, each lies in the folder of the next class."""
    rng = np.random.default_rng(sum(map(ord, site)))
    for name, count in counts.items():
        label = CLASSES[(CLASSES.index(name) + 1) % 3] if wrong else name
        folder = root / label / site
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            paint_class(name, rng).save(folder / f"{name}{number}.png")
