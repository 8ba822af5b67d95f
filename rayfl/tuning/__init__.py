"""Sweeps: one search over settings, every trial a run of its own, on Ray Tune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfl.tuning.driver import sweep

__all__ = ["sweep"]


def __getattr__(name: str) -> Any:
    """Ray is imported by those who start a sweep, not by those who look at one."""
    if name != "sweep":
        raise AttributeError(f"module 'rayfl.tuning' has no attribute '{name}'")
    from rayfl.tuning.driver import sweep

    return sweep
