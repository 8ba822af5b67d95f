"""The normalisations that a network can be told to use; without torch, for those who only tell."""

from __future__ import annotations

from typing import Literal

Norm = Literal["batch", "group"]
