"""Pins of the lowest versions that pyproject.toml admits and this interpreter can have:
`lowest.py pyproject.toml torch ray`."""

from __future__ import annotations

import re
import subprocess
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
    return [pin_lowest(name, found[name]) for name in names]


def pin_lowest(name: str, bound: str) -> str:
    """The series of the first release from a bound on that has a build for this interpreter."""
    command = [sys.executable, "-m", "pip", "index", "versions", name]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in told.splitlines() if line.startswith("Available versions:")]
    releases = [split_version(each) for each in line.partition(":")[2].split(",")]
    lowest = min(each for each in releases if each >= split_version(bound))
    # 2.4 means any 2.4: the first release of it may lack a build that a later one has.
    return f"{name}=={lowest[0]}.{lowest[1]}.*"


def split_version(text: str) -> tuple[int, ...]:
    """What releases are compared by; builds of before a release are not listed."""
    return tuple(int(part) for part in re.findall(r"\d+", text.strip())[:3])


if __name__ == "__main__":
    print("\n".join(list_lowest(Path(sys.argv[1]), sys.argv[2:])))
