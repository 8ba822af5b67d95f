"""`rayfl doctor`: what is wrong with this installation, and what to do."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from rayfl.commands.json_output import print_json
from rayfl.secrets import describe_error, mask_secrets

PACKAGES = (
    "ray",
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "pyarrow",
    "mlflow",
    "psutil",
    "pydantic",
    "safetensors",
)
FREE_GB = 2.0
TORCH_REMEDY = "Reinstall: pip install --force-reinstall torch torchvision"
STORE_REMEDY = "Set tracking.uri, or move the store away: it may be of a newer MLflow."
RAY_REMEDY = "See the message; for a cluster check --address and its version of Ray."


@dataclass(frozen=True)
class Check:
    """One finding."""

    what: str
    good: bool
    found: str
    remedy: str = ""


def run_checks(output: Path, address: str | None) -> Iterator[Check]:
    """All checks, each as soon as it is done.

    Parameters
    ----------
    output
        The folder that runs write to, with their tracking store.
    address
        A Ray cluster to look at; None for one of our own."""
    yield _check_python()
    for name in PACKAGES:
        yield check_package(name)
    yield guard_check("torch", _check_torch, TORCH_REMEDY)
    yield check_disk(output)
    yield guard_check("mlflow store", lambda: check_store(output), STORE_REMEDY)
    yield guard_check("ray", lambda: _check_cluster(address), RAY_REMEDY)


def print_checks(output: Path, address: str | None, as_json: bool) -> int:
    """Carry out all checks and print each as soon as it is done; how many things are wrong."""
    found = []
    for check in run_checks(output, address):
        found.append(check)
        if as_json:
            continue
        click.echo(f"{'ok  ' if check.good else 'BAD '} {check.what:16} {check.found}")
        if check.remedy:
            click.echo(f"     {'':16} -> {check.remedy}")
    if as_json:
        print_json([asdict(check) for check in found])
    return sum(not check.good for check in found)


def guard_check(
    what: str,
    look: Callable[[], str],
    remedy: str,
) -> Check:
    """A check whose failure is its finding."""
    try:
        return Check(what, True, look())
    except Exception as error:
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        kind = type(error).__name__
        said = describe_error(error, uri)
        return Check(what, False, kind if said == kind else f"{kind}: {said}", remedy)


def _check_python() -> Check:
    good = sys.version_info >= (3, 10)
    remedy = "" if good else "Use 3.10 or newer."
    return Check("python", good, sys.version.split()[0], remedy)


def check_package(name: str) -> Check:
    """Whether a package is there, and in which version."""
    try:
        return Check(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", f"pip install {name}")


def _check_torch() -> str:
    """The import of torchvision is what fails when the two do not fit."""
    import torch
    import torchvision  # noqa: F401

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.cuda.get_device_name(number) for number in range(count)]
    threads = torch.get_num_threads()
    return f"works with torchvision; {threads} threads; GPUs: {', '.join(gpus) or 'none'}"


def check_disk(output: Path) -> Check:
    """Whether there is room where runs write to."""
    # The folder itself may be made by the first run.
    place = next(path for path in (output, *output.parents) if path.exists())
    if not os.access(place, os.W_OK):
        return Check("disk", False, f"{place} is not writable", "Set output to another folder.")
    free = shutil.disk_usage(place).free / 1e9
    good = free > FREE_GB
    remedy = "" if good else "Free some space."
    return Check("disk", good, f"{free:.1f} GB free at {place}", remedy)


def check_store(output: Path) -> str:
    """Whether the tracking store answers."""
    from rayfl.tracking.store import choose_uri, open_client

    uri = choose_uri(output)
    experiments = open_client(uri).search_experiments()
    return f"{mask_secrets(uri)}: {len(experiments)} experiments"


def _check_cluster(address: str | None) -> str:
    """Whether Ray starts, and what it has."""
    from rayfl.fleet.on_ray.connection import connect_ray
    from rayfl.fleet.on_ray.coordinator import describe_cluster

    with connect_ray(address):
        return describe_cluster()
