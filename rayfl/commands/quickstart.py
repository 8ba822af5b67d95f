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

CLEAN = "noise=none"


def quickstart(config: Path, overrides: tuple[str, ...], quiet: bool) -> None:
    """The configured run, the same without label noise, and a table of both."""
    results: dict[str, Result] = {}
    with shared_ray(load_config(config, overrides)):
        for title, more in (("noisy labels", ()), ("clean labels", (CLEAN,))):
            settings = load_config(config, (*overrides, *more))
            click.echo(f"{settings.resolved()['method']['name']}, {title}")
            results[title] = run_experiment(
                settings, progress=progress_for(settings.training.rounds, quiet)
            )
    click.echo(table(results))
    output = next(iter(results.values())).config.output
    click.echo(f"\nLook at both runs:  {sys.argv[0]} ui -o {output}")


def shared_ray(config: Config) -> AbstractContextManager[None]:
    """One Ray for both runs."""
    if config.fleet == "inline":
        return nullcontext()
    from rayfl.fleet.on_ray.connection import connected

    return connected(None)


def table(results: dict[str, Result]) -> str:
    """Accuracy, loss and macro F1 of each run."""
    rows = [f"\n{'':14} {'accuracy':>9} {'loss':>8} {'macro F1':>9} {'wrong labels':>13}"]
    for title, result in results.items():
        metrics = [result.metrics[f"test/{name}"] for name in ("accuracy", "loss", "macro_f1")]
        rows.append(
            f"{title:14} {metrics[0]:9.4f} {metrics[1]:8.4f} {metrics[2]:9.4f} {result.noise_rate or 0:13.1%}"
        )
    return "\n".join(rows)
