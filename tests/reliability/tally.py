"""What a drill came to, as a file that a page can be made of: `docs/reliability/NAME.json`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rayfl.durable import write_file
from rayfl.run.environment import describe_environment

FOLDER = Path(__file__).parents[2] / "docs" / "reliability"


def write_tally(
    name: str,
    promise: str,
    drill: str,
    tried: int,
    survived: int,
    details: dict[str, Any],
    folder: Path = FOLDER,
) -> Path:
    """Write a drill's result.

    Parameters
    ----------
    name : str
        The file's name, without its end.
    promise : str
        What was tried, in a sentence.
    drill : str
        The command that tries it again.
    tried, survived : int
        How often, and how often the promise was kept.
    details : dict
        Whatever else the drill has measured.
    folder : Path
        Where it goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "promise": promise,
        "drill": drill,
        "tried": tried,
        "survived": survived,
        "day": time.strftime("%Y-%m-%d"),
        "machine": describe_environment(),
        "details": details,
    }
    path = folder / f"{name}.json"
    write_file(path, json.dumps(facts, indent=1) + "\n")
    return path
