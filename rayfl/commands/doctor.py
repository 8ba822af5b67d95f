"""`rayfl doctor`: what is wrong with this installation, and what to do."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "ray",
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "pyarrow",
    "mlflow",
    "pydantic",
    "safetensors",
)
FREE_GB = 2.0


@dataclass(frozen=True)
class Check:
    """One finding."""

    what: str
    good: bool
    found: str
    remedy: str = ""


def checks(output: Path, address: str | None) -> Iterator[Check]:
    """All checks, each as soon as it is done."""
    yield Check(
        "python",
        sys.version_info >= (3, 10),
        sys.version.split()[0],
        "" if sys.version_info >= (3, 10) else "Use 3.10 or newer.",
    )
    for name in PACKAGES:
        yield package(name)
    yield guarded(
        "torch", torch_works, "Reinstall: pip install --force-reinstall torch torchvision"
    )
    yield disk(output)
    yield guarded(
        "mlflow store",
        lambda: store(output),
        "Set tracking.uri, or move the store away: it may be of a newer MLflow.",
    )
    yield guarded(
        "ray",
        lambda: cluster(address),
        "See the message; for a cluster check --address and its version of Ray.",
    )


def guarded(what: str, look: Callable[[], str], remedy: str) -> Check:
    """A check whose failure is its finding."""
    try:
        return Check(what, True, look())
    except Exception as error:
        from rayfl.config.schema import mask

        first = mask(str(error)).partition("\n")[0]
        return Check(what, False, f"{type(error).__name__}: {first}", remedy)


def package(name: str) -> Check:
    try:
        return Check(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", f"pip install {name}")


def torch_works() -> str:
    """The import of torchvision is what fails when the two do not fit."""
    import torch
    import torchvision  # noqa: F401

    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return f"works with torchvision; {torch.get_num_threads()} threads; GPUs: {', '.join(gpus) or 'none'}"


def disk(output: Path) -> Check:
    place = next(path for path in (output, *output.parents) if path.exists())
    free = shutil.disk_usage(place).free / 1e9
    if not os.access(place, os.W_OK):
        return Check("disk", False, f"{place} is not writable", "Set output to another folder.")
    return Check(
        "disk",
        free > FREE_GB,
        f"{free:.1f} GB free at {place}",
        "" if free > FREE_GB else "Free some space.",
    )


def store(output: Path) -> str:
    """Whether the tracking store answers."""
    from rayfl.config.schema import mask
    from rayfl.tracking.tracker import default_uri, quiet_client

    uri = os.environ.get("MLFLOW_TRACKING_URI") or default_uri(output)
    experiments = quiet_client(uri).search_experiments()
    return f"{mask(uri)}: {len(experiments)} experiments"


def cluster(address: str | None) -> str:
    """Whether Ray starts, and what it has."""
    from rayfl.fleet.on_ray.connection import connected
    from rayfl.fleet.on_ray.coordinator import cluster_facts

    with connected(address):
        return cluster_facts()
