"""What a shell is offered when somebody presses the tabulator: configurations, keys, values.

All of it is read from the catalogue, which is there without importing a component."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rayfl.config.shipped import Kind, find_file, kind_of, list_shipped, shipped_folder
from rayfl.errors import RayflError

Schema = Mapping[str, Any]
Complete = Callable[..., list[str]]
"""Called by click with the context, the parameter and what has been typed of the word."""


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What may stand next after `rayfl run`."""
    before = _list_words(ctx, param)
    paths = [word for word in before if "=" not in word]
    key, equals, text = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _complete_value(key, text, before)]
    keys = _complete_key(incomplete, before)
    return keys if paths else [*complete_file("run", incomplete), *keys]


def complete_overrides(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What may stand next among the overrides of a run's configuration or of a study's cells."""
    config = ctx.params.get("config")
    before = [*([str(config)] if config else []), *_list_words(ctx, param)]
    key, equals, text = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _complete_value(key, text, before)]
    return _complete_key(incomplete, before)


def offer_files(kind: Kind) -> Complete:
    """Completes with files of a kind.

    Parameters
    ----------
    kind
        What the command takes."""
    return lambda *asked: complete_file(kind, asked[-1])


def offer_components(plural: str) -> Complete:
    """Completes with the names of a registry.

    Parameters
    ----------
    plural
        Its listing's name, such as `methods`."""
    return lambda *asked: _complete_component(plural, asked[-1])


def complete_resumed(*asked: Any) -> list[str]:
    """`auto`, and the runs below the output folder, newest first."""
    from rayfl.config.schema import default_output

    runs = sorted(path.parent.name for path in default_output().glob("runs/*/config.yaml"))
    return _keep_matching(["auto", *reversed(runs)], asked[-1])


def complete_choices(ctx: click.Context, *asked: Any) -> list[str]:
    """`AXIS=CHOICE` of the study that has been named."""
    from rayfl.study.cells import read_study

    incomplete: str = asked[-1]
    # An option that still lacks its value keeps click from telling arguments apart.
    loose = next(iter(ctx.args), None)
    named = ctx.params.get("file") or ctx.params.get("source") or loose
    try:
        axes = read_study(find_file(Path(named), "study"))["axes"] if named else {}
    except (RayflError, LookupError):
        return []
    axis, equals, text = incomplete.partition("=")
    if not equals:
        return _keep_matching([f"{name}=" for name in axes], incomplete)
    before, _, last = text.rpartition(",")
    start = f"{axis}={before}," if before else f"{axis}="
    return [start + name for name in _keep_matching(axes.get(axis, ()), last)]


def _complete_component(plural: str, incomplete: str) -> list[str]:
    from rayfl.config.catalogue import list_components

    return _keep_matching(list_components(plural), incomplete)


def complete_file(kind: Kind, incomplete: str) -> list[str]:
    """Files and folders here, and the names of what comes with rayfl."""
    return [*_list_named(kind, incomplete), *_list_here(incomplete)]


def _list_named(kind: Kind, incomplete: str) -> Iterator[str]:
    from rayfl.config.files import parse_file

    short = {name.rpartition("/")[2]: name for name in list_shipped()}
    for name in _keep_matching(short, incomplete):
        path = find_file(Path(name), kind)
        if path.is_relative_to(shipped_folder()) and kind_of(parse_file(path)) == kind:
            yield name


def _list_here(incomplete: str) -> list[str]:
    folder, slash, start = incomplete.rpartition("/")
    place = Path(folder or ("/" if slash else ".")).expanduser()
    found = []
    for path in sorted(place.glob(f"{start}*")) if place.is_dir() else []:
        if path.is_dir() and not path.name.startswith("."):
            found.append(f"{folder}{slash}{path.name}/")
        elif path.suffix in (".yaml", ".yml"):
            found.append(f"{folder}{slash}{path.name}")
    return found


def _list_words(ctx: click.Context, param: click.Parameter) -> list[str]:
    """The words that stand before."""
    words = ctx.params.get(param.name or "") or ()
    return [str(word) for word in words]


def _keep_matching(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


# -- keys and values -------------------------------------------------------------------------------


def _complete_key(incomplete: str, before: Sequence[str]) -> list[str]:
    """Keys; a section ends with a dot, any other with the sign of equality."""
    *above, _ = incomplete.split(".")
    found = _find_settings(above, before)
    start = "".join(f"{part}." for part in above)
    keys = []
    for name, setting in found.items():
        deeper = bool(_find_settings([*above, name], before))
        ends = [".", "="] if deeper and _is_slot(setting) else ["." if deeper else "="]
        keys += [f"{start}{name}{end}" for end in ends]
    return _keep_matching(keys, incomplete)


def _complete_value(key: str, text: str, before: Sequence[str]) -> list[str]:
    """Values of a setting; of several, the last one."""
    *above, name = key.split(".")
    setting = _find_settings(above, before).get(name)
    if setting is None:
        return []
    first, comma, last = text.rpartition(",")
    return [f"{first}{comma}{value}" for value in _keep_matching(_list_values(setting), last)]


def _list_values(setting: Schema) -> list[str]:
    """What a setting can be, where that can be listed."""
    from rayfl.config.catalogue import list_kind, slot_kind

    kind = slot_kind(setting)
    if kind is not None:
        return list_kind(kind)
    found = []
    for branch in (setting, *setting.get("anyOf", ())):
        if branch.get("type") == "boolean":
            found += ["true", "false"]
        named = [branch["const"]] if "const" in branch else branch.get("enum", ())
        found += map(str, named)
    default = setting.get("default")
    simple = isinstance(default, (int, float)) and not isinstance(default, bool)
    return found or ([str(default)] if simple else [])


def _is_slot(setting: Schema) -> bool:
    from rayfl.config.catalogue import slot_kind

    return slot_kind(setting) is not None


def _find_settings(path: Sequence[str], before: Sequence[str]) -> dict[str, Schema]:
    """The settings that lie at a dotted path, given what has been written before."""
    from rayfl.config.catalogue import find_properties, read_schema, slot_kind

    here: dict[str, Schema] = dict(read_schema("run").get("properties", {}))
    here.pop("base", None)
    for depth, part in enumerate(path):
        setting = here.get(part, {})
        kind = slot_kind(setting)
        chosen = None
        if kind is not None:
            chosen = _find_chosen(path[: depth + 1], before) or setting.get("default")
        here = find_properties(setting, kind, chosen)
    return here


def _find_chosen(path: Sequence[str], before: Sequence[str]) -> str | None:
    """The component in a slot, as the configuration and the overrides before have it."""
    from rayfl.config.files import read_config

    files = [word for word in before if "=" not in word]
    overrides = [word for word in before if "=" in word]
    try:
        here: Any = read_config(Path(files[0] if files else "quickstart"), overrides)
    except RayflError:
        return None
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
    found = here.get("name") if isinstance(here, Mapping) else here
    return found if isinstance(found, str) else None
