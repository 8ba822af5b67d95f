"""What makes a run; and, called, the run itself.

Users write `rayfl.run(config)`. Importing anything in this room puts the room at `rayfl.run`, over
the function of that name, so the room can be called like it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one configuration: see `rayfl.run.experiment.run`."""
        from rayfl.run.experiment import run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableRoom
