"""Which datasets are known, which of them are here, and where the others can be had."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rayfl.errors import ConfigError, DataError
from rayfl.federation.datasets import DATASETS
from rayfl.federation.datasets.on_disk import OnDisk, find_file
from rayfl.federation.sources import Debian, find_origin

State = Literal["always here", "here", "to fetch", "by hand", "your own", "not available"]


class Availability(NamedTuple):
    """What is known of one dataset."""

    name: str
    about: str
    state: State
    source: str
    """Where it lies, or the command that brings it."""


def list_availability(root: Path) -> list[Availability]:
    """All datasets by name.

    Parameters
    ----------
    root
        The folder of all datasets."""
    return [_find_availability(name, root) for name in DATASETS.names()]


def _find_availability(name: str, root: Path) -> Availability:
    try:
        cls = DATASETS.find(name)
    except ConfigError as error:
        return Availability(name, "", "not available", str(error))
    about = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    if not issubclass(cls, OnDisk):
        return Availability(name, about, "always here", "needs no files")
    # What must be told by whoever uses it has no files of a name.
    settings = {"dataset": "pathmnist"} if name == "medmnist" else {}
    return Availability(
        name, about, *_locate(name, DATASETS.build({"name": name, **settings}), root)
    )


def _locate(name: str, part: Any, root: Path) -> tuple[State, str]:
    """Whether a dataset lies below the root, and what to do if not."""
    if name == "medmnist":
        return "to fetch", "rayfl data get pathmnist, and so on: each has a name of its own"
    origin = find_origin(part)
    if not part.sourced and not origin.hint:
        return "your own", f"data: {{name: {name}, path: FOLDER}}"
    place = part.where(root)
    if _is_here(part, place):
        return "here", str(place)
    if not part.sourced:
        return "by hand", f"{origin.hint}rayfl data get {name} --from ARCHIVE"
    return "to fetch", f"rayfl data get {name}  ({_name_source(part)})"


def _is_here(part: Any, place: Path) -> bool:
    """Whether there is something; `rayfl data describe` reads it and tells whether it is whole."""
    file = getattr(part, "file", None)
    if isinstance(file, str):
        return find_file(place, file) is not None
    return place.is_dir() and any(place.iterdir())


def _name_source(part: OnDisk) -> str:
    """Where `rayfl data get` takes it from first."""
    origin = find_origin(part)
    if origin.package is not None and origin.packaged:
        kind = "Debian's" if isinstance(origin.package, Debian) else "npm's"
        return f"{kind} package {origin.package.package}"
    if origin.web:
        return origin.web[0].url
    raise DataError(f"{part.folder} has no known source")
