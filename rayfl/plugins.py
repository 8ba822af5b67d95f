"""Names that other packages add: whatever is installed beside rayfl and names components under an
entry-point group such as `rayfl.methods`.

    [project.entry-points."rayfl.methods"]      in the other package's pyproject.toml
    my_method = "rayfl_something:MyMethod"

A name of rayfl's own is never replaced: a stored run that says `fedavg` means rayfl's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

from rayfl.errors import ConfigError, broken


class Plugin(NamedTuple):
    """A component of another package."""

    path: str
    """Where it is: `package.module:Name`."""
    package: str
    """What brought it, as it is called where it was installed from."""


@cache
def read_plugins(group: str) -> Mapping[str, Sequence[Plugin]]:
    """What is installed, by name; a name that two packages use has both.

    Parameters
    ----------
    group : str
        The entry-point group, such as `rayfl.methods`.
    """
    found: dict[str, list[Plugin]] = {}
    for point in entry_points(group=group):
        package = point.dist.name if point.dist is not None else "?"
        plugin = Plugin(point.value, package)
        known = found.setdefault(point.name, [])
        # A folder that lies on the path twice shows its packages twice.
        if plugin not in known:
            known.append(plugin)
    return found


def find_plugin(group: str, name: str) -> str | None:
    """The import path behind a name; None where no package adds it.

    Parameters
    ----------
    group, name : str
        The entry-point group, and a name in it.
    """
    found = read_plugins(group).get(name, ())
    if len(found) > 1:
        rule = f"one package adds the name '{name}' to {group}"
        both = " and ".join(plugin.package for plugin in found)
        raise ConfigError(broken(rule, both, f"Write an import path: {found[0].path}."))
    return found[0].path if found else None
