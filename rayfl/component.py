"""Components: the named, typed parts that a configuration chooses (datasets, partitions, noises,
networks, methods).

A component is a frozen dataclass whose fields are its settings. `@component` makes it validate
itself, in a configuration as in plain Python. A `Registry` maps short names to import paths, so
that naming a component imports nothing until it is used; any `package.module:Name` works in place
of a short name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter
from pydantic.dataclasses import dataclass as validated
from typing_extensions import dataclass_transform

from rayfl.errors import ConfigError, broken, suggest_nearest
from rayfl.plugins import find_plugin, read_plugins
from rayfl.secrets import mask_secrets

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


def is_all_ours(value: object) -> bool:
    """Whether a component, and all that it is made of, is code of this package.

    Parameters
    ----------
    value
        A component, or any settings with components in them.
    """
    if isinstance(value, Mapping):
        return all(map(is_all_ours, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_all_ours, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return _is_ours(type(value)) and is_all_ours(parts)
    if isinstance(value, BaseModel):
        return _is_ours(type(value)) and is_all_ours(dict(value))
    return not callable(value) or _is_ours(value)


def _is_ours(named: object) -> bool:
    return str(getattr(named, "__module__", "")).partition(".")[0] == __package__


Double = Callable[[str, str], type[Any] | None]
"""By kind and name, a class that has a component's settings and nothing else."""


def _double_none(kind: str, name: str) -> None:
    """Components themselves are built."""


_DOUBLES: ContextVar[Double] = ContextVar("_DOUBLES", default=_double_none)


@contextmanager
def use_doubles(double: Double) -> Iterator[None]:
    """Have the settings of some components checked without importing what the components need.

    Parameters
    ----------
    double : callable
        Given a kind and a name, a class with the settings of that component; None for the
        component itself.
    """
    token = _DOUBLES.set(double)
    try:
        yield
    finally:
        _DOUBLES.reset(token)


class Registry(Generic[T]):
    """Short names for the components of one kind, imported on first use.

    Parameters
    ----------
    kind : str
        What a component of it is called.
    entries : mapping
        Import paths by name.
    plugins : str or None
        The entry-point group by which other packages add names; None where they cannot.
    """

    def __init__(self, kind: str, entries: Mapping[str, str], plugins: str | None = None) -> None:
        self.kind = kind
        self.entries = dict(entries)
        self.plugins = plugins

    def names(self) -> list[str]:
        """All names, those of other packages included."""
        return sorted({*self.entries, *self.foreign_names()})

    def foreign_names(self) -> list[str]:
        """The names that other packages add."""
        found = read_plugins(self.plugins) if self.plugins else {}
        return sorted(set(found) - set(self.entries))

    def path_of(self, name: str) -> str:
        """The import path behind a name; what is no name is taken for a path."""
        if name in self.entries:
            return self.entries[name]
        return (self.plugins and find_plugin(self.plugins, name)) or name

    def find(self, name: str) -> type[T]:
        """The class behind a short name or an import path."""
        if (double := _DOUBLES.get()(self.kind, name)) is not None:
            return cast(type[T], double)
        path = self.path_of(name)
        if ":" not in path:
            known = ", ".join(self.names())
            near = suggest_nearest(name, self.names())
            hint = f"unknown {self.kind} {show_value(name)}. {near}".rstrip()
            remedy = "or write an import path such as my_package.my_module:Name"
            raise ConfigError(f"{hint} Known: {known}; {remedy}")
        found = import_path(path, self.kind)
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            rule = f"a {self.kind} is a dataclass, made with @component of rayfl.component"
            raise ConfigError(broken(rule, f"'{path}', which is {show_value(found)}"))
        ignored = _list_ignored_settings(found)
        if ignored:
            rule = f"a {self.kind} that declares settings is made with @component"
            got = f"'{path}', which declares {', '.join(ignored)} and lacks @component"
            raise ConfigError(broken(rule, got, "Write @component above the class."))
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
                broken(
                    f"a {self.kind} is a name or a mapping with the key 'name'", show_value(spec)
                )
            )
        settings = {str(key): value for key, value in spec.items() if key != "name"}
        return TypeAdapter(self.find(spec["name"])).validate_python(settings)

    def describe(self, part: object) -> dict[str, Any]:
        """The mapping that builds this component again."""
        adapter = TypeAdapter(type(part))
        dumped: dict[str, Any] = adapter.dump_python(cast(Any, part), mode="json")
        return {"name": self.name_of(part), **dumped}

    def name_of(self, part: object) -> str:
        """The short name of a component, or the import path of one that has none."""
        cls = type(part)
        path = f"{cls.__module__}:{cls.__qualname__}"
        own = (name for name, entry in self.entries.items() if entry == path)
        added = (name for name in self.foreign_names() if self.path_of(name) == path)
        return next(own, None) or next(added, path)


