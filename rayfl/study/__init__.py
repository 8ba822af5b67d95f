"""Studies: a table of a paper as a base configuration, axes, and the printed figures to put beside
ours; called, one of them is run.

Users write `rayfl.study(file)`. Importing anything in this room puts the room at `rayfl.study`,
over the function of that name, so the room can be called like it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableStudies(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a study: see `rayfl.study.whole.study`."""
        from rayfl.study.whole import study

        return study(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableStudies
