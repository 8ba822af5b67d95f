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
    from rayfl.run.comparison import Comparison, compare
    from rayfl.run.experiment import Result, run
    from rayfl.run.loading import load
    from rayfl.study.result import StudyResult
    from rayfl.study.whole import study
    from rayfl.tuning import sweep
    from rayfl.tuning.result import SweepResult

__all__ = [
    "Comparison",
    "Config",
    "Result",
    "StudyResult",
    "SweepResult",
    "__version__",
    "audit",
    "compare",
    "load",
    "load_config",
    "run",
    "study",
    "sweep",
]

_HOMES = {
    "Comparison": "rayfl.run.comparison",
    "audit": "rayfl.audit.story",
    "Config": "rayfl.config.schema",
    "Result": "rayfl.run.result",
    "StudyResult": "rayfl.study.result",
    "SweepResult": "rayfl.tuning.result",
    "compare": "rayfl.run.comparison",
    "load": "rayfl.run.loading",
    "load_config": "rayfl.config.schema",
    "run": "rayfl.run.experiment",
    "study": "rayfl.study.whole",
    "sweep": "rayfl.tuning",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import rayfl` and the command line stay quick."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'rayfl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What a notebook completes: all that is public, imported or not."""
    return sorted(__all__)
