"""Overrides with several values each, and all their combinations: a grid without a file.

method=fedavg,fedrn            two values
seed=0..4                      the whole numbers from 0 to 4
model.hidden=[64,32],[128]     brackets and quotes keep their commas"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from rayfl.errors import ConfigError, broken

MOST = 10_000
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_OPENING = "([{"
_CLOSING = ")]}"


def expand_grid(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of the values, as overrides with one value each; the last one changes
    fastest.

    Parameters
    ----------
    overrides : sequence of str
        `key=value,value` each.
    """
    axes = [_list_overrides(override) for override in overrides]
    total = 1
    for axis in axes:
        total *= len(axis)
    if total > MOST:
        raise ConfigError(broken(f"a grid has at most {MOST} runs", total, "Name fewer values."))
    return list(itertools.product(*axes))


def list_varied(overrides: Sequence[str]) -> list[str]:
    """The keys that have several values."""
    return [word.partition("=")[0] for word in overrides if len(_list_overrides(word)) > 1]


def _list_overrides(override: str) -> list[str]:
    key, equals, text = override.partition("=")
    if not equals:
        # What is wrong with it is told by whoever applies it.
        return [override]
    return [f"{key}={value}" for value in split_values(text)]


def split_values(text: str) -> list[str]:
    """The values in a text: parted by commas outside brackets and quotes, ranges written out."""
    parts = [part.strip() for part in _split_commas(text)]
    if len(parts) > 1 and not all(parts):
        raise ConfigError(broken("values are parted by single commas", f"'{text}'"))
    return [value for part in parts for value in _expand_range(part)]


def _split_commas(text: str) -> list[str]:
    parts = [""]
    depth = 0
    quote = ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def _expand_range(part: str) -> list[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    first = int(found[1])
    last = int(found[2])
    if last < first:
        raise ConfigError(broken("a range goes from the lower to the higher number", part))
    if last - first >= MOST:
        raise ConfigError(broken(f"a grid has at most {MOST} runs", part))
    return [str(number) for number in range(first, last + 1)]
