"""Dataclasses that several methods share: for the states of `odd_states`, they are foreign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Borrowed:
    value: Any = 0
