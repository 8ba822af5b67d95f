"""Listings of everything that a configuration can name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
from pathlib import Path
from typing import Any, get_type_hints

import click

from rayfl.component import Registry
from rayfl.errors import ConfigError

HOMES = {
    "methods": "rayfl.algorithms:METHODS",
    "datasets": "rayfl.federation.datasets:DATASETS",
    "models": "rayfl.models:MODELS",
    "partitions": "rayfl.federation.partition:PARTITIONS",
    "noises": "rayfl.federation.noise:NOISES",
    "encoders": "rayfl.models:ENCODERS",
}


METHOD_CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "methods"


def registry(plural: str) -> Registry[Any]:
    module, _, name = HOMES[plural].partition(":")
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    return found


def show(plural: str, name: str | None) -> None:
    """Print all components of a registry, a line each, or one of them whole."""
    entries = registry(plural)
    if name is not None:
        click.echo(whole(name, entries.find(name)))
        return
    width = max(map(len, entries.names()))
    for known in entries.names():
        click.echo(f"{known:{width}}  {line(entries, known)}")


def line(entries: Registry[Any], name: str) -> str:
    """One-line description, with the citation where there is one; or why it cannot be used here."""
    try:
        cls = entries.find(name)
    except ConfigError as error:
        return f"(not available: {error})"
    citation, config = getattr(cls, "citation", ""), example(name)
    return (
        first_line(cls)
        + (f"  [{citation}]" if citation else "")
        + (f"  {config}" if config else "")
    )


def example(name: str) -> str:
    """The configuration that shows a method, where this is a checkout that has one."""
    return f"configs/methods/{name}.yaml" if (METHOD_CONFIGS / f"{name}.yaml").is_file() else ""


def first_line(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def whole(name: str, cls: type[Any]) -> str:
    """Docstring, settings with types, defaults and what is said of them, and deviations from the
    paper."""
    parts = [name, "", inspect.getdoc(cls) or "", ""]
    if getattr(cls, "citation", ""):
        parts += [f"from: {cls.citation}", ""]
    if example(name):
        parts += [f"try it: rayfl run {example(name)}", ""]
    parts += ["settings:", *settings(cls)]
    deviations = getattr(cls, "deviations", ())
    if deviations:
        parts += [
            "",
            "deviations from the paper:",
            *(f"  {i}. {text}" for i, text in enumerate(deviations, 1)),
        ]
    return "\n".join(parts)


def settings(cls: type[Any]) -> list[str]:
    """One line a setting."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    hints, notes = get_type_hints(cls), documented(cls)
    rows = [
        f"  {field.name} = {default(field)}  ({type_name(hints[field.name])})  {notes.get(field.name, '')}".rstrip()
        for field in fields
    ]
    return rows or ["  none"]


def default(field: dataclasses.Field[Any]) -> str:
    """A field's default as written in Python, or `required`."""
    value: Any = field.default
    if hasattr(value, "is_required"):  # pydantic's FieldInfo
        value = value.default if not value.is_required() else dataclasses.MISSING
    if value is dataclasses.MISSING:
        make: Any = field.default_factory
        return "required" if make is dataclasses.MISSING else repr(make())
    return repr(value)


def type_name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)).replace("typing.", "")


def documented(cls: type[Any]) -> dict[str, str]:
    """The text behind each field: the string that follows it in the class body, here and in its
    bases."""
    import ast
    import textwrap

    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for before, after in itertools.pairwise(body):
            if not (isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                notes[before.target.id] = " ".join(str(after.value.value).split())
    return notes
