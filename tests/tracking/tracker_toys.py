"""What the tests of tracker share."""

from __future__ import annotations

from typing import Any

import rayfl
from rayfl.tracking.store import default_uri, open_client

SECRET = "hunter2"


SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 4,
    "noise": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 3, "batch_size": 64},
    "fleet": "inline",
    "checkpoint": {"uri": None, "min_seconds": 0},
}


def steps_of(uri: str, run_id: str, metric: str = "loss") -> list[int]:
    """The rounds of a metric's history, in order and with whatever is there twice."""
    return sorted(point.step for point in open_client(uri).get_metric_history(run_id, metric))


def uri_of(result: rayfl.Result) -> str:
    return default_uri(result.config.output)
