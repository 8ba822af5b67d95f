"""The points of a sweep, and the configuration of each of its trials."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from rayfl.config.files import merge_settings, put_setting
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError
from rayfl.tuning.schema import Sweep

SHOWN = 5


@dataclass(frozen=True)
class Point:
    """One value for every setting that is searched."""

    number: int
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        return format_values(self.values)


def format_values(values: Mapping[str, Any]) -> str:
    """`training.lr=0.1 method={name: fedprox, mu: 0.1}`: overrides, as a command line takes
    them."""
    return " ".join(f"{path}={format_value(value)}" for path, value in values.items())


def name_values(values: Mapping[str, Any]) -> str:
    """`lr=0.1 fedprox mu=0.1`: a point as a name that a list may cut short."""
    return " ".join(_name_value(path.rpartition(".")[2], value) for path, value in values.items())


def _name_value(key: str, value: Any) -> str:
    """A setting by its last word, a component by its name and what it is set to."""
    if isinstance(value, Mapping):
        rest = [f"{inner}={format_value(each)}" for inner, each in value.items() if inner != "name"]
        return " ".join([str(value.get("name", key)), *rest])
    return f"{key}={format_value(value)}"


def format_value(value: Any) -> str:
    """A value in one line of YAML, numbers short enough to read."""
    if isinstance(value, float):
        return repr(value) if len(repr(value)) < 8 else f"{value:.4g}"
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def plan_points(sweep: Sweep) -> list[Point]:
    """All points of a grid or of random draws, always the same ones; none for a searcher that asks
    as it goes."""
    if sweep.searcher == "optuna":
        return []
    searched = sweep.search.items()
    grids = {path: domain.grid for path, domain in searched if domain.grid is not None}
    rng = np.random.default_rng(sweep.seed)
    draws = sweep.samples if len(grids) < len(sweep.search) else 1
    points: list[Point] = []
    for chosen in itertools.product(*grids.values()):
        fixed = dict(zip(grids, chosen, strict=True))
        for _ in range(draws):
            values = {}
            for path, domain in searched:
                values[path] = fixed[path] if path in fixed else domain.draw(rng)
            points.append(Point(len(points), values))
    return points


def list_corners(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """What to try before a search that asks as it goes: all ends and choices of one setting at a
    time."""
    first = {path: domain.corners()[0] for path, domain in sweep.search.items()}
    for path, domain in sweep.search.items():
        for value in domain.corners():
            yield {**first, path: value}


def settings_of(sweep: Sweep, values: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The plain configuration of a trial; a mapping is laid onto what the base says, by the rules
    of `base`."""
    settings = dict(sweep.set)
    for path, value in values.items():
        keys = path.split(".")
        if isinstance(value, Mapping):
            settings = merge_settings(settings, put_setting({}, keys, value))
        else:
            settings = put_setting(settings, keys, value)
    return {**settings, "seed": seed}


def config_of(sweep: Sweep, values: Mapping[str, Any], seed: int) -> Config:
    """The configuration of a trial, or a ConfigError that says at which values."""
    return validate_config(settings_of(sweep, values, seed), f"{format_values(values)} seed={seed}")


def refuse_bad_points(sweep: Sweep, points: Sequence[Point]) -> None:
    """Nothing starts before every configuration is known to be one."""
    tried = [dict(point.values) for point in points]
    if sweep.searcher == "optuna" or sweep.stretch:
        tried += list_corners(sweep)
    problems = []
    for values in tried:
        try:
            config_of(sweep, values, sweep.seeds[0])
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        hidden = len(problems) - SHOWN
        more = [f"... and {hidden} more"] if hidden > 0 else []
        head = f"{len(problems)} of {len(tried)} points are no configuration; nothing was started"
        raise ConfigError("\n".join([head, *problems[:SHOWN], *more]))
