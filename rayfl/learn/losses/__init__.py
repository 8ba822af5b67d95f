"""Losses, one a file: pure functions of tensors, and the entries of the loss slot.

Unless the loss is a property of the whole batch the functions return one value an image; the caller
averages. No torch here: each is imported from its own file.
"""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.learn.losses.base import SampleLoss

LOSSES: Registry[SampleLoss] = Registry(
    "loss",
    {
        "ce": "rayfl.learn.losses.base:CrossEntropy",
    },
)
"""What `method.loss` can name."""
