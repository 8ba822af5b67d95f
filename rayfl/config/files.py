"""Configurations as text: YAML files with inheritance, and overrides.

base: quickstart.yaml          another file, or a list of them, that this one builds on
method: {name: fedavg}         components are a name, or a mapping with a name and settings
training.lr=0.1                an override on the command line
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from rayfl.component import add_import_folder, show_value
from rayfl.config.shipped import find_base, find_file, refuse_other_kind, suggest_file
from rayfl.errors import ConfigError, broken

_YAML_ERRORS = (
    yaml.YAMLError,
    RecursionError,
    # A tag on a value that it does not fit, such as `!!timestamp 9`, surfaces as any of these.
    ValueError,
    AttributeError,
    LookupError,
    TypeError,
)


def read_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a file with overrides.

    Parameters
    ----------
    path : Path
        A YAML file, or the name of one that comes with rayfl. Modules of one's own, with methods or
        datasets, are found in its folder.
    overrides : sequence of str
        `key.sub=value` each; the value is read as YAML, and later ones win.
    """
    place = find_file(path, "run")
    refuse_other_kind(parse_file(place), path, "run")
    settings = read_file(place)
    for override in overrides:
        settings = apply_override(settings, override)
    return settings


def read_file(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The plain values of a file, merged onto those of its `base` files."""
    path = path.expanduser().absolute()
    if path in above:
        chain = " -> ".join(str(p) for p in (*above, path))
        raise ConfigError(broken("`base` must not lead back to itself", chain))
    # A method of the user's own lies beside the configuration, not in an installed package.
    add_import_folder(path.parent, anew=not above)
    settings = parse_file(path)
    bases = settings.pop("base", [])
    names = [bases] if isinstance(bases, str) else bases
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        rule = f"{path}: `base` is a file name or a list of them"
        raise ConfigError(broken(rule, show_value(bases)))
    merged: dict[str, Any] = {}
    for base in names:
        merged = merge_settings(merged, read_file(find_base(path.parent, base), (*above, path)))
    return merge_settings(merged, settings)


def parse_file(path: Path) -> dict[str, Any]:
    """The mapping that one YAML file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        rule = "a configuration is a readable YAML file"
        raise ConfigError(broken(rule, f"{path}, which is not there", suggest_file(path))) from None
    except (OSError, ValueError) as error:
        rule = "a configuration is a readable YAML file"
        raise ConfigError(broken(rule, f"{path} ({error})")) from None
    settings = parse_yaml(text, str(path))
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        rule = f"{path}: a configuration is a mapping of keys to values"
        raise ConfigError(broken(rule, type(settings).__name__))
    return settings


def parse_yaml(text: str, where: str) -> Any:
    """The plain values of a text."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except _YAML_ERRORS as error:
        raise ConfigError(f"{where} is not valid YAML: {error}") from None


def merge_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` onto `below`, key by key; a component of another name replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge_settings(old, value) if _are_alike(old, value) else value
    return merged


def _are_alike(below: Any, above: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether both are mappings, and not of two different components."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return False
    name = below.get("name")
    return bool(above.get("name", name) == name)


def apply_override(settings: Mapping[str, Any], override: str) -> dict[str, Any]:
    """`a.b=value` put into the settings; the value is read as YAML."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(broken("an override has the form key.sub=value", f"'{override}'"))
    value = parse_yaml(text, f"the value of override '{override}'")
    return put_setting(settings, keys, value)


def put_setting(settings: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of `settings` with one nested key set; `method.mu` of `method: fedprox` becomes a
    mapping."""
    first, *rest = keys
    if not rest:
        return {**settings, first: value}
    inner = settings.get(first)
    if isinstance(inner, str):
        inner = {"name": inner}
    elif not isinstance(inner, Mapping):
        inner = {}
    return {**settings, first: put_setting(inner, rest, value)}


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice and reads 1e-3 as the number it is."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"the key '{key.value}' is written twice, line {line}")
            # Keys may be whole sequences, which have no hash; YAML itself refuses them.
            seen.update([key.value] if isinstance(key.value, str) else [])
        return dict(super().construct_mapping(node, deep=deep))


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
