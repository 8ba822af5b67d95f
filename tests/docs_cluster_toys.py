"""What the tests of docs cluster share."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.reliability.drills import ROOT

PAGE = (ROOT / "docs" / "cluster.md").read_text()


FILES = ROOT / "docs" / "cluster"


BLOCKS = re.findall(r"^```bash\n(# .*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)


COMMANDS = [line for _, body in BLOCKS for line in body.splitlines()]


def command(*beginning: str) -> str:
    """The command of the page that begins so and says this."""
    first, *rest = beginning
    (found,) = [
        str(line)
        for line in COMMANDS
        if line.startswith(first) and all(part in line for part in rest)
    ]
    return found


# -- what the programs take ----------------------------------------------------------------------


BATCH_FILES = ["symmetric.sbatch", "classic.sbatch"]


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / name).read_text())
    return found
