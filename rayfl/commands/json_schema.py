"""JSON schemas of all kinds of configurations: what editors check and complete YAML files by, and
what the command line completes and checks by before anything heavy is imported.

Each slot's choices are in one place, `#/$defs/KIND`; a component's settings, with what is said of
them, in `#/$defs/KIND.NAME`. `x-rayfl` holds what is not of JSON schema: see `ComponentFacts`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from rayfl.commands.listings import LISTINGS
from rayfl.commands.registries import find_registry, read_docstring, read_field_notes
from rayfl.component import SLOT_KEY, Registry, fields_of, list_marks, slots_of
from rayfl.config.catalogue import FACTS, SCHEMAS, field_sum, slug
from rayfl.config.shipped import Kind

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN_PATH = {"type": "string", "pattern": ":", "description": "package.module:Name"}
REFERENCE = "#/$defs/{model}"
BESIDE = "run.json"
CHANGES = {"$ref": f"{BESIDE}#/$defs/changes"}
QUIET_CHECKS = {
    "Algorithm.check",
    "FedAvg.check",
    "Weighting.check",
    "Aggregation.check",
}
"""Those that refuse no federation, or leave it to the parts of a method."""

Schema = dict[str, Any]


class _Generator(GenerateJsonSchema):
    """What JSON schema has no words for is anything."""

    ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}


def make_schema(kind: Kind, whole: bool = True) -> Schema:
    """The schema of one kind of file.

    Parameters
    ----------
    whole
        Complete in itself; otherwise it refers to the runs' schema in the file beside it."""
    made = _MAKERS[kind]()
    if whole and kind != "run":
        made["$defs"] = {**_make_run()["$defs"], **made["$defs"]}
        made = _bring_home(made)
    head = {"$schema": DIALECT, "title": f"rayfl: {SCHEMAS[kind]}"}
    return {**head, **made, **head}


def _make_run() -> Schema:
    from rayfl.config.schema import Config

    schema = _describe_model(Config)
    schema["properties"] = {"base": _describe_base(), **schema["properties"]}
    changes = {
        "description": "What is changed in the configuration, dotted or nested.",
        "type": "object",
        "properties": schema["properties"],
        "patternProperties": {r"^[a-z_]+(\.\w+)+$": {}},
        "additionalProperties": False,
    }
    schema["$defs"] |= {**_define_slots(), "changes": changes}
    return _link_slots(schema, "")


def _make_study() -> Schema:
    from rayfl.study.schema import Study

    schema = _describe_model(Study)
    like = {"type": "string", "description": "Another study, which this one changes."}
    schema["properties"] |= {"like": like, "base": _describe_base()}
    # What a study is `like` may have said the rest; null takes an axis away.
    for partial in (schema, schema["$defs"]["Printed"], schema["$defs"]["Score"]):
        partial["required"] = []
    _allow_null(schema["properties"]["axes"])
    schema["properties"]["set"] = CHANGES
    for owner in ("Choice", "Rule"):
        schema["$defs"][owner]["properties"]["set"] = CHANGES
    return _link_slots(schema, BESIDE)


def _make_sweep() -> Schema:
    from rayfl.tuning.schema import KINDS, Domain, Sweep

    schema = _describe_model(Sweep)
    # A domain serialises to what it was written as, so that only its fields tell of it.
    schema["$defs"]["Domain"] = _describe_model(Domain)
    schema["properties"]["base"] = _describe_base()
    domains = [{"required": [kind]} for kind in KINDS]
    nested = {"type": "object", "not": {"anyOf": domains}}
    schema["properties"]["search"] = {
        "type": "object",
        "description": "Dotted settings, and where their values come from.",
        "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Domain"}, nested]},
    }
    schema["properties"]["set"] = CHANGES
    return _link_slots(schema, BESIDE)


def _make_queue() -> Schema:
    from rayfl.study.queue import Queue

    return _describe_model(Queue)


_MAKERS: Mapping[Kind, Callable[[], Schema]] = {
    "run": _make_run,
    "study": _make_study,
    "sweep": _make_sweep,
    "queue": _make_queue,
}


def _describe_base() -> Schema:
    one = {"type": "string"}
    several = {"type": "array", "items": one}
    return {"anyOf": [one, several], "description": "The configurations that this builds on."}


