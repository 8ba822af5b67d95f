"""`rayfl quickstart`: what label noise costs federated averaging, on the digits inside
scikit-learn."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from rayfl.config.schema import Config, load_config
from rayfl.run.experiment import Result, run as run_experiment
from rayfl.run.progress import progress_for

RUNS = {"noisy labels": (), "clean labels": ("noise=none",)}
"""By title, what is changed for a run."""


def compare_noise(
    config: Path,
    overrides: tuple[str, ...],
    quiet: bool,
) -> None:
    """Run the configuration with and without label noise, and print a table of both.

    Parameters
    ----------
    config, overrides
        As for `rayfl run`.
    quiet
        Only the table, no progress."""
    results: dict[str, Result] = {}
    with _share_ray(load_config(config, overrides)):
        for title, changes in RUNS.items():
            settings = load_config(config, (*overrides, *changes))
            method = settings.resolved()["method"]["name"]
            click.echo(f"{method}, {title}")
            progress = progress_for(settings.training.rounds, quiet)
            results[title] = run_experiment(settings, progress=progress)
    click.echo(_format_comparison(results))
    output = next(iter(results.values())).config.output
    click.echo(f"\nLook at both runs:  {sys.argv[0]} ui -o {output}")


def _share_ray(config: Config) -> AbstractContextManager[None]:
    """One Ray for both runs."""
    if config.fleet == "inline":
        return nullcontext()
    from rayfl.fleet.on_ray.connection import connect_ray

    return connect_ray(None)


def _format_comparison(results: dict[str, Result]) -> str:
    """Accuracy, loss and macro F1 of each run."""
    rows = [f"\n{'':14} {'accuracy':>9} {'loss':>8} {'macro F1':>9} {'wrong labels':>13}"]
    for title, result in results.items():
        accuracy = result.metrics["test/accuracy"]
        loss = result.metrics["test/loss"]
        macro_f1 = result.metrics["test/macro_f1"]
        wrong = result.noise_rate or 0
        rows.append(f"{title:14} {accuracy:9.4f} {loss:8.4f} {macro_f1:9.4f} {wrong:13.1%}")
    return "\n".join(rows)
