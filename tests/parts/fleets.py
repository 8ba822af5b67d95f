"""A small federation in this process, for tests of the parts that methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from torch import nn

from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.streams import Streams
from rayfl.protocol import Shard
from tests.learn.kit import build_linear, make_learner


@contextmanager
def open_fleet(
    sizes: tuple[int, ...] = (10, 20, 30, 5),
    build: Callable[..., nn.Module] = build_linear,
    kind: type[InlineFleet] = InlineFleet,
) -> Iterator[InlineFleet]:
    """Client k owns sizes[k] images of 4 x 4 x 1; the server has 12 labelled ones."""
    total = sum(sizes)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (total, 4, 4, 1), dtype=np.uint8)
    y = np.arange(total) % 3
    sets = {
        "labelled": Shard(rng.integers(0, 256, (12, 4, 4, 1), dtype=np.uint8), np.arange(12) % 3)
    }
    offsets = np.cumsum([0, *sizes])
    held = Holdings(x, y, np.arange(total), offsets, sets=sets, classes=3)
    fleet = kind(Spec(partial(make_learner, build), Streams(0), cohort=len(sizes)), held)
    try:
        yield fleet
    finally:
        fleet.close()
