"""Symmetric cross-entropy and LogitClip under federated averaging: the conformance rows of
the two entries of the loss slot. Their numbers stand in tests/learn/losses."""

from __future__ import annotations

from typing import Any

from tests.algorithms.conformance import Row

# Logits of a norm of 1 cannot be sure: the loss stays large, and its gradient small.
CLIPPED = {"training": {"rounds": 10}}


def fedavg(loss: Any) -> dict[str, Any]:
    return {"name": "fedavg", "loss": loss}


ROWS = [
    Row(
        "fedavg_symce",
        fedavg("symce"),
        neutral=fedavg({"name": "symce", "alpha": 1.0, "beta": 0.0}),
        same_as=fedavg("ce"),
        refused=[
            ({"loss": {"name": "symce", "alpha": -1}}, "alpha"),
            ({"loss": {"name": "symce", "beta": -1}}, "beta"),
        ],
    ),
    Row(
        "fedavg_logitclip",
        fedavg("logitclip"),
        config=CLIPPED,
        neutral=fedavg({"name": "logitclip", "tau": None}),
        same_as=fedavg("ce"),
        refused=[
            ({"loss": {"name": "logitclip", "tau": 0.0}}, "tau"),
            ({"loss": {"name": "logitclip", "norm": 0.0}}, "norm"),
        ],
    ),
]
