"""A federation on which FedCR and what is built on it learn in a few rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOY: Mapping[str, Any] = {
    "split": {"labelled": {"per_class": 40}},
    "noise": "none",
    "labelled_noise": {"name": "symmetric", "rate": 0.3},
    "training": {"optimizer": "adam", "lr": 0.005, "momentum": 0.0, "drop_last": True},
}

BRIEF: Mapping[str, Any] = {"split": {"labelled": {"per_class": 8}}}
"""The server trains on a fifth of the images where it need not learn."""

SMALL: Mapping[str, Any] = {
    "projector_hidden": 32,
    "projector_out": 16,
    # the toy's classes are patterns that must stay in place
    "views": {"name": "contrastive", "flip": 0.0, "scale": [0.8, 1.0], "greyscale": 0.0},
}

ONE_ROUND = {"pretraining": 5, "server_epochs": 5, "strength": 4.0}
