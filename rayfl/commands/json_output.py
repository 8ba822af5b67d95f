"""What commands print for programs: one JSON value on the standard output, and nothing else there.

Progress and warnings go to the standard error or nowhere; a failure is a sentence there and an exit
code, as without `--json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rayfl.secrets import mask_secrets

AsJson = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON value, for programs, and nothing else."
)


def print_json(value: Any) -> None:
    """Print a value of plain types.

    Parameters
    ----------
    value : object
        Mappings, sequences, paths, numbers and texts; what is no finite number becomes null, and
        credentials become stars.
    """
    shown = mask_secrets(_plain(value))
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "item"):  # numpy's numbers
        return _plain(value.item())
    return str(value) if isinstance(value, Path) else value
