"""A module that the methods of `traps` do not inherit from."""

from __future__ import annotations

from dataclasses import dataclass

from rayfl.protocol import Ref


@dataclass(frozen=True)
class Elsewhere:
    """A state's class that lives here."""

    model: Ref
