"""Sweeps of runs that take a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfl.tuning.schema import Sweep, read_sweep

FEDPROX = {"name": "fedprox", "mu": 0.1}
TINY: dict[str, Any] = {
    "data": {"name": "blobs", "samples": 120, "test_samples": 60, "classes": 3},
    "clients": 3,
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"rounds": 4, "lr": 0.05},
    "fleet": "inline",
    "device": "cpu",
    "checkpoint": {"min_seconds": 0},
}
GRID = {"training.lr": {"grid": [0.3, 0.0]}}


def sweep_for(output: Path, search: Mapping[str, Any] = GRID, **more: Any) -> Sweep:
    """A sweep called `tiny` whose runs are kept below `output`."""
    settings = {**TINY, "output": str(output), **more.pop("set", {})}
    return read_sweep(
        {"name": "tiny", "set": settings, "search": dict(search), "over": "final", **more}, output
    )
