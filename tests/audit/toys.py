"""Small audits that tests share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUICK: Mapping[str, Any] = {
    "folds": 3,
    "axes": 24,
    "warmup": 20,
    "trusting": 10,
    "choices": 1,
    "turns": 2,
    "steps": 6,
    "peers": 3,
    "span_axes": 8,
    "span": 4,
}
"""Settings of an audit that is over in a second or two."""
RATES = [0.0, 0.05, 0.1, 0.6]
"""One client of four is bad."""


def make_settings(**changes: Any) -> dict[str, Any]:
    """A federation of digits whose last client has wrong labels."""
    return {
        "data": "digits",
        "clients": 4,
        "split": {"train_samples": {"total": 800}},
        "noise": {"name": "symmetric", "rate": RATES},
        "fleet": "inline",
        "tracking": {"enabled": False},
        **changes,
    }
