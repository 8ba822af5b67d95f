"""YAML of anybody's, read in bounded time and memory.

A text is looked through before anything is made of it: how deep it is, and how large once every
alias is written out. What passes is read by the safe loader, which makes plain values only."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from rayfl.component import show_value

MOST_NODES = 150_000
"""Keys, values, mappings and lists, with all aliases written out."""
MOST_DEPTH = 100
_MARKS = ",:[{?-\n"
_OPENINGS = ("[", "{", "- ", "? ")
_MOST_OPENINGS = 2000
_MOST_DIGITS = 200
"""Letters of a number. Python takes quadratic time for the digits of larger ones."""
_MOST_ODD_KEYS = 1000
"""Keys of one mapping that are no text: numbers can be chosen so that all fall into one place of a
hash table."""

_ERRORS = (
    yaml.YAMLError,
    # A tag on a value that it does not fit, such as `!!timestamp 9`, surfaces as any of these.
    ValueError,
    AttributeError,
    LookupError,
    TypeError,
)


class BadYamlError(ValueError):
    """What is wrong with a text, in one line."""


def load_yaml(text: str) -> Any:
    """The plain values of a text, or a BadYamlError."""
    try:
        with _pause_collector():
            if _may_be_immense(text):
                _check_size(text)
            return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        raise BadYamlError(_phrase_marked(error)) from None
    except RecursionError:
        raise BadYamlError("mappings and lists lie too deep in each other") from None
    except _ERRORS as error:
        first = str(error).strip().splitlines()[:1]
        raise BadYamlError(first[0][:200] if first else type(error).__name__) from None


@contextmanager
def _pause_collector() -> Iterator[None]:
    """Thousands of new objects would make Python's collector look, again and again, through all
    that the process has imported: half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _phrase_marked(error: yaml.MarkedYAMLError) -> str:
    """The problem and its place, without the text around it."""
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    said = " ".join(str(part) for part in (error.context, error.problem) if part)
    return f"{said[:200]}{place}"


def _may_be_immense(text: str) -> bool:
    """Whether to look through a text, which takes as long as to read it.

    Every value but the first has a mark before it, only aliases can make more of them, and what
    lies deep has as many openings before it, or else is indented and therefore long."""
    values = sum(map(text.count, _MARKS))
    openings = sum(map(text.count, _OPENINGS))
    return "*" in text or values >= MOST_NODES or openings >= _MOST_OPENINGS


def _check_size(text: str) -> None:
    """Refuse a text that is too deep, or too large once its aliases are written out."""
    total = 0
    sizes: dict[str | None, int] = {}
    begun: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=_StrictLoader):
        if isinstance(event, yaml.AliasEvent):
            total += _size_of_alias(event, sizes, begun)
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            total += 1
        if len(begun) > MOST_DEPTH:
            raise yaml.YAMLError(f"mappings and lists lie at most {MOST_DEPTH} deep")
        if total > MOST_NODES:
            rule = f"a text has at most {MOST_NODES:,} keys and values"
            raise yaml.YAMLError(f"{rule}, with what its aliases stand for")


def _size_of_alias(
    alias: yaml.AliasEvent, sizes: dict[str | None, int], begun: list[tuple[str | None, int]]
) -> int:
    if any(alias.anchor == anchor for anchor, _ in begun):
        raise yaml.YAMLError(f"the alias {show_value(alias.anchor)} lies within what it stands for")
    # One that stands for nothing is refused by the loader, with its place.
    return sizes.get(alias.anchor, 1)


# The parser in C is ten times as quick, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """Safe YAML that refuses a key written twice and reads 1e-3 as the number it is."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        odd = 0
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                line = node.start_mark.line + 1
                said = f"the key {show_value(key.value)} is written twice, line {line}"
                raise yaml.YAMLError(said)
            # Keys may be whole sequences, which have no hash; YAML itself refuses them.
            seen.update([key.value] if isinstance(key.value, str) else [])
            odd += key.tag != "tag:yaml.org,2002:str"
        if odd > _MOST_ODD_KEYS:
            raise yaml.YAMLError(f"at most {_MOST_ODD_KEYS:,} keys of a mapping are no text")
        return dict(super().construct_mapping(node, deep=deep))

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """A whole number or another one, of bounded length."""
        if len(str(node.value)) > _MOST_DIGITS:
            rule = f"a number has at most {_MOST_DIGITS} letters"
            raise yaml.YAMLError(f"{rule}, line {node.start_mark.line + 1}")
        is_whole = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)


for _kind in ("int", "float"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _StrictLoader.construct_number)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
