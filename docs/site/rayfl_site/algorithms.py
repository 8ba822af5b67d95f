"""Algorithms as papers print them, line by line, each beside the code that does it and the setting
that governs it: the files `docs/site/algorithms/NAME.yaml`."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rayfl.algorithms import METHODS
from rayfl.component import Registry, fields_of, slots_of
from rayfl.config.schema import Config
from rayfl_site import HERE, ROOT

ALGORITHMS = HERE / "algorithms"
MOST_LINES = 120
"""Of the source of one function or class."""


@dataclass(frozen=True)
class Line:
    """A line of an algorithm; its indentation is part of the text."""

    text: str
    code: tuple[str, ...] = ()
    """What does it: `module:qualified.name` each."""
    setting: tuple[str, ...] = ()
    """What governs it: dotted settings of a run, those of the method below `method`."""


@dataclass(frozen=True)
class AlgorithmText:
    """What a paper prints."""

    source: str
    """Where it is printed."""
    lines: tuple[Line, ...]

    @property
    def codes(self) -> list[str]:
        """All code that it names, each once."""
        return list(dict.fromkeys(code for line in self.lines for code in line.code))


@dataclass(frozen=True)
class Source:
    """Where some code stands, and what it says."""

    path: str
    line: int
    text: str


def read_algorithm(name: str, folder: Path = ALGORITHMS) -> AlgorithmText | None:
    """The algorithm of a method; None where nobody has written it down."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        return None
    told = yaml.safe_load(path.read_text(encoding="utf-8"))
    lines = [
        Line(str(line["text"]), _list_words(line.get("code")), _list_words(line.get("setting")))
        for line in told["lines"]
    ]
    return AlgorithmText(str(told["source"]), tuple(lines))


def _list_words(told: str | Sequence[str] | None) -> tuple[str, ...]:
    """What may be written alone, or as a list."""
    if told is None:
        return ()
    return (told,) if isinstance(told, str) else tuple(told)


# -- code ------------------------------------------------------------------------------------------


def find_code(path: str) -> Any:
    """The object at `module:qualified.name`."""
    module, _, names = path.partition(":")
    return functools.reduce(getattr, names.split("."), importlib.import_module(module))


def locate_code(path: str) -> Source:
    """The file of some code, its line there, and its text."""
    found = find_code(path)
    found = getattr(found, "fget", None) or getattr(found, "func", None) or found
    if not (inspect.isroutine(found) or inspect.isclass(found)):
        return _locate_assignment(path)
    lines, line = inspect.getsourcelines(inspect.unwrap(found))
    home = Path(inspect.getsourcefile(inspect.unwrap(found)) or "")
    more = [] if len(lines) <= MOST_LINES else ["# ...\n"]
    text = inspect.cleandoc("\n" + "".join(lines[:MOST_LINES] + more))
    return Source(home.relative_to(ROOT).as_posix(), line, text)


def _locate_assignment(path: str) -> Source:
    """Where a value that is neither function nor class is given its name."""
    module, _, names = path.partition(":")
    home = Path(importlib.import_module(module).__file__ or "")
    name = re.escape(names.rpartition(".")[2])
    lines = home.read_text(encoding="utf-8").splitlines()
    numbers = [at for at, line in enumerate(lines, 1) if re.match(rf"\s*{name}\s*[:=]", line)]
    line = numbers[0] if numbers else 1
    return Source(home.relative_to(ROOT).as_posix(), line, lines[line - 1].strip())


# -- settings --------------------------------------------------------------------------------------


def has_setting(setting: str, method: str) -> bool:
    """Whether a run of a method has this dotted setting.

    Parameters
    ----------
    setting
        Such as `training.epochs`, or `method.k` of the method's own.
    method
        Its name.
    """
    first, *rest = setting.split(".")
    if first == "method":
        return not rest or _has_words(METHODS.find(method), rest)
    return _has_words(Config, [first, *rest])


def _has_words(owner: Any, words: Sequence[str]) -> bool:
    first, *rest = words
    field = fields_of(owner).get(first)
    if field is None or not rest:
        return field is not None
    if (registry := slots_of(owner).get(first)) is not None:
        return any(_has_words(cls, rest) for cls in _list_classes(registry))
    return any(_has_words(inner, rest) for inner in _list_types(field.annotation))


def _list_classes(registry: Registry[Any]) -> Iterator[type[Any]]:
    """What may stand in a slot; an entry that cannot be imported has no settings to look at."""
    for name in registry.entries:
        yield registry.find(name)


def _list_types(annotation: Any) -> Iterator[type[Any]]:
    """The classes within an annotation."""
    if isinstance(annotation, type):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _list_types(inner)


# -- what is wrong ---------------------------------------------------------------------------------


def list_faults(name: str, folder: Path = ALGORITHMS) -> list[str]:
    """What is wrong with the algorithm of a method, a sentence each."""
    algorithm = read_algorithm(name, folder)
    if algorithm is None:
        return [f"{name}: there is no {name}.yaml"]
    faults = [] if algorithm.source.strip() else [f"{name}: the source is empty"]
    if not algorithm.lines:
        faults.append(f"{name}: there are no lines")
    for number, line in enumerate(algorithm.lines, 1):
        faults += [f"{name}, line {number}: {fault}" for fault in _list_line_faults(line, name)]
    return faults


def _list_line_faults(line: Line, method: str) -> Iterator[str]:
    if not line.text.strip():
        yield "the text is empty"
    for code in line.code:
        try:
            locate_code(code)
        except (ImportError, AttributeError, ValueError, OSError) as error:
            yield f"no code is {code!r} ({error})"
    for setting in line.setting:
        if not has_setting(setting, method):
            yield f"no setting is {setting!r}"
