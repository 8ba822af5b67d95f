"""Facts of the code, the libraries and the machine that bits and speed depend on."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

import numpy as np

from rayfl.bits import is_portable
from rayfl.version import __version__

PACKAGE = Path(__file__).resolve().parents[1]


def library_versions() -> dict[str, str]:
    """The libraries whose kernels decide bits."""
    # torch's own word, which names its build; to import torch for it would take a second and 250
    # MB.
    [folder] = find_spec("torch").submodule_search_locations  # type: ignore[union-attr, misc]
    torch = run_path(str(Path(folder, "version.py")))["__version__"]
    return {"python": sys.version.split()[0], "numpy": np.__version__, "torch": torch}


def git_commit() -> str:
    """The commit of the working directory, with a plus where it was changed; or `none`."""
    return ask_git(["describe", "--always", "--abbrev=12", "--dirty=+"]) or "none"


@lru_cache(maxsize=1)
def code_commit() -> str:
    """The commit of the code that runs, with a plus where that was changed; `none` for a wheel.

    Asked once: a process goes on with what it has imported. Files outside of the package do not
    count, for results are written beside it all the time."""
    commit = ask_git(["rev-parse", "--short=12", "HEAD"], PACKAGE)
    if commit is None or ask_git(["ls-files", "version.py"], PACKAGE) == "":
        return "none"
    changed = ask_git(["status", "--porcelain", "--untracked-files=no", "--", "."], PACKAGE)
    return f"{commit}+" if changed else commit


def is_same_code(commit: str) -> bool | None:
    """Whether the code of a commit is the code that runs, where both are known to git here."""
    if commit.endswith("+") or code_commit().endswith("+"):
        return None
    changed = ask_git(["diff", "--name-only", commit, "HEAD", "--", "."], PACKAGE)
    return None if changed is None else not changed


def ask_git(words: list[str], folder: Path | None = None) -> str | None:
    """What git says, or None where it is not there or refuses."""
    try:
        found = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def describe_machine() -> dict[str, str]:
    """What the system is; its name is hashed."""
    facts = [platform.machine(), platform.system(), f"{os.cpu_count()} cores"]
    host = hashlib.sha256(platform.node().encode())
    return {"machine": ", ".join(facts), "host": host.hexdigest()[:8]}


def describe_environment() -> dict[str, str]:
    """What the bits and the seconds of a run stand on, as far as it is known without torch."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = ""
    return {
        "commit": code_commit(),
        "rayfl": __version__,
        **library_versions(),
        "ray": ray,
        **describe_machine(),
    }


def cpu_capability() -> str:
    """The vector instructions that torch's kernels use here: two machines with different ones
    round differently, unless all their kernels are portable ones."""
    # Imported here: places that never compute do without.
    import torch

    found = str(torch.backends.cpu.get_cpu_capability())
    return f"{found}, portable" if is_portable() else found
