"""`rayfl run -m`: every combination of several values, one run after the other, and a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import click

from rayfl.commands.json_output import print_json
from rayfl.commands.run import describe_result, suggest_next
from rayfl.errors import ConfigError, RayflError

if TYPE_CHECKING:
    from rayfl.config.schema import Config

COLUMNS = {"accuracy": "test/accuracy", "loss": "test/loss", "macro F1": "test/macro_f1"}
"""Titles of the table's numbers, and the metrics that they are."""
SEED = "seed"
MOST_TOLD = 5


@dataclass(frozen=True)
class GridPoint:
    """One combination."""

    overrides: tuple[str, ...]
    values: Mapping[str, str]
    """As written, by the keys that vary."""
    config: Config

    @property
    def title(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items())


def run_grid(
    config: Path, overrides: Sequence[str], address: str | None, quiet: bool, as_json: bool
) -> None:
    """Run all combinations, and print what they came to; exit with 1 if one of them failed.

    Parameters
    ----------
    config
        A file, or the name of one that comes with rayfl.
    overrides
        `key=value,value` each.
    address
        A Ray cluster; by default RAY_ADDRESS, or a Ray of our own.
    quiet
        No progress, only the table.
    as_json
        Everything as JSON in place of the table."""
    points = plan_grid(config, overrides)
    say = click.echo if not as_json else _say_nothing
    say(f"{len(points)} runs")
    found: list[dict[str, Any]] = []
    failed = 0
    for point, outcome in _run_points(points, address, quiet, say):
        if isinstance(outcome, RayflError):
            failed += 1
            click.echo(f"failed: {point.title}: {outcome}", err=True)
            found.append({"values": point.values, "error": str(outcome)})
        else:
            found.append({"values": point.values, **outcome})
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(["", *format_grid(found)]))
        output = points[0].config.output
        made = [each["experiment"] for each in found if "error" not in each]
        for what, command in suggest_next(output, made[0] if made else None):
            click.echo(f"{what:18} {command}")
    if failed:
        click.echo(f"{failed} of {len(points)} runs failed", err=True)
        sys.exit(1)


def _say_nothing(text: str) -> None:
    """What a person would read."""


def plan_grid(config: Path, overrides: Sequence[str]) -> list[GridPoint]:
    """All combinations, each known to be one that can run."""
    from rayfl.config.files import read_config
    from rayfl.config.grid import expand_grid, list_varied
    from rayfl.config.quick_look import look_quickly
    from rayfl.config.schema import Config, validate_config
    from rayfl.study.checks import ConfigTrials

    varied = list_varied(overrides)
    written = expand_grid(overrides)
    titles = [_describe_words(words) for words in written]
    plain = [read_config(config, words) for words in written]
    for settings, title in zip(plain, titles, strict=True):
        # Before torch is imported for the first of them.
        look_quickly(settings, Config, title)
    trials = ConfigTrials()
    points = []
    problems = []
    for words, settings, title in zip(written, plain, titles, strict=True):
        checked = validate_config(settings, title)
        if problem := trials.of(checked).problem:
            problems.append(f"{title}: {problem}")
        values = dict(word.split("=", 1) for word in words)
        shown = {key: values[key] for key in varied}
        points.append(GridPoint(words, shown, checked))
    trials.close()
    if problems:
        head = f"{len(problems)} of {len(points)} runs cannot be made; none was begun"
        raise ConfigError("\n".join([head, *problems[:MOST_TOLD]]))
    return points


def _describe_words(words: Sequence[str]) -> str:
    return " ".join(words) or "configuration"


def _run_points(
    points: Sequence[GridPoint], address: str | None, quiet: bool, say: Callable[[str], None]
) -> Iterator[tuple[GridPoint, dict[str, Any] | RayflError]]:
    """Each point with what it came to; what fails does not keep the others from being made."""
    from rayfl.fleet.on_ray.connection import connect_ahead
    from rayfl.run.experiment import run as run_experiment
    from rayfl.run.progress import progress_for

    places = {point.config.fleet for point in points}
    shared = {"fleet": "ray" if "ray" in places else "inline"}
    with connect_ahead(shared, address):
        for number, point in enumerate(points, 1):
            say(f"[{number}/{len(points)}] {point.title}")
            progress = progress_for(point.config.training.rounds, quiet)
            try:
                result = run_experiment(point.config, address=address, progress=progress)
            except RayflError as error:
                yield point, error
            else:
                yield point, describe_result(result)


# -- the table -------------------------------------------------------------------------------------


def format_grid(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each combination; of several seeds, the mean and the standard deviation."""
    groups: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
    for each in found:
        several = len({other["values"].get(SEED) for other in found}) > 1
        told = each["values"].items()
        shown = [pair for pair in told if not (several and pair[0] == SEED)]
        groups.setdefault(tuple(shown), []).append(each)
    keys = [name for name, _ in next(iter(groups))]
    rows = [[*keys, *COLUMNS, "wrong labels", "runs"]]
    for key, members in groups.items():
        rows.append([value for _, value in key] + _format_group(members))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_format_row(row, widths, len(keys)) for row in rows]


def _format_group(members: Sequence[Mapping[str, Any]]) -> list[str]:
    ended = [each for each in members if "error" not in each]
    cells = []
    for metric in COLUMNS.values():
        values = [each["metrics"][metric] for each in ended if metric in each["metrics"]]
        cells.append(_format_mean(values, "{:.4f}"))
    shares = [each["wrong_labels"] for each in ended if each["wrong_labels"] is not None]
    cells.append(_format_mean(shares, "{:.1%}", spread=False))
    whole = len(ended) == len(members)
    return [*cells, str(len(ended)) if whole else f"{len(ended)} of {len(members)}"]


def _format_mean(values: Sequence[float], form: str, spread: bool = True) -> str:
    if not values:
        return "-"
    mean = form.format(fmean(values))
    several = spread and len(values) > 1
    return f"{mean} +- {form.format(stdev(values))}" if several else mean


def _format_row(row: Sequence[str], widths: Sequence[int], texts: int) -> str:
    """Texts to the left, numbers to the right."""
    cells = [
        cell.ljust(width) if place < texts else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
