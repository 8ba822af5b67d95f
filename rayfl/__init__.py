"""rayfl: federated learning with noisy labels, simulated on Ray.

>>> import rayfl
>>> settings = {"clients": 5, "training": {"rounds": 2}, "fleet": "inline"}
>>> result = rayfl.run(settings)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayfl.version import __version__

if TYPE_CHECKING:
    from rayfl.audit.story import audit
    from rayfl.config.schema import Config, load_config
    from rayfl.run.experiment import Result, run
    from rayfl.tuning import sweep

__all__ = ["Config", "Result", "__version__", "audit", "load_config", "run", "sweep"]

_HOMES = {
    "audit": "rayfl.audit.story",
    "Config": "rayfl.config.schema",
    "load_config": "rayfl.config.schema",
    "Result": "rayfl.run.experiment",
    "run": "rayfl.run.experiment",
    "sweep": "rayfl.tuning",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import rayfl` and the command line stay quick."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'rayfl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What a notebook completes: also what has not been imported yet."""
    return sorted({*globals(), *__all__})
