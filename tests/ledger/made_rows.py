"""Rows of a ledger made by hand."""

from __future__ import annotations

from typing import Any

from rayfl.ledger.rows import Row


def make_row(**changes: Any) -> Row:
    """A row of a study that is nowhere."""
    values: dict[str, Any] = {
        "study": "tiny",
        "file": "tiny.yaml",
        "cell": "FedAvg, clean",
        "axes": {"method": "fedavg", "noise": "clean"},
        "seed": 0,
        "scale": 1.0,
        "overrides": (),
        "precision": "fp32",
        "rounds": 2,
        "digest": "d" * 64,
        "scenario": "s" * 64,
        "model": "m" * 64,
        "scores": {"test/accuracy:best": 0.5, "test/accuracy:last10": 0.25},
        "down_mb": 1.5,
        "seconds": 2.0,
        "environment": {"commit": "abc", "torch": "2.0"},
        "finished": "2026-01-01T00:00Z",
        "command": "rayfl study tiny.yaml --only 'method=a, b'",
    }
    return Row(**{**values, **changes})
