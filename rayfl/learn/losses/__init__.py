"""Losses of the methods, one a file: pure functions of tensors, and the components of the slot
`loss`.

Unless the loss is a property of the whole batch they return one value a sample; the caller
averages. Functions are imported from their own files, so that naming a loss in a configuration
loads no torch."""

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
)

__all__ = ["LOSSES", "CrossEntropy", "SampleLoss"]
