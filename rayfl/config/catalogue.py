"""What components there are and which settings they have, from the schemas beside the
configurations: known without importing a component, most of which need torch.

The schemas are written from the components themselves (`rayfl schema`), and a test holds them
equal. A component whose settings have changed since is not taken from here."""

from __future__ import annotations

import ast
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rayfl.config.shipped import Kind, shipped_folder
from rayfl.plugins import read_plugins

FACTS = "x-rayfl"
"""Where a schema keeps what JSON schema has no words for."""

SCHEMAS: Mapping[Kind, str] = {
    "run": "the configuration of a run",
    "study": "a study",
    "sweep": "a sweep",
    "queue": "a queue of studies",
}
"""Kinds of files, each with a schema of its own."""

Schema = Mapping[str, Any]
_PACKAGE = Path(__file__).resolve().parents[1]


def slug(kind: str) -> str:
    """A kind of component as the schema names it."""
    return kind.replace(" ", "_")


@cache
def read_schema(kind: Kind) -> Schema:
    """The schema of a kind of file; empty where it does not lie beside the configurations."""
    path = shipped_folder() / "schemas" / f"{kind}.json"
    try:
        found: Schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def follow(schema: Schema) -> Schema:
    """What a schema refers to, where it refers to anything."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found: Schema = read_schema("run").get("$defs", {}).get(name, {}) if name else schema
    return found


def slot_kind(schema: Schema) -> str | None:
    """The kind of component that a setting holds, where it holds one."""
    for branch in (schema, *schema.get("anyOf", ())):
        title = follow(branch).get("title", "") if "$ref" in branch else ""
        if title and branch["$ref"] == f"#/$defs/{slug(title)}" and FACTS in follow(branch):
            return str(title)
    return None


def list_names(kind: str) -> list[str]:
    """The components of a kind that come with rayfl."""
    choices = _describe_kind(kind).get("anyOf", ())
    return [str(choice["const"]) for choice in choices if "const" in choice]


def list_kind(kind: str) -> list[str]:
    """The components of a kind, those of other packages included."""
    group = _describe_kind(kind).get(FACTS, {}).get("plugins")
    return sorted({*list_names(kind), *(read_plugins(group) if group else ())})


def list_components(plural: str) -> list[str]:
    """The same for what a listing is called, such as `methods`."""
    definitions = read_schema("run").get("$defs", {})
    for schema in definitions.values():
        if schema.get(FACTS, {}).get("plural") == plural:
            return list_kind(str(schema["title"]))
    return []


def find_properties(setting: Schema, kind: str | None, chosen: Any) -> dict[str, Schema]:
    """The settings within a setting: a section's, or those of the component in a slot.

    Parameters
    ----------
    setting
        Its schema.
    kind
        What a slot holds; None for any other setting.
    chosen
        The component in the slot.
    """
    if kind is not None:
        definitions = read_schema("run").get("$defs", {})
        found = definitions.get(f"{slug(kind)}.{chosen}", {}).get("properties", {})
        return {name: inner for name, inner in found.items() if name != "name"}
    branches = [follow(branch) for branch in (setting, *setting.get("anyOf", ()))]
    return {
        name: inner for branch in branches for name, inner in branch.get("properties", {}).items()
    }


def _describe_kind(kind: str) -> Schema:
    found: Schema = read_schema("run").get("$defs", {}).get(slug(kind), {})
    return found


def find_component(kind: str, name: str) -> Schema | None:
    """A component's schema, if it is one of rayfl's and has the settings that its source has."""
    found: Schema | None = read_schema("run").get("$defs", {}).get(f"{slug(kind)}.{name}")
    facts = {} if found is None else found.get(FACTS, {})
    if not facts or facts["fields"] != field_sum(facts["sources"]):
        return None
    return found


def field_sum(sources: Sequence[Sequence[str]]) -> int:
    """A sum over the settings of classes as their source has them.

    Parameters
    ----------
    sources
        Module and name of each class.
    """
    lines = [line for module, name in sources for line in _read_fields(module).get(name, ())]
    return zlib.crc32("\n".join(lines).encode())


@cache
def _read_fields(module: str) -> Mapping[str, Sequence[str]]:
    """By class of a module of rayfl's, the lines that its settings are written in."""
    place = _PACKAGE.joinpath(*module.split(".")[1:])
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = text.splitlines()
    fields = {}
    for owner in ast.parse(text).body:
        if isinstance(owner, ast.ClassDef):
            settings = [each for each in owner.body if isinstance(each, ast.AnnAssign)]
            spans = [range(each.lineno - 1, each.end_lineno or each.lineno) for each in settings]
            fields[owner.name] = [lines[number].strip() for span in spans for number in span]
    return fields
