"""Learning, measured on real data: runs what is missing and writes docs/results.md from what the
runs left.

    python benchmarks/accuracy.py                    everything (about an hour on two cores)
    python benchmarks/accuracy.py --only fedds       one experiment
    python benchmarks/accuracy.py --write            no runs, only the document

A run that the output folder already holds (same resolved configuration) is not repeated.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from rayfl.config.schema import Config, load_config
from rayfl.fleet.on_ray.connection import connect_ray
from rayfl.run.experiment import run as run_experiment
from rayfl.run.progress import progress_for
from rayfl.run.store import Record, find_record

ROOT = Path(__file__).resolve().parent.parent
LAST = 10


@dataclass(frozen=True)
class Cell:
    """One row of a table: a method in a setting, and what its paper prints for it."""

    title: str
    config: str
    overrides: tuple[str, ...] = ()
    printed: str = ""


@dataclass(frozen=True)
class Experiment:
    """One table of the document. `metrics` are columns beside the accuracy, which is the mean of
    the last rounds."""

    key: str
    title: str
    text: str
    cells: Sequence[Cell]
    seeds: Sequence[int] = (0,)
    metrics: Sequence[str] = ()
    finding: str = ""


@dataclass
class Measured:
    """The runs of one cell."""

    accuracy: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    other: dict[str, list[float]] = field(default_factory=dict)
    scenarios: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def experiments() -> list[Experiment]:
    """What is measured, from `experiments.json` beside this file."""
    tables = json.loads((Path(__file__).parent / "experiments.json").read_text())
    return [experiment_of(table) for table in tables]


def experiment_of(table: Mapping[str, Any]) -> Experiment:
    cells = [cell_of(cell) for cell in table["cells"]]
    return Experiment(**{**table, "cells": cells})


def cell_of(cell: Mapping[str, Any]) -> Cell:
    overrides = tuple(cell.get("overrides", ()))
    return Cell(**{**cell, "overrides": overrides})


def settings(cell: Cell, seed: int, output: Path) -> Config:
    """The configuration of one run."""
    return load_config(ROOT / cell.config, (*cell.overrides, f"seed={seed}", f"output={output}"))


def measure(experiment: Experiment, output: Path, run_missing: bool) -> dict[str, Measured]:
    """All cells of a table; cells without a run are empty."""
    table = {}
    for cell in experiment.cells:
        measured = table[cell.title] = Measured()
        for seed in experiment.seeds:
            config = settings(cell, seed, output)
            found = find_record(config.output, config)
            if found is None and run_missing:
                click.echo(f"\n{experiment.key}: {cell.title}, seed {seed}")
                run_experiment(config, progress=progress_for(config.training.rounds, quiet=False))
                found = find_record(config.output, config)
            if found is not None:
                take(measured, found, experiment, cell, seed)
    return table


def take(
    measured: Measured,
    found: Record,
    experiment: Experiment,
    cell: Cell,
    seed: int,
) -> None:
    """Add one run to its cell."""
    measured.accuracy.append(100 * found.score("test/accuracy", window=LAST))
    measured.best.append(100 * found.score("test/accuracy", "best"))
    for name in experiment.metrics:
        measured.other.setdefault(name, []).append(found.score(name, window=LAST))
    measured.scenarios.append(found.scenario)
    words = ["rayfl run", cell.config, *map(quoted, cell.overrides), f"seed={seed}"]
    measured.commands.append(" ".join(words))


def quoted(override: str) -> str:
    return f"'{override}'" if any(sign in override for sign in "{ ,") else override


def section(experiment: Experiment, table: Mapping[str, Measured]) -> list[str]:
    """One table as Markdown, with the command and the scenario behind every figure."""
    names = [*experiment.metrics]
    head = ["method", f"accuracy (last {LAST})", "best round", *names, "printed"]
    lines = [f"## {experiment.title}", "", experiment.text, "", row(head), row(["---"] * len(head))]
    for cell in experiment.cells:
        measured = table[cell.title]
        others = [spread(measured.other.get(name, []), 3) for name in names]
        figures = [spread(measured.accuracy, 2), spread(measured.best, 2), *others]
        lines.append(row([cell.title, *figures, cell.printed or "-"]))
    lines += ["", experiment.finding] if experiment.finding else []
    lines += ["", "| method | command | scenario |", "|---|---|---|"]
    for cell in experiment.cells:
        measured = table[cell.title]
        for command, scenario in zip(measured.commands, measured.scenarios, strict=True):
            lines.append(row([cell.title, f"`{command}`", f"`{scenario[:16]}`"]))
    return [*lines, ""]


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and sample deviation; the mean alone for one run, `not run` for none."""
    if not values:
        return "not run"
    if np.isnan(values).all():
        return "-"
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    deviation = f"{np.std(values, ddof=1):.{digits}f}"
    return f"{mean} ± {deviation} (n={len(values)})"


def preamble() -> list[str]:
    import torch

    today = time.strftime("%Y-%m-%d")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    facts = f"{machine}, torch {torch.__version__}, {today}"
    return [
        "# Results on real data",
        "",
        "Written by `python benchmarks/accuracy.py`; the command and the scenario of each figure "
        "are below its table.",
        f"Accuracies are percent. Machine: {facts}.",
        "",
    ]


@click.command()
@click.option("--only", multiple=True, help="Keys of experiments.")
@click.option("--write", is_flag=True, help="Write the document from the runs that are there.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=ROOT / "outputs" / "accuracy",
    show_default=True,
)
def main(only: tuple[str, ...], write: bool, output: Path) -> None:
    """Run what is missing, then write docs/results.md."""
    chosen = [experiment for experiment in experiments() if not only or experiment.key in only]
    os.chdir(ROOT)
    if not write:
        with connect_ray(None):
            for experiment in chosen:
                measure(experiment, output.absolute(), run_missing=True)
    lines = preamble()
    for experiment in experiments():
        lines += section(experiment, measure(experiment, output.absolute(), run_missing=False))
    (ROOT / "docs" / "results.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