def _list_ignored_settings(cls: type[Any]) -> list[str]:
    """The settings that a class declares itself where only its bases are components: their values
    could not be given, and the defaults would look as if all were well."""
    if "__dataclass_fields__" in vars(cls):
        return []
    hints = inspect.get_annotations(cls)
    return [name for name, hint in hints.items() if "ClassVar" not in str(hint)]


def slot(registry: Registry[Any]) -> Any:
    """Metadata for `Annotated[...]`: a field that holds a component of this registry, written by
    name."""
    return _Slot(registry)


SLOT_KEY = "x-rayfl-slot"
"""What a JSON schema has in a slot's place, with the kind of component that belongs there."""


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

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        # Whoever writes a whole schema has the choices of each kind in one place.
        return {SLOT_KEY: self.registry.kind}


def registry_of(owner: type[BaseModel], setting: str) -> Registry[Any]:
    """The registry of a slot, which is a field of a section."""
    metadata = owner.model_fields[setting].metadata
    found = next((mark for mark in metadata if isinstance(mark, _Slot)), None)
    if found is None:
        raise KeyError(f"{owner.__name__}.{setting} is no slot")
    return found.registry


def fields_of(owner: type[Any]) -> Mapping[str, Any]:
    """The settings of a section or a component, as pydantic has them."""
    # The one of sections, the other of components.
    found: Mapping[str, Any] = getattr(owner, "model_fields", None) or getattr(
        owner, "__pydantic_fields__", {}
    )
    return found


def slots_of(owner: type[Any]) -> dict[str, Registry[Any]]:
    """The settings of a section or a component that hold components, with their registries."""
    found = {}
    for name, field in fields_of(owner).items():
        registries = [mark.registry for mark in list_marks(field) if isinstance(mark, _Slot)]
        if registries:
            found[name] = registries[0]
    return found


def list_marks(field: Any) -> list[Any]:
    """The metadata of a setting and of the types within it, as in `Annotated[...] | None`."""
    return [*field.metadata, *_list_inner_marks(field.annotation)]


def _list_inner_marks(annotation: Any) -> list[Any]:
    own = list(getattr(annotation, "__metadata__", ()))
    return own + [mark for inner in get_args(annotation) for mark in _list_inner_marks(inner)]


def refused_as_value(registry: Registry[Any], spec: Any) -> Any:
    """Build, with a refusal turned into the ValueError that pydantic collects (with its key's
    path)."""
    try:
        return registry.build(spec)
    except ConfigError as refusal:
        raise ValueError(str(refusal)) from refusal


@dataclasses.dataclass(frozen=True)
class Neutral:
    """Marks a setting; made by `neutral`."""

    value: Any


def neutral(value: Any) -> Neutral:
    """Metadata for `Annotated[...]`: with this value a run is what it was before the setting was.

    A run is known by a hash of its settings. A new setting would give every stored run another
    hash, and so orphan it, were it not left out of the hash at its neutral value.

    Parameters
    ----------
    value : object
        The neutral value, in a slot its name or specification. As a rule it is the default.

    Examples
    --------
    >>> from typing import Annotated
    >>> @component
    ... class Averaging:
    ...     rate: Fraction = 1.0
    ...     clip: Annotated[float | None, neutral(None)] = None
    >>> without_neutral(Averaging(), {"rate": 1.0, "clip": None})
    {'rate': 1.0}
    >>> without_neutral(Averaging(clip=2.0), {"rate": 1.0, "clip": 2.0})
    {'rate': 1.0, 'clip': 2.0}
    """
    return Neutral(value)


