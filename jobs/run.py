"""Entry point for `ray job submit --working-dir . -- python jobs/run.py CONFIG [key=value ...]`.

The same as `rayfl run`; only the output folder differs, because the working directory of a job is a
copy that goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rayfl.cli import main


def keep_outputs() -> None:
    """Unless told otherwise, a job writes below the home directory of the head node."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        os.environ.setdefault("RAYFL_OUTPUT", str(Path.home() / "rayfl-outputs"))


if __name__ == "__main__":
    keep_outputs()
    main(["run", *sys.argv[1:]])
