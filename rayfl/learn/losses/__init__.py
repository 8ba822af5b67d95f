"""Losses, one a file: pure functions of tensors, and the entries of the loss slot.

Unless the loss is a property of the whole batch the functions return one value an image; the caller
averages. No torch here: each is imported from its own file.
"""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.learn.losses.base import CrossEntropy, SampleLoss

LOSSES: Registry[SampleLoss] = Registry(
    "loss",
    {
        "ce": "rayfl.learn.losses.base:CrossEntropy",
        "gce": "rayfl.learn.losses.gce:GeneralisedCrossEntropy",
        "symce": "rayfl.learn.losses.symmetric_ce:SymmetricCrossEntropy",
        "logitclip": "rayfl.learn.losses.logit_clip:LogitClip",
    },
    plugins="rayfl.losses",
)
"""What `method.loss` can name."""

__all__ = ["LOSSES", "CrossEntropy", "SampleLoss"]
