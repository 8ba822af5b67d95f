"""JSON schemas: kept equal to what the components say, true of every configuration here, and named
by each of them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rayfl.commands.json_schema import format_schema, make_schema
from rayfl.commands.listings import LISTINGS
from rayfl.commands.registries import find_registry
from rayfl.commands.schema import KINDS
from rayfl.config.catalogue import FACTS, SCHEMAS, field_sum, slug
from rayfl.config.files import parse_file
from rayfl.config.shipped import Kind, kind_of, list_shipped, shipped_folder
from tests.front.cli import invoked

FOLDER = shipped_folder() / "schemas"
ROOT = Path(__file__).resolve().parents[2]
FILES = [
    *(shipped_folder() / f"{name}.yaml" for name in list_shipped()),
    ROOT / "results/queue.yaml",
]
WHOLE: dict[Kind, Any] = {}


def whole(kind: Kind) -> Any:
    """What checks files of a kind: a schema complete in itself, made once."""
    if kind not in WHOLE:
        # Ray brings it along.
        validators: Any = importlib.import_module("jsonschema")
        WHOLE[kind] = validators.Draft202012Validator(make_schema(kind))
    return WHOLE[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kept_schema_is_what_the_program_says(kind: Kind) -> None:
    kept = (FOLDER / f"{kind}.json").read_text()
    fresh = format_schema(make_schema(kind, whole=False))
    assert kept == fresh, "run `make schemas` (rayfl schema -o configs/schemas)"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_configuration_names_the_schema_that_it_agrees_with(path: Path) -> None:
    first = path.read_text().partition("\n")[0]
    settings = parse_file(path)
    kind = kind_of(settings)
    place = os.path.relpath(FOLDER, path.parent)
    assert first == f"# yaml-language-server: $schema={place}/{kind}.json"
    problems = [
        f"{error.json_path}: {error.message[:200]}" for error in whole(kind).iter_errors(settings)
    ]
    assert not problems


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("run", {"method": "fedpox"}),
        ("run", {"round": 5}),
        ("run", {"method": {"name": "fedprox", "nu": 1}}),
        ("run", {"method": {"name": "fedprox", "mu": -1}}),
        ("run", {"training": {"precision": "fp8"}}),
        ("run", {"noise": {"name": "symmetric", "rte": 0.4}}),
        ("run", {"method": {"name": "fedprox", "weighting": {"name": "dawid_skene", "tol": -1}}}),
        ("study", {"title": "t", "axes": {"method": {"a": {"set": {}}}}}),
        ("study", {"title": "t", "set": {"trainig": {}}, "axes": {}}),
        ("study", {"title": "t", "axes": {}, "figures": ["curve"]}),
        ("sweep", {"search": {"training.lr": {"grid": []}}}),
        (
            "sweep",
            {"search": {"lr": {"grid": [1]}}, "scheduler": {"name": "asha", "grace": 0}},
        ),
        ("queue", {"queue": []}),
    ],
)
def test_what_the_program_refuses_the_schema_refuses(kind: Kind, settings: Any) -> None:
    assert list(whole(kind).iter_errors(settings))


def test_own_components_by_path_and_partial_settings_are_admitted() -> None:
    for settings in (
        {"method": "my_methods:MyAvg"},
        {"method": {"name": "my_methods:MyAvg", "least": 3}},
        {"base": ["quickstart"], "method": {"mu": 0.1}},
    ):
        assert not list(whole("run").iter_errors(settings))


@pytest.mark.parametrize("plural", sorted(LISTINGS))
def test_each_slot_has_its_choices_with_their_settings(plural: str) -> None:
    registry = find_registry(plural)
    definitions = json.loads((FOLDER / "run.json").read_text())["$defs"]
    choices = definitions[slug(registry.kind)]
    assert [each["const"] for each in choices["anyOf"] if "const" in each] == registry.names()
    assert all(each["description"] for each in choices["anyOf"] if "const" in each)
    for name in registry.names():
        component: Any = registry.find(name)
        described = definitions[f"{slug(registry.kind)}.{name}"]
        fields = {field.name for field in dataclasses.fields(component)}
        assert set(described["properties"]) == fields | {"name"}


def test_what_is_said_of_a_setting_is_in_the_schema() -> None:
    defined = make_schema("run")["$defs"]
    assert "Local steps of a visit" in defined["Training"]["properties"]["steps"]["description"]
    assert "EM stops" in defined["weighting.dawid_skene"]["properties"]["tol"]["description"]


def test_the_command_prints_a_schema_complete_in_itself_and_writes_all(tmp_path: Path) -> None:
    printed = json.loads(invoked("schema", "study"))
    assert printed["title"] == f"rayfl: {SCHEMAS['study']}"
    assert "run.json" not in json.dumps(printed)
    assert _list_dangling(printed) == set()
    invoked("schema", "-o", str(tmp_path))
    for kind in KINDS:
        assert (tmp_path / f"{kind}.json").read_bytes() == (FOLDER / f"{kind}.json").read_bytes()


def _list_dangling(schema: Mapping[str, Any]) -> set[str]:
    """References to nothing."""
    found: set[str] = set()

    def look(part: Any) -> None:
        for inner in part.values() if isinstance(part, dict) else part:
            if isinstance(inner, (dict, list)):
                look(inner)
        if isinstance(part, dict) and isinstance(part.get("$ref"), str):
            found.add(part["$ref"])

    look(schema)
    return {each for each in found if each.removeprefix("#/$defs/") not in schema["$defs"]}


def test_a_changed_setting_is_noticed() -> None:
    """The kept schema is not believed about a component whose fields have changed since."""
    definitions = json.loads((FOLDER / "run.json").read_text())["$defs"]
    facts = definitions["method.fedprox"][FACTS]
    assert facts["fields"] == field_sum(facts["sources"])
    assert facts["fields"] != field_sum(facts["sources"][1:])
