"""The peers' own virtual environments, made on first use.

Each holds the peer and all that it asks for, in the versions that it asks for, but PyTorch: a path
file behind its own packages leads to the PyTorch that rayfl uses, so that all systems compute with
the same kernels."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from speed_suite.workloads import cache

REQUIREMENTS = {
    "flower": ["flwr[simulation]>=1.20"],
    "pfl": ["pfl>=0.4", "setuptools<81"],
}
LINK = "zz_torch_of_rayfl.pth"


class Unavailable(Exception):
    """A peer that could not be installed."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    folder = cache() / "venvs" / f"{peer}-py{sys.version_info.major}{sys.version_info.minor}"
    interpreter = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        made(folder, REQUIREMENTS[peer])
    return interpreter


def made(folder: Path, requirements: list[str]) -> None:
    interpreter = folder / "bin" / "python"
    print(f"making {folder} with {' '.join(requirements)}", file=sys.stderr, flush=True)
    called([sys.executable, "-m", "venv", "--clear", str(folder)])
    called(
        [
            str(interpreter),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *requirements,
        ]
    )
    purelib = called(
        [str(interpreter), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    ).strip()
    # Behind everything that the peer brought itself: only what it lacks is found there.
    (Path(purelib) / LINK).write_text(sysconfig.get_path("purelib") + "\n")
    called([str(interpreter), "-c", "import torch, torchvision"])
    (folder / ".ready").touch()


def called(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
