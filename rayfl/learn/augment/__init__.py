"""Augmentation of whole batches of raw images, on the device where they lie, seeded by the caller's
generator."""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.learn.augment.base import Augmentation

AUGMENTATIONS: Registry[Augmentation] = Registry(
    "augmentation",
    {
        "none": "rayfl.learn.augment.base:Unchanged",
        "crop_flip": "rayfl.learn.augment.crop:CropFlip",
        "resize_crop": "rayfl.learn.augment.resize:ResizeCrop",
        "contrastive": "rayfl.learn.augment.views:Contrastive",
        "weak": "rayfl.learn.augment.views:Weak",
        "strong": "rayfl.learn.augment.strong:Strong",
    },
)

__all__ = ["AUGMENTATIONS", "Augmentation"]
