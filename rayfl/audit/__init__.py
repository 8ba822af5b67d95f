"""What says which clients and which labels of a federation are wrong; and, called, an audit.

As `rayfl.run` is, so the room can be called like the function that it stands above."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _AuditRoom(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Audit one federation: see `rayfl.audit.story.audit`."""
        from rayfl.audit.story import audit

        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _AuditRoom
