"""A first look at a configuration, before torch is imported: most mistakes are told by it, in a
fraction of the time.

Data, partition and noise are what they will be. In the place of what needs torch (methods,
networks, losses and so on) stand doubles: models with the settings that the catalogue has for
them, and with none of their code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rayfl.component import Registry, slot, use_doubles
from rayfl.config.catalogue import (
    FACTS,
    Schema,
    find_component,
    follow,
    list_names,
    read_schema,
    slot_kind,
    slug,
)
from rayfl.config.explain import explain_errors
from rayfl.errors import ConfigError

HEAVY = frozenset(
    {
        "method",
        "host",
        "model",
        "encoder",
        "loss",
        "loss without labels",
        "weighting",
        "aggregation",
        "augmentation",
    }
)
"""The kinds of components whose modules import torch."""

LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
}
PLAIN = {"number": float, "integer": int, "boolean": bool, "string": str, "null": None}


class Double(BaseModel):
    """In a component's place."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    facts: ClassVar[Mapping[str, Any]] = {}
    """What the catalogue has besides the settings."""


def list_needs(part: Double) -> list[tuple[str, Mapping[str, str]]]:
    """The sets of the server's that a component and its parts read, each with whose class it is."""
    found = [(part.facts["sources"][0][1], part.facts.get("needs", {}))]
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Double):
            found += list_needs(value)
        elif value is None and name not in part.model_fields_set:
            found += part.facts.get("default_needs", {}).get(name, [])
    return [(owner, needs) for owner, needs in found if needs]


@dataclass
class Doubles:
    """Doubles by kind and name, and what is known of those that were asked for."""

    complete: bool = True
    """Whether a configuration that passes with them can be wrong in nothing but its data."""
    _made: dict[tuple[str, str], type[Double] | None] = field(default_factory=dict)

    def __call__(self, kind: str, name: str) -> type[Double] | None:
        """A double, or None for the component itself."""
        if kind not in HEAVY:
            # One of somebody else's may do anything.
            self.complete &= ":" not in name
            return None
        key = (kind, name)
        if key not in self._made:
            self._made[key] = self._make(kind, name)
        return self._made[key]

    def _make(self, kind: str, name: str) -> type[Double] | None:
        schema = find_component(kind, name)
        if schema is None:
            self.complete = False
            return None
        self.complete &= schema[FACTS]["complete"]
        return _make_double(schema)


@dataclass(frozen=True)
class Look:
    """What a first look came to."""

    config: Any = None
    """The configuration with doubles in it; None where there was no need to look, for torch is
    here, or the keys are no text."""
    complete: bool = False
    """Whether it can be wrong in nothing but its data."""
    needs: Sequence[tuple[str, Mapping[str, str]]] = ()
    """The sets that the method and its parts read, each with whose class it is."""


def look_quickly(settings: Mapping[str, Any], model: type[BaseModel], where: str) -> Look:
    """Refuse what is wrong in a configuration as far as that is known without torch.

    Parameters
    ----------
    settings
        Its plain values.
    model
        What it is to become.
    where
        What the values are, for the message.
    """
    if "torch" in sys.modules:
        return Look()
    doubles = Doubles()
    with use_doubles(doubles):
        try:
            config = model(**settings)
        except ValidationError as error:
            raise ConfigError(explain_errors(error, model, settings, where)) from None
        except TypeError:
            # Told by whoever validates the whole.
            return Look()
    method = getattr(config, "method", None)
    needs = list_needs(method) if isinstance(method, Double) else []
    return Look(config, doubles.complete, needs)


def _make_double(schema: Schema) -> type[Double]:
    required = set(schema.get("required", ()))
    fields: dict[str, Any] = {}
    for name, setting in schema.get("properties", {}).items():
        if name != "name":
            default = Field() if name in required else Field(default=None)
            fields[name] = (_annotate(setting), default)
    made: type[Double] = create_model("Double", __base__=Double, **fields)
    made.facts = schema[FACTS]
    return made


def _annotate(setting: Schema) -> Any:
    """The type that admits what a setting's schema admits, or more."""
    kind = slot_kind(setting)
    if kind is not None:
        held = Annotated[Any, slot(_registry_of(kind))]
        nullable = {"type": "null"} in setting.get("anyOf", ())
        return held | None if nullable else held
    if "const" in setting:
        return Literal[setting["const"]]
    if "enum" in setting:
        return Literal[tuple(setting["enum"])]
    if "anyOf" in setting:
        return reduce(or_, map(_annotate, setting["anyOf"]))
    found = setting.get("type")
    if found not in PLAIN:
        return Any
    limits = {word: setting[key] for key, word in LIMITS.items() if key in setting}
    return Annotated[PLAIN[found], Field(**limits)] if limits else PLAIN[found]


def _registry_of(kind: str) -> Registry[Any]:
    """A registry of what the catalogue has of a kind, and of what others add."""
    definitions = read_schema("run")["$defs"]
    entries = {}
    for name in list_names(kind):
        facts = definitions[f"{slug(kind)}.{name}"].get(FACTS)
        if facts:
            entries[name] = ":".join(facts["sources"][0])
    return Registry(kind, entries, follow(definitions[slug(kind)])[FACTS].get("plugins"))
