"""Listings of everything that a configuration can name."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any, get_type_hints

import click

from rayfl.commands.json_output import print_json
from rayfl.commands.listings import LISTINGS
from rayfl.component import Registry
from rayfl.config.shipped import shipped_folder
from rayfl.errors import ConfigError


def find_registry(plural: str) -> Registry[Any]:
    """The registry that a command lists."""
    module, _, name = LISTINGS[plural].home.partition(":")
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    return found


def show_registry(plural: str, name: str | None, as_json: bool = False) -> None:
    """Print all components of a registry, a line each, or one of them whole.

    Parameters
    ----------
    plural
        The registry's command, such as `methods`.
    name
        A component's name, or an import path; None for all.
    as_json
        For programs: all that is known of each."""
    entries = find_registry(plural)
    if as_json:
        names = entries.names() if name is None else [name]
        found = [describe_plainly(each, entries.find(each)) for each in names]
        print_json(found if name is None else found[0])
        return
    if name is not None:
        lines = _describe_component(name, entries.find(name))
        click.echo("\n".join(lines))
        return
    width = max(map(len, entries.names()))
    for known in entries.names():
        click.echo(f"{known:{width}}  {_describe_line(entries, known)}")


def describe_plainly(name: str, cls: type[Any]) -> dict[str, Any]:
    """A component, as plain values: what it is, its settings, its measures, its deviations.

    Parameters
    ----------
    name
        What it is called.
    cls
        Its class."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    hints = get_type_hints(cls)
    notes = read_field_notes(cls)
    settings = {
        field.name: {
            "default": _format_default(field),
            "type": _name_type(hints[field.name]),
            "about": notes.get(field.name, ""),
        }
        for field in fields
    }
    return {
        "name": name,
        "path": f"{cls.__module__}:{cls.__qualname__}",
        "about": read_docstring(cls),
        "citation": getattr(cls, "citation", ""),
        "settings": settings,
        "metrics": dict(getattr(cls, "metrics", {})),
        "deviations": list(getattr(cls, "deviations", ())),
    }


def _describe_line(entries: Registry[Any], name: str) -> str:
    """One-line description, with the citation where there is one; or why it cannot be used here."""
    try:
        cls = entries.find(name)
    except ConfigError as error:
        return f"(not available: {error})"
    citation = getattr(cls, "citation", "")
    parts = [read_docstring(cls).partition("\n")[0], citation and f"[{citation}]"]
    parts.append(_find_example(name))
    return "  ".join(filter(None, parts))


def _find_example(name: str) -> str:
    """The configuration that shows a method, where there is one."""
    there = (shipped_folder() / "methods" / f"{name}.yaml").is_file()
    return f"methods/{name}" if there else ""


def read_docstring(cls: type[Any]) -> str:
    return inspect.getdoc(cls) or ""


def _describe_component(name: str, cls: type[Any]) -> Iterator[str]:
    """Docstring, settings with types, defaults and what is said of them, what its metrics mean, and
    deviations from the paper."""
    yield from (name, "", read_docstring(cls), "")
    citation = getattr(cls, "citation", "")
    if citation:
        yield from (f"from: {citation}", "")
    example = _find_example(name)
    if example:
        yield from (f"try it: rayfl run {example}", "")
    yield "settings:"
    yield from _list_settings(cls)
    metrics = getattr(cls, "metrics", {})
    if metrics:
        yield from ("", "metrics of its own:")
        yield from (f"  {name}: {meaning}" for name, meaning in metrics.items())
    deviations = getattr(cls, "deviations", ())
    if deviations:
        yield from ("", "deviations from the paper:")
        yield from (f"  {number}. {text}" for number, text in enumerate(deviations, 1))


# -- settings --------------------------------------------------------------------------------------


def _list_settings(cls: type[Any]) -> list[str]:
    """One line a setting."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    hints = get_type_hints(cls)
    notes = read_field_notes(cls)
    lines = []
    for field in fields:
        default = _format_default(field)
        hint = _name_type(hints[field.name])
        note = notes.get(field.name, "")
        lines.append(f"  {field.name} = {default}  ({hint})  {note}".rstrip())
    return lines or ["  none"]


def _format_default(field: dataclasses.Field[Any]) -> str:
    """A field's default as written in Python, or `required`."""
    value: Any = field.default
    # What pydantic's `Field` describes stands in the default's place.
    if hasattr(value, "is_required"):
        value = dataclasses.MISSING if value.is_required() else value.default
    if value is not dataclasses.MISSING:
        return repr(value)
    make: Any = field.default_factory
    return "required" if make is dataclasses.MISSING else repr(make())


def _name_type(hint: Any) -> str:
    name = getattr(hint, "__name__", str(hint))
    return str(name).replace("typing.", "")


def read_field_notes(cls: type[Any]) -> dict[str, str]:
    """The text behind each field: the string that follows it in the class body, here and in its
    bases."""
    notes: dict[str, str] = {}
    # The class itself comes last: what it says of a field stands above its bases' words.
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        notes |= dict(_iterate_notes(ast.parse(source)))
    return notes


def _iterate_notes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The fields of the class in some source that have a text behind them."""
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for field, text in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            words = str(text.value.value).split()
            yield field.target.id, " ".join(words)
