"""True labels on clients, and what a noise model made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.federation.noise import NOISES

Tasks = tuple[tuple[int, ...], ...]


def truth_of(
    counts: Sequence[Sequence[int]],
    images: NDArray[np.uint8] | None = None,
    tasks: Tasks | None = None,
) -> Truth:
    """Client k holds `counts[k][c]` samples of class c; everything in one fixed random order."""
    table = np.array(counts)
    clients, classes = table.shape
    cells = np.random.default_rng(11).permutation(np.repeat(np.arange(table.size), table.ravel()))
    pixels = np.zeros((len(cells), 2, 2, 1), np.uint8) if images is None else images
    return Truth(
        cells % classes,
        cells // classes,
        np.arange(len(cells)),
        clients,
        classes,
        lambda: pixels,
        tasks,
    )


def server(per_class: int, classes: int = 10) -> Truth:
    """One owner with as many samples of each class."""
    return truth_of([[per_class] * classes])


def federation(clients: int = 100, per_class: int = 50, classes: int = 10) -> Truth:
    return truth_of([[per_class] * classes] * clients)


def corrupt(spec: Any, truth: Truth, seed: int = 0) -> Corruption:
    return NOISES.build(spec).corrupt(truth, np.random.default_rng(seed))


def changed(truth: Truth, result: Corruption) -> Ints:
    """How many labels of each client changed."""
    return np.bincount(truth.owner[result.given != truth.labels], minlength=truth.clients)


def confusion(truth: Truth, result: Corruption) -> Ints:
    """Counts of (true, given)."""
    cells = truth.labels * truth.classes + result.given
    return np.bincount(cells, minlength=truth.classes**2).reshape(truth.classes, -1)