def _allow_null(mapping: Schema) -> None:
    """The values of a mapping may be null."""
    inner = mapping["additionalProperties"]
    mapping["additionalProperties"] = {"anyOf": [inner, {"type": "null"}]}


# -- sections --------------------------------------------------------------------------------------


def _describe_model(model: type[BaseModel]) -> Schema:
    """A model's schema with what is said of each setting."""
    schema: Schema = model.model_json_schema(ref_template=REFERENCE, schema_generator=_Generator)
    schema.setdefault("$defs", {})
    _add_notes(schema, model)
    for section in _iterate_sections(model):
        if section.__name__ in schema["$defs"]:
            _add_notes(schema["$defs"][section.__name__], section)
    return schema


def _iterate_sections(owner: type[Any]) -> Iterator[type[Any]]:
    """What has settings of its own within something."""
    for field in fields_of(owner).values():
        for kind in _iterate_types(field.annotation):
            if isinstance(kind, type) and fields_of(kind):
                yield kind
                yield from _iterate_sections(kind)


def _iterate_types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _iterate_types(inner)


def _add_notes(schema: Schema, owner: type[Any]) -> None:
    """What stands behind a field in the source is its description; and what may be written short
    may be a number."""
    properties = schema.get("properties", {})
    for name in properties.keys() & set(_list_short_forms(owner)):
        properties[name] = _admit_number(properties[name])
    for name, note in read_field_notes(owner).items():
        if name in properties:
            properties[name]["description"] = note


def _list_short_forms(owner: type[Any]) -> Iterator[str]:
    """The settings that something is made of before they are looked at."""
    for name, field in fields_of(owner).items():
        # A path is looked at before it becomes one, and never is a number.
        if Path in _iterate_types(field.annotation):
            continue
        if any(isinstance(mark, BeforeValidator) for mark in list_marks(field)):
            yield name


def _admit_number(setting: Schema) -> Schema:
    aside: Schema = {key: setting[key] for key in ("default", "description") if key in setting}
    rest = {key: value for key, value in setting.items() if key not in aside}
    branches = rest.get("anyOf", [rest])
    return {"anyOf": [*branches, {"type": "number"}], **aside}


# -- components ------------------------------------------------------------------------------------


def _define_slots() -> Schema:
    """By kind its choices, and by kind and name each component."""
    defined: Schema = {}
    for plural in LISTINGS:
        registry = find_registry(plural)
        names = registry.names()
        classes = {name: registry.find(name) for name in names}
        defined[slug(registry.kind)] = _define_choices(plural, registry, classes)
        for name, cls in classes.items():
            component, further = _describe_component(registry, name, cls)
            defined[f"{slug(registry.kind)}.{name}"] = component
            defined |= further
    return defined


def _define_choices(
    plural: str, registry: Registry[Any], classes: Mapping[str, type[Any]]
) -> Schema:
    """A name, an import path, or a mapping with either; without a name it changes what a base
    says."""
    names = [
        {"const": name, "description": _summarise(cls)} for name, cls in sorted(classes.items())
    ]
    kind = slug(registry.kind)
    settings = [{"$ref": f"#/$defs/{kind}.{name}"} for name in sorted(classes)]
    own = {"type": "object", "properties": {"name": OWN_PATH}, "required": ["name"]}
    partial = {"type": "object", "not": {"required": ["name"]}}
    choices = [*names, OWN_PATH, *settings, own, partial]
    facts = {"plural": plural, "plugins": registry.plugins}
    return {"title": registry.kind, "anyOf": choices, FACTS: facts}


def _summarise(cls: type[Any]) -> str:
    citation = getattr(cls, "citation", "")
    first = " ".join(read_docstring(cls).partition("\n\n")[0].split())
    return f"{first} [{citation}]" if citation else first


def _describe_component(
    registry: Registry[Any], name: str, cls: type[Any]
) -> tuple[Schema, Schema]:
    """The schema of one component, and what it refers to."""
    schema: Schema = TypeAdapter(cls).json_schema(
        ref_template=REFERENCE, schema_generator=_Generator
    )
    further = schema.pop("$defs", {})
    if "$ref" in schema:
        schema = further.pop(schema["$ref"].rpartition("/")[2])
    _add_notes(schema, cls)
    told = {"const": name, "description": _summarise(cls)}
    schema["properties"] = {"name": told, **schema.get("properties", {})}
    schema["required"] = ["name", *schema.get("required", [])]
    schema["description"] = _summarise(cls)
    schema["additionalProperties"] = False
    if name in registry.entries:
        schema[FACTS] = _gather_facts(cls)
    return schema, further


