"""Several datasets as one, their classes one after the other: a federation of users with different
datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from rayfl.component import component, slot
from rayfl.errors import DataError, broken
from rayfl.federation.dataset import Dataset, Images, Loader
from rayfl.federation.datasets import DATASETS


@component
class Joined:
    """The samples of all `parts`; the classes of a part are numbered on from those of the parts
    before it."""

    parts: Annotated[tuple[Annotated[Loader, slot(DATASETS)], ...], Field(min_length=2)]

    def load(self, root: Path) -> Dataset:
        """The datasets, each loaded from the same root."""
        parts = [part.load(root) for part in self.parts]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            raise DataError(broken("joined datasets have images of one shape", sorted(shapes)))
        counts = [len(part.classes) for part in parts]
        firsts = [sum(counts[:place]) for place in range(len(counts))]
        return Dataset(
            "+".join(part.name for part in parts),
            _join_images([part.train for part in parts], firsts),
            _join_images([part.test for part in parts], firsts),
            tuple(f"{part.name}/{name}" for part in parts for name in part.classes),
        )


def _join_images(parts: Sequence[Images], firsts: Sequence[int]) -> Images:
    """Images one part after the other; each part's classes begin at its first number."""
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y + first for part, first in zip(parts, firsts, strict=True)])
    return Images(x, y)
