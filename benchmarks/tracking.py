"""What tracking costs: the quickstart's rounds with and without MLflow, in turns, in one process
and one Ray.

    python benchmarks/tracking.py [--pairs 5] [--rounds 100]

Prints the median round of each and their ratio; the aim is below 1.02.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np

from rayfl.config.schema import load_config
from rayfl.fleet.on_ray.connection import connect_ray
from rayfl.run.experiment import run

QUICKSTART = Path(__file__).resolve().parent.parent / "configs" / "quickstart.yaml"


def round_seconds(rounds: int, tracked: bool, output: Path) -> float:
    """The mean round of one run, the first third left out: it holds the start of everything."""
    overrides = (
        f"training.rounds={rounds}",
        f"tracking.enabled={str(tracked).lower()}",
        f"output={output}",
    )
    result = run(load_config(QUICKSTART, overrides))
    clocks = [record["clock"] for record in result.history]
    seconds = [clock["time/train_s"] + clock["time/evaluate_s"] for clock in clocks]
    return float(np.mean(seconds[rounds // 3 :]))


@click.command()
@click.option("--pairs", default=5, show_default=True)
@click.option("--rounds", default=100, show_default=True)
def main(pairs: int, rounds: int) -> None:
    """Measure in turns, so that a slow spell of the machine hits both."""
    seconds: dict[bool, list[float]] = {
        True: [],
        False: [],
    }
    with tempfile.TemporaryDirectory() as folder, connect_ray(None):
        for _ in range(pairs):
            for tracked in (True, False):
                seconds[tracked].append(round_seconds(rounds, tracked, Path(folder)))
    with_, without = (1000 * float(np.median(seconds[tracked])) for tracked in (True, False))
    click.echo(
        f"a round with tracking {with_:.2f} ms, without {without:.2f} ms, "
        f"ratio {with_ / without:.3f}"
    )


if __name__ == "__main__":
    main()
