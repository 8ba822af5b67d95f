"""Paths in a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from rayfl.component import show_value
from rayfl.errors import broken

_LONGEST_PATH = 4096
"""What systems take."""


def make_absolute(path: Path) -> Path:
    """A path that means the same wherever a process stands."""
    if len(str(path)) > _LONGEST_PATH:
        raise ValueError(broken(f"a path has at most {_LONGEST_PATH} letters", "more"))
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        rule = "~NAME stands for the home of somebody who has one"
        raise ValueError(broken(rule, show_value(str(path)))) from error


def _refuse_uri(given: Any) -> Any:
    """A path would make another thing of it, and hide what is in it from nobody."""
    if isinstance(given, str) and "://" in given:
        raise ValueError(broken("this is a folder of this machine, not a URI", show_value(given)))
    return given


# Absolute at once: a tuning trial or a job runs in another directory than the one that the path was
# written for.
AbsolutePath = Annotated[
    Path, BeforeValidator(lambda given: _refuse_uri(given)), AfterValidator(make_absolute)
]
