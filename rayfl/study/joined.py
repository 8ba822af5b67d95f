"""Several datasets as one, their classes one after the other: a federation of users with different
datasets."""

from __future__ import annotations

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
        parts = [part.load(root) for part in self.parts]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            raise DataError(broken("joined datasets have images of one shape", sorted(shapes)))
        firsts = np.cumsum([0, *(len(part.classes) for part in parts)])
        train, test = (
            Images(
                np.concatenate([getattr(part, half).x for part in parts]),
                np.concatenate(
                    [
                        getattr(part, half).y + first
                        for part, first in zip(parts, firsts, strict=False)
                    ]
                ),
            )
            for half in ("train", "test")
        )
        classes = tuple(f"{part.name}/{name}" for part in parts for name in part.classes)
        return Dataset("+".join(part.name for part in parts), train, test, classes)