def without_neutral(part: Any, dumped: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a result: a dumped section or component without the settings that are neutral.

    It goes down into sections and components. What has nothing left, though it had settings, is
    left out whole.

    Parameters
    ----------
    part : pydantic model or component
        The object.
    dumped : mapping
        Its settings as plain values; `name` of a component is one of them.
    """
    kept = dict(dumped)
    for name, metadata, annotated in _fields_of(part):
        value = getattr(part, name)
        if name not in kept or _is_neutral(value, metadata):
            kept.pop(name, None)
        elif annotated and isinstance(kept[name], Mapping):
            kept[name] = without_neutral(value, kept[name])
            if dumped[name] and not kept[name]:
                del kept[name]
    return kept


def _fields_of(part: Any) -> Iterator[tuple[str, list[Any], bool]]:
    """Name and metadata of each setting, and whether it has settings of its own."""
    for name, field in _settings_of(part).items():
        yield name, field.metadata, bool(_settings_of(getattr(part, name)))


def _settings_of(part: Any) -> Mapping[str, Any]:
    return fields_of(type(part))


def _is_neutral(value: Any, metadata: list[Any]) -> bool:
    marks = [mark for mark in metadata if isinstance(mark, Neutral)]
    registry = next((mark.registry for mark in metadata if isinstance(mark, _Slot)), None)
    for mark in marks:
        expected = mark.value if registry is None else registry.build(mark.value)
        # 1 is not True, and 1.0 is not 1, where hashes are concerned.
        if type(value) is type(expected) and value == expected:
            return True
    return False


# -- import paths ----------------------------------------------------------------------------------

_FOLDERS: list[str] = []
"""Where the configuration that was read last, and those that it builds on, lie."""


def add_import_folder(folder: Path, anew: bool = False) -> None:
    """Let import paths of components reach the modules in a folder.

    Parameters
    ----------
    folder : Path
        Where they lie.
    anew : bool
        Whether the folders that were added before are to be forgotten.
    """
    if anew:
        sys.path[:] = [entry for entry in sys.path if entry not in _FOLDERS]
        _FOLDERS.clear()
    name = str(folder.absolute())
    if name not in sys.path:
        # Behind the first entry, which is the script's folder or the working directory, and before
        # the packages that are installed: as Python does it for a script's folder.
        sys.path.insert(1, name)
        _FOLDERS.append(name)


class ImportFolders:
    """The folders that import paths reach, as a value that travels.

    Whatever is unpickled after it, in another process, finds its modules there; on another machine,
    where the folder is shared."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_import_folders, tuple(_FOLDERS)


def _restore_import_folders(*folders: str) -> ImportFolders:
    for folder in folders:
        add_import_folder(Path(folder))
    return ImportFolders()


_LONGEST_PATH = 500
"""Letters of an import path, which is looked up on the disk."""


def import_path(path: str, kind: str) -> Any:
    """The object at `package.module:Name`, or a ConfigError that says which half is wrong."""
    if len(path) > _LONGEST_PATH or "/" in path:
        raise ConfigError(broken(f"a {kind} is named by an import path", show_value(path)))
    module_name, _, attribute = path.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            rule = f"{kind} '{path}' needs the package '{missing}', which is not installed"
            raise ConfigError(rule) from error
        beside = "".join(f", beside the configuration in {folder}" for folder in _FOLDERS)
        rule = f"there is no module '{module_name}' on the Python path{beside}"
        here = f"in the working directory {Path.cwd()}"
        raise ConfigError(f"{kind} '{path}': {rule} or {here}") from error
    except (ImportError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{kind} '{path}': importing '{module_name}' failed: {error}") from error
    if not hasattr(found, attribute):
        hint = suggest_nearest(attribute, vars(found))
        rule = f"{kind} '{path}': module '{module_name}' has no '{attribute}'. {hint}"
        raise ConfigError(rule.rstrip())
    return getattr(found, attribute)


# -- values in messages ----------------------------------------------------------------------------

WIDEST = 80


class _ShortRepr(reprlib.Repr):
    """Cuts texts short, without the credentials in them: what is cut out may be what tells that the
    rest is one."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(mask_secrets(x), level)


_SHORT = _ShortRepr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = WIDEST


def show_value(value: Any) -> str:
    """A value for a message, cut short: aliases in YAML can make small texts immense."""
    try:
        text = _SHORT.repr(value)
    except ValueError:  # whole numbers of thousands of digits, which Python does not write out
        text = f"{type(value).__name__} of immense size"
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."
