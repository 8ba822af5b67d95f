"""A run in words: the line that it opens with, the name that tells it from its neighbours, the
sentence that MLflow shows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rayfl.config.schema import Config

STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-")
"""The beginning of a run's folder: when it began."""
MOST_SETTINGS = 3
MOST_LETTERS = 24
"""Of one value; a list of a hundred rates would fill the line."""
LEADING = ("rate", "alpha", "shards", "classes")
"""Settings that need no name beside their component's: `symmetric 0.4`."""


def describe_run(config: Config) -> str:
    """What runs: data, clients, method, noise, rounds and seed, in one line."""
    cohort = config.training.cohort(config.clients)
    rounds = f"{config.training.rounds} rounds of {cohort} clients"
    parts = [
        describe_component(config, "method"),
        f"{describe_component(config, 'data')} over {config.clients} clients",
        describe_component(config, "partition"),
        describe_noise(config),
        describe_component(config, "model"),
        rounds,
        f"seed {config.seed}",
    ]
    return ", ".join(parts)


def describe_noise(config: Config) -> str:
    """The noise of the clients' labels, as far as it is drawn here."""
    if config.name_of("noise") == "none":
        return "labels as they are" if config.labels == "given" else "clean labels"
    return f"noise {describe_component(config, 'noise')}"


def describe_component(config: Config, slot: str) -> str:
    """`fedprox mu=0.1`, `symmetric 0.4`: a component's name and what of it is not as usual.

    Parameters
    ----------
    config : Config
    slot : str
        The setting that holds the component.
    """
    name = config.name_of(slot).rpartition(":")[2]
    # Without secrets: this goes onto screens and into names.
    changed = _list_changed(getattr(config, slot), config.resolved()[slot])
    told = [
        _show_value(value) if key in LEADING else f"{key}={_show_value(value)}"
        for key, value in changed.items()
    ]
    return " ".join([name, *told[:MOST_SETTINGS]])


def _list_changed(part: Any, dumped: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a component that are not at their default, in their order."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(part)
        if field.default is not dataclasses.MISSING
    }
    return {
        key: dumped[key]
        for key in (field.name for field in dataclasses.fields(part))
        if key in dumped and (key not in defaults or getattr(part, key) != defaults[key])
    }


def _show_value(value: Any) -> str:
    """A value in a word: a component by its name, but a constant rate as its number."""
    if isinstance(value, Mapping):
        plain = value.get("value") if value.get("name") == "constant" else value.get("name")
        value = "..." if plain is None else plain
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = f"[{', '.join(map(_show_value, value))}]"
    text = str(value)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


# -- names -----------------------------------------------------------------------------------------


def name_run(config: Config, folder: str) -> str:
    """What tells a run from its neighbours where a list cuts names: method, seed and noise come
    first, the moment last.

    Parameters
    ----------
    config : Config
    folder : str
        The name of its directory, which begins with the moment.
    """
    parts = [
        describe_component(config, "method"),
        f"s{config.seed}",
        _turn_words(describe_component(config, "noise")),
        _turn_words(describe_component(config, "partition")),
        describe_component(config, "data"),
        _read_moment(folder),
    ]
    return " ".join(parts)


def _turn_words(text: str) -> str:
    """`0.4 symmetric` for `symmetric 0.4`: what is cut off is the word, not the number."""
    name, _, rest = text.partition(" ")
    return f"{rest} {name}" if rest[:1].isdigit() and " " not in rest else text


def _read_moment(folder: str) -> str:
    """`11-19 11:53:10` of a folder's stamp; a folder without one is its own moment."""
    found = STAMP.match(folder)
    if found is None:
        return folder
    _, month, day, hour, minute, second = found.groups()
    return f"{month}-{day} {hour}:{minute}:{second}"


# -- tags ------------------------------------------------------------------------------------------


def tag_settings(config: Config) -> dict[str, str]:
    """The numbers by which runs are most often told apart, as columns for a list of runs."""
    alpha = getattr(config.partition, "alpha", None)
    tags = {
        "clients": str(config.clients),
        "rounds": str(config.training.rounds),
        "lr": f"{config.training.lr:g}",
    }
    return tags if alpha is None else {**tags, "alpha": f"{alpha:g}"}
