"""Pins of the lowest versions that pyproject.toml admits: `lowest.py pyproject.toml torch ray`."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def list_lowest(project: Path, names: list[str]) -> list[str]:
    """A pin for each package, in the order of the names.

    Parameters
    ----------
    project
        A pyproject.toml, whose requirements are lines of their own.
    names
        The packages."""
    found = dict(re.findall(r'"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)', project.read_text()))
    # 2.4 means any 2.4: the first release of it may lack a build that a later one has.
    return [f"{name}=={found[name]}.*" for name in names]


if __name__ == "__main__":
    print("\n".join(list_lowest(Path(sys.argv[1]), sys.argv[2:])))
