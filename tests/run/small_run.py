"""The settings of a run of a few seconds."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 8,
    "noise": {"name": "symmetric", "rate": 0.2},
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 5},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"rounds": 6, "fraction": 0.5, "epochs": 3, "batch_size": 16, "lr": 0.3},
    "checkpoint": {"min_seconds": 0},
    "tracking": {"enabled": False},
}
