"""The configurations that come with rayfl: where they lie, of which kind a file is, and how a name
finds one.

A wheel carries a copy of `configs/`; in a checkout they lie at its top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rayfl.errors import ConfigError, broken, suggest_nearest

Kind = Literal["run", "study", "sweep", "queue"]
FOLDER = "configs"

_MARKS: Mapping[Kind, frozenset[str]] = {
    "study": frozenset({"axes", "like"}),
    "sweep": frozenset({"search", "searcher", "at_once"}),
    "queue": frozenset({"queue"}),
}
"""Keys that files of one kind alone have."""

_FIRST: Mapping[Kind, tuple[str, ...]] = {
    "run": ("", "methods", "paper", "results"),
    "study": ("paper", "results"),
    "sweep": ("sweeps",),
    "queue": (),
}
"""Where a name is looked for first: `quickstart` is a run and a sweep."""

_RUN_MARKS = frozenset({"data", "clients", "partition", "noise", "model", "method", "training"})

_NAMES: Mapping[Kind, str] = {
    "run": "the configuration of one run",
    "study": "a study",
    "sweep": "a sweep",
    "queue": "a queue of studies",
}


@cache
def shipped_folder() -> Path:
    """Where the configurations that come with rayfl lie."""
    package = Path(__file__).resolve().parents[1]
    inside = package / FOLDER
    return inside if inside.is_dir() else package.parent / FOLDER


def list_shipped() -> list[str]:
    """Their names: paths below the folder without `.yaml`."""
    folder = shipped_folder()
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.yaml"))
    return sorted(path.as_posix() for path in paths)


def find_file(path: Path, kind: Kind) -> Path:
    """The file that is meant: one of one's own, or else one that comes with rayfl.

    Parameters
    ----------
    path
        A path; or `fedds_table4`, `paper/fedds_table4`, `configs/paper/fedds_table4.yaml`.
    kind
        What it is to be: among equal names, one of this kind is taken.

    Returns
    -------
    Path
        What was given, where nothing is found."""
    if path.exists():
        return path
    for candidate in _list_candidates(path, kind):
        if candidate.is_file():
            return candidate
    return path


def _list_candidates(path: Path, kind: Kind) -> Iterator[Path]:
    """Where a file that is not where it is said to be may lie."""
    suffixed = path.suffix in (".yaml", ".yml")
    if not suffixed:
        yield path.with_name(f"{path.name}.yaml")
    if path.is_absolute() or ".." in path.parts:
        return
    below = path if suffixed else path.with_name(f"{path.name}.yaml")
    folder = shipped_folder()
    if below.parts[0] == FOLDER or len(below.parts) > 1:
        yield folder / Path(*below.parts[below.parts[0] == FOLDER :])
    # `mine.yaml` is a file of one's own, which is not there.
    elif not suffixed:
        yield from (folder / place / below for place in _FIRST[kind])
        yield from sorted(folder.rglob(below.name))


def find_base(folder: Path, name: str) -> Path:
    """The file that a `base` names: beside the file that builds on it, or else one that comes with
    rayfl."""
    beside = folder / name
    if beside.exists():
        return beside
    found = find_file(Path(name), "run")
    return found if found.is_absolute() else beside


def suggest_file(path: Path) -> str:
    """What somebody may have meant who named a file that is not there."""
    known = {name.rpartition("/")[2]: name for name in list_shipped()}
    stem = path.stem if path.suffix in (".yaml", ".yml") else path.name
    hint = suggest_nearest(stem, known)
    if hint:
        return hint
    return "`rayfl configs` lists those that come with rayfl."


def kind_of(settings: Mapping[str, Any]) -> Kind:
    """Of which kind a file with these keys is."""
    for kind, marks in _MARKS.items():
        if marks & settings.keys():
            return kind
    return "run"


def refuse_other_kind(settings: Mapping[str, Any], path: Path, kind: Kind) -> None:
    """Say where a file belongs that was given to the wrong command.

    Parameters
    ----------
    settings
        What it says.
    path
        As it was written.
    kind
        What the command takes."""
    found = kind_of(settings)
    if found == kind:
        return
    # A study or a sweep without its own keys is no run either: then their schema speaks.
    if found == "run" and not settings.keys() & _RUN_MARKS:
        return
    article = "a" if found != "run" else "the configuration of a"
    rule = f"`rayfl {kind}` takes {_NAMES[kind]}"
    remedy = f"Give it to `rayfl {found} {path}`."
    raise ConfigError(broken(rule, f"{article} {found}, {path}", remedy))
