"""Federations whose labels lie at the server, for tests of the methods made for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfl.config.files import merge_settings
from rayfl.run.engine import Outcome
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config

SERVED: Mapping[str, Any] = {
    # so many test images that evaluation has a task for every actor
    "data": {
        "name": "blobs",
        "samples": 360,
        "test_samples": 1000,
        "classes": 4,
        "side": 8,
        "spread": 0.2,
    },
    "split": {"labelled": {"per_class": 10}},
    "noise": "none",
    "training": {"optimizer": "adam", "lr": 0.01, "momentum": 0.0, "rounds": 4},
}
"""Ten labels of each class at the server, and images at six clients."""

STRONG = {"name": "strong", "padding": 1, "flip": 0.0, "cutout": 2, "m": 6}
"""A strong view of images of 8 x 8."""


def run_row(row: Row, folder: Path, rounds: int = 2, name: str = "own", **more: Any) -> Outcome:
    """A few rounds of a row's toy federation, changed by `more`.

    Parameters
    ----------
    row
        The method and its federation.
    folder
        Where the run may write.
    rounds
        How many.
    name
        Two runs in one folder have two names.
    more
        Sections of the configuration; `method` is merged into the row's.
    """
    method = merge_settings(row.method, more.pop("method", {}))
    other = Row(row.name, method, merge_settings(row.config, more))
    return run_toy(shortened(toy_config(other, folder), rounds), directory=name)[0]
