"""Paths in a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

# Absolute at once: a tuning trial or a job runs in another directory than the one that the path was
# written for.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
