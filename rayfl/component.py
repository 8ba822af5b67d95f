"""Components: the named, typed parts that a configuration chooses (datasets, partitions, noises,
networks, methods).

A component is a frozen dataclass whose fields are its settings. `@component` makes it validate
itself, in a configuration as in plain Python. A `Registry` maps short names to import paths, so
that naming a component imports nothing until it is used; any `package.module:Name` works in place
of a short name."""

from __future__ import annotations

import dataclasses
import importlib
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter
from pydantic.dataclasses import dataclass as validated
from typing_extensions import dataclass_transform

from rayfl.errors import ConfigError, broken, nearest

T = TypeVar("T")
Spec = str | Mapping[str, Any]

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def component(cls: type[T]) -> type[T]:
    """Turn a class into a frozen, self-validating dataclass that refuses unknown settings."""
    settings = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=False)
    return cast(type[T], validated(frozen=True, kw_only=True, config=settings)(cls))


class Registry(Generic[T]):
    """Short names for the components of one kind, imported on first use."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self.entries = dict(entries)

    def names(self) -> list[str]:
        return sorted(self.entries)

    def find(self, name: str) -> type[T]:
        """The class behind a short name or an import path."""
        path = self.entries.get(name, name)
        if ":" not in path:
            known = ", ".join(self.names())
            raise ConfigError(
                f"unknown {self.kind} '{name}'. {nearest(name, self.entries)} "
                f"Known: {known}; or write an import path such as my_package.my_module:Name".replace(
                    "  ", " "
                )
            )
        found = import_path(path, self.kind)
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            rule = f"a {self.kind} is a dataclass, made with @component of rayfl.component"
            raise ConfigError(broken(rule, f"'{path}', which is {reprlib.repr(found)}"))
        return cast(type[T], found)

    def build(self, spec: Any) -> T:
        """The component that `name` or `{name: ..., setting: value}` describes; a ready component
        passes through."""
        if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
            return cast(T, spec)
        if isinstance(spec, str):
            spec = {"name": spec}
        if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
            raise ConfigError(
                f"a {self.kind} is a name or a mapping with the key 'name'; got {reprlib.repr(spec)}"
            )
        settings = {str(key): value for key, value in spec.items() if key != "name"}
        return TypeAdapter(self.find(spec["name"])).validate_python(settings)

    def describe(self, part: object) -> dict[str, Any]:
        """The mapping that builds this component again."""
        cls = type(part)
        path = f"{cls.__module__}:{cls.__qualname__}"
        short = next((name for name, entry in self.entries.items() if entry == path), path)
        dumped: dict[str, Any] = TypeAdapter(cls).dump_python(cast(Any, part), mode="json")
        return {"name": short, **dumped}


def slot(registry: Registry[Any]) -> Any:
    """Metadata for `Annotated[...]`: a field that holds a component of this registry, written by
    name."""
    return _Slot(registry)


@dataclasses.dataclass(frozen=True)
class _Slot:
    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        annotated = Annotated[
            Any,
            PlainValidator(lambda spec: refused_as_value(self.registry, spec)),
            PlainSerializer(self.registry.describe),
        ]
        return handler.generate_schema(annotated)


def refused_as_value(registry: Registry[Any], spec: Any) -> Any:
    """Build, with a refusal turned into the ValueError that pydantic collects (with its key's
    path)."""
    try:
        return registry.build(spec)
    except ConfigError as refusal:
        raise ValueError(str(refusal)) from refusal


def import_path(path: str, kind: str) -> Any:
    """The object at `package.module:Name`, or a ConfigError that says which half is wrong."""
    module_name, _, attribute = path.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{kind} '{path}' needs the package '{error.name}', which is not installed"
            ) from error
        raise ConfigError(
            f"{kind} '{path}': there is no module '{module_name}' on the Python path"
        ) from error
    except (ImportError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{kind} '{path}': importing '{module_name}' failed: {error}") from error
    if not hasattr(found, attribute):
        hint = nearest(attribute, vars(found))
        raise ConfigError(
            f"{kind} '{path}': module '{module_name}' has no '{attribute}'. {hint}".rstrip()
        )
    return getattr(found, attribute)