def _gather_facts(cls: type[Any]) -> Schema:
    """What the catalogue keeps of a component besides its settings."""
    sources = [
        [base.__module__, base.__qualname__]
        for base in cls.__mro__
        if base.__module__.startswith("rayfl.")
    ]
    facts: Schema = {
        "fields": field_sum(sources),
        "sources": sources,
        "complete": _is_complete(cls),
    }
    if needs := _read_needs(cls):
        facts["needs"] = needs
    defaults = _find_defaults(cls)
    reading = {name: _read_needs(part) for name, part in defaults.items()}
    further = {name: [[defaults[name].__name__, needs]] for name, needs in reading.items() if needs}
    if further:
        facts["default_needs"] = further
    return facts


def _read_needs(cls: type[Any]) -> Schema:
    """The sets that a component reads; what a property answers depends on the settings."""
    needs = getattr(cls, "needs", None)
    return dict(needs) if isinstance(needs, Mapping) else {}


def _find_defaults(cls: type[Any]) -> dict[str, type[Any]]:
    """The components that stand in slots if nothing is written."""
    written = {field.name: field.default for field in dataclasses.fields(cls)}
    found = {}
    for name, registry in slots_of(cls).items():
        default: Any = written.get(name)
        if hasattr(default, "is_required"):  # pydantic's `Field`
            default = None if default.is_required() else default.default
        if isinstance(default, str):
            found[name] = registry.find(default)
        elif dataclasses.is_dataclass(default):
            found[name] = type(default)
    return found


def _is_complete(cls: type[Any]) -> bool:
    """Whether the schema says all that is asked of a component's settings."""
    if hasattr(cls, "__post_init__") or isinstance(
        inspect.getattr_static(cls, "needs", 0), property
    ):
        return False
    check = getattr(cls, "check", None)
    if check is not None and check.__qualname__ not in QUIET_CHECKS:
        return False
    slots = slots_of(cls)
    if len(_list_functions(cls.__pydantic_core_schema__)) > len(slots):
        return False
    return all(map(_is_complete, _find_defaults(cls).values()))


def _list_functions(schema: Any) -> list[str]:
    """The functions of Python's that a core schema calls: each may refuse what JSON schema
    admits."""
    if isinstance(schema, Mapping):
        own = str(schema.get("type", ""))
        validating = [value for key, value in schema.items() if key != "serialization"]
        inner = _list_functions(validating)
        return [own, *inner] if own.startswith("function-") else inner
    if isinstance(schema, (list, tuple)):
        return [name for value in schema for name in _list_functions(value)]
    return []


def _link_slots(schema: Schema, file: str) -> Schema:
    """Slots refer to their kind's choices, which a file has."""

    def link(each: Schema) -> Schema:
        if SLOT_KEY not in each:
            return each
        there = file + REFERENCE.format(model=slug(each[SLOT_KEY]))
        rest = {key: value for key, value in each.items() if key != SLOT_KEY}
        return {**rest, "$ref": there}

    linked: Schema = _change_everywhere(schema, link)
    return linked


def _bring_home(schema: Schema) -> Schema:
    """References into the file beside become references into this one."""

    def refer(each: Schema) -> Schema:
        if not isinstance(each.get("$ref"), str):
            return each
        return {**each, "$ref": each["$ref"].removeprefix(BESIDE)}

    brought: Schema = _change_everywhere(schema, refer)
    return brought


def _change_everywhere(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """All mappings in a schema, changed."""
    if isinstance(schema, list):
        return [_change_everywhere(each, change) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _change_everywhere(value, change) for key, value in schema.items()}
    return change(inner)


# -- files -----------------------------------------------------------------------------------------


def write_schemas(folder: Path) -> list[Path]:
    """The schemas of all kinds, a file each."""
    from rayfl.durable import write_file

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in _MAKERS:
        path = folder / f"{kind}.json"
        write_file(path, format_schema(make_schema(kind, whole=False)))
        paths.append(path)
    return paths


def format_schema(schema: Schema) -> str:
    """As it is kept in the repository: a line a thing, so that changes can be read."""
    import json

    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
