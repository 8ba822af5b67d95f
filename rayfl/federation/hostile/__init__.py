"""Hostile clients: who they are, and what they do to their labels, their images and what they send.

A method cannot see who is hostile. The scenario knows, and says so in its facts."""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.federation.hostile.base import Attack, Hostility, draw_attack

HOSTILITIES: Registry[Hostility] = Registry(
    "hostility",
    {
        "label_flip": "rayfl.federation.hostile.label_flip:LabelFlip",
        "sign_flip": "rayfl.federation.hostile.updates:SignFlip",
        "scaled": "rayfl.federation.hostile.updates:Scaled",
        "gaussian": "rayfl.federation.hostile.updates:GaussianUpdate",
        "backdoor": "rayfl.federation.hostile.backdoor:Backdoor",
    },
)
"""What `hostile` can name."""

__all__ = ["HOSTILITIES", "Attack", "Hostility", "draw_attack"]
