"""Docstrings, settings and templates: what generated pages are put together from."""

from __future__ import annotations

import dataclasses
import html
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rayfl.commands.registries import describe_plainly
from rayfl.component import Registry, fields_of, slots_of
from rayfl_site import HERE

SECTION = re.compile(r"\n(Parameters|Returns|Examples|Attributes)\n-{3,}\n.*", re.DOTALL)


class Setting(NamedTuple):
    """A line of a table of settings."""

    name: str
    default: str
    kind: str
    about: str


@cache
def open_templates() -> Environment:
    """The templates of generated pages."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    made.filters |= {"cell": write_cell, "escape_html": html.escape, "prose": write_prose}
    return made


def fill_template(template: str, **values: Any) -> str:
    """A page from its template."""
    return open_templates().get_template(template).render(**values)


def write_cell(text: str) -> str:
    """Words as a cell of a table: one line, no bar that would end it."""
    return write_prose(" ".join(text.split())).replace("|", "\\|")


def write_prose(text: str) -> str:
    """A docstring as Markdown: what looks like HTML, or like emphasis, is meant as it stands."""
    parts = re.split(r"(`+[^`]*`+)", SECTION.sub("", text))
    parts[::2] = [re.sub(r"([<*_\[\]])", _escape_sign, part) for part in parts[::2]]
    return "".join(parts)


def _escape_sign(found: re.Match[str]) -> str:
    return "&lt;" if found[1] == "<" else f"\\{found[1]}"


def show_docstring(text: str) -> str:
    """A docstring whose indented parts, equations and lists of names, keep their columns."""
    blocks = re.split(r"\n\s*\n", SECTION.sub("", text).strip())
    return "\n\n".join(map(_show_block, blocks))


def _show_block(block: str) -> str:
    lines = block.splitlines()
    if any(line.startswith("  ") for line in lines):
        return f"```text\n{inspect.cleandoc(chr(10) + block)}\n```"
    return write_prose(block)


def read_module_words(cls: type[Any]) -> str:
    """What the module of a class says of itself."""
    return inspect.getdoc(sys.modules[cls.__module__]) or ""


def describe_component(registry: Registry[Any], name: str) -> dict[str, Any]:
    """What is known of a component, for a template."""
    cls = registry.find(name)
    told = describe_plainly(name, cls)
    return {**told, "settings": list(_list_settings(cls, told["settings"]))}


def _list_settings(cls: type[Any], told: dict[str, dict[str, str]]) -> Iterator[Setting]:
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    slots, fields = slots_of(cls), fields_of(cls)
    for name, setting in told.items():
        default, kind = setting["default"], name_type(fields[name].annotation)
        if name in slots:
            kind = slots[name].kind
            if dataclasses.is_dataclass(defaults[name]):
                default = slots[name].name_of(defaults[name])
        yield Setting(name, default, kind, setting["about"])


def name_type(hint: Any) -> str:
    """A type as a reader would say it: no modules, no metadata."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return name_type(inner[0])
    if origin is Literal:
        return " | ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " | ".join(map(name_type, inner))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(name_type, inner))}]"
    plain = {type(None): "None", Ellipsis: "..."}
    return plain.get(hint) or str(getattr(hint, "__name__", hint))
