"""Facts of the code, the libraries and the machine that bits and speed depend on."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

import numpy as np


def library_versions() -> dict[str, str]:
    """The libraries whose kernels decide bits."""
    # torch's own word, which names its build; to import torch for it would take a second and 250
    # MB.
    [folder] = find_spec("torch").submodule_search_locations  # type: ignore[union-attr, misc]
    torch = run_path(str(Path(folder, "version.py")))["__version__"]
    return {"python": sys.version.split()[0], "numpy": np.__version__, "torch": torch}


def git_commit() -> str:
    """The commit of the working directory, with a plus where it was changed; or `none`."""
    words = ["git", "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return found.stdout.strip()


def describe_machine() -> dict[str, str]:
    """What the system is; its name is hashed."""
    facts = [platform.machine(), platform.system(), f"{os.cpu_count()} cores"]
    host = hashlib.sha256(platform.node().encode())
    return {"machine": ", ".join(facts), "host": host.hexdigest()[:8]}
