"""From a study file to its cells, and from a cell and a seed to the configuration of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayfl.config.explain import explain_errors
from rayfl.config.files import apply_override, merge_settings, parse_file
from rayfl.config.shipped import find_base, find_file, kind_of, refuse_other_kind
from rayfl.errors import ConfigError, broken, suggest_nearest
from rayfl.study.schema import Choice, ChoiceKey, Score, Study, apply_changes, is_meant

Only = Mapping[str, Sequence[str]]
"""By axis, the names of the choices that are wanted."""


@dataclass(frozen=True)
class Cell:
    """One choice on every axis."""

    study: Study
    choices: Mapping[str, str]
    """The names of the choices by axis."""

    @property
    def chosen(self) -> dict[str, Choice]:
        """The choices by axis."""
        return {axis: self.study.axes[axis][name] for axis, name in self.choices.items()}

    @property
    def titles(self) -> dict[str, str]:
        """What a reader calls the choices."""
        return {axis: choice.title for axis, choice in self.chosen.items()}

    @property
    def label(self) -> str:
        """`FedAvg, MNIST, IID`, without axes that give no choice."""
        several = [axis for axis in self.choices if len(self.study.axes[axis]) > 1]
        return ", ".join(self.titles[axis] for axis in several or self.choices)

    @property
    def missing(self) -> str:
        """Why the study itself says that this cell cannot run."""
        reasons = [choice.missing for choice in self.chosen.values()]
        return "; ".join(filter(None, reasons))

    @property
    def computed(self) -> str | None:
        """The axis on which this cell is computed from others, where it is."""
        for axis, choice in self.chosen.items():
            if choice.parts:
                return axis
        return None

    @property
    def runs(self) -> bool:
        """Whether this cell is one to run."""
        return not self.missing and self.computed is None

    @property
    def scores(self) -> dict[str, Score]:
        """The study's scores, as this cell's choices replace them."""
        found = dict(self.study.scores)
        for choice in self.chosen.values():
            found |= choice.scores
        return found

    def parts(self) -> list[Cell]:
        """The cells that a computed cell is computed from."""
        axis = self.computed
        if axis is None:
            return []
        names = self.chosen[axis].parts
        return [Cell(self.study, {**self.choices, axis: name}) for name in names]

    def settings(self) -> dict[str, Any]:
        """The plain values of this cell's configuration, seed and output aside."""
        settings = self.study.common
        for choice in self.chosen.values():
            settings = apply_changes(settings, choice.set)
        for rule in self.study.rules:
            if is_meant(rule.when, self.choices):
                settings = apply_changes(settings, rule.set)
        return settings

    @property
    def key(self) -> ChoiceKey:
        """What tells it from the other cells."""
        return tuple(self.choices.values())


def load_study(path: Path) -> Study:
    """The study of a file, or of the name of one that comes with rayfl."""
    settings = read_study(find_file(path, "study"))
    try:
        return Study(**settings)
    except ValidationError as error:
        raise ConfigError(explain_errors(error, Study, settings, str(path))) from None
    except TypeError as error:
        raise ConfigError(f"{path}: keys are text; {error}") from None


def is_study(path: Path) -> bool:
    """Whether a YAML file is a study's, not a run's."""
    return kind_of(parse_file(path)) == "study"


def read_study(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The plain values of a study file on those of the study that it is `like`; the files that it
    names, by their whole paths.

    Parameters
    ----------
    above
        The files that led here by `like`."""
    path = path.expanduser().absolute()
    if path in above:
        chain = " -> ".join(map(str, (*above, path)))
        raise ConfigError(f"`like` must not lead back to itself; got {chain}")
    settings = parse_file(path)
    if not above:
        refuse_other_kind(settings, path, "study")
    like = settings.pop("like", None)
    if not isinstance(like, str | None):
        raise ConfigError(f"{path}: `like` is the name of a study file; got {like!r}")
    settings = _resolve_files(settings, path.parent)
    if like is None:
        return settings
    below = read_study(path.parent / like, (*above, path))
    return _merge_studies(below, settings)


def _resolve_files(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The files that a study names, as whole paths."""
    base = settings.get("base")
    if base is not None:
        names = [base] if isinstance(base, str) else base
        whole = [str(find_base(folder, str(name))) for name in names]
        settings = {**settings, "base": whole}
    printed = settings.get("printed")
    if isinstance(printed, Mapping) and isinstance(printed.get("file"), str):
        file = str(folder / printed["file"])
        settings = {**settings, "printed": {**printed, "file": file}}
    return settings


def _merge_studies(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One study's keys on another's. An axis is replaced as a whole, or taken away by null."""
    result = {**below, **above}
    for key in ("set", "printed", "scores", "table"):
        values = (below.get(key), above.get(key))
        if all(isinstance(value, Mapping) for value in values):
            result[key] = merge_settings(below[key], above[key])
    axes = dict(below.get("axes") or {})
    axes.update(above.get("axes") or {})
    result["axes"] = {axis: choices for axis, choices in axes.items() if choices is not None}
    return result


# -- which cells -----------------------------------------------------------------------------------


def list_cells(study: Study, only: Only | None = None) -> list[Cell]:
    """The product of the axes, without what is excluded or filtered out.

    Parameters
    ----------
    only
        By axis, the choices that are wanted. Cells that computed ones are computed from stay,
        whatever the filter says of them."""
    there = [cell for cell in _iterate_product(study) if not _is_excluded(cell)]
    wanted = [cell for cell in there if _is_admitted(cell, only or {})]
    # A difference needs both of its sides, whatever a filter leaves of them.
    keys = {part.key for cell in wanted for part in (cell, *cell.parts())}
    return [cell for cell in there if cell.key in keys]


def _iterate_product(study: Study) -> Iterator[Cell]:
    for names in itertools.product(*study.axes.values()):
        yield Cell(study, dict(zip(study.axes, names, strict=True)))


def _is_excluded(cell: Cell) -> bool:
    return any(is_meant(combination, cell.choices) for combination in cell.study.exclude)


def _is_admitted(cell: Cell, only: Only) -> bool:
    return all(cell.choices[axis] in names for axis, names in only.items())


def parse_filters(study: Study, words: Iterable[str]) -> dict[str, list[str]]:
    """`axis=a,b` words as a filter; several of one axis add up. `fedavg+ds` may be written for a
    title's spelling."""
    only: dict[str, list[str]] = {}
    for word in words:
        axis, equals, names = word.partition("=")
        axis = axis.strip()
        if not equals or not names.strip():
            rule = "a filter has the form axis=choice or axis=choice,choice"
            raise ConfigError(broken(rule, f"'{word}'"))
        if axis not in study.axes:
            rule = f"a filter names an axis ({', '.join(study.axes)})"
            raise ConfigError(broken(rule, axis, suggest_nearest(axis, study.axes)))
        chosen = [find_choice(study, axis, name.strip()) for name in names.split(",")]
        only.setdefault(axis, []).extend(chosen)
    return only


def find_choice(study: Study, axis: str, written: str) -> str:
    """The choice that a word means: its name, or its title in any case."""
    choices = study.axes[axis]
    if written in choices:
        return written
    # What people remember of a table is the title, not the name in the file.
    folded = written.casefold()
    titled = [name for name, choice in choices.items() if choice.title.casefold() == folded]
    if len(titled) == 1:
        return titled[0]
    rule = f"{axis} is one of {', '.join(choices)}"
    raise ConfigError(broken(rule, written, suggest_nearest(written, choices)))


def apply_overrides(settings: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Settings changed by `key=value` words."""
    result = dict(settings)
    for override in overrides:
        result = apply_override(result, override)
    return result
