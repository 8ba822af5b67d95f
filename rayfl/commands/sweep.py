"""`rayfl sweep`: search settings, every trial a run of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--resume", is_flag=True, help="Take up this sweep again: what has ended is not run again."
)
@click.option(
    "--best", is_flag=True, help="Only find the best point of this sweep again, and how to run it."
)
@click.option(
    "--address", help="A Ray cluster; by default RAY_ADDRESS, or a Ray of our own on this machine."
)
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
def sweep(
    file: Path,
    overrides: tuple[str, ...],
    resume: bool,
    best: bool,
    address: str | None,
    quiet: bool,
) -> None:
    """Search the settings that FILE names; overrides are of the sweep file, such as at_once=2 or
    set.clients=50."""
    from rayfl.tuning.schema import load_sweep

    chosen = load_sweep(file, overrides)
    if best:
        from rayfl.tuning.book import Book, place
        from rayfl.tuning.result import result_of, table, verdict

        found = result_of(Book.open(place(chosen)))
        click.echo(f"{table(found)}\n\n{verdict(found)}")
        return
    from rayfl.run.experiment import Interrupted
    from rayfl.tuning.driver import sweep as search
    from rayfl.tuning.result import table, verdict

    try:
        result = search(chosen, resume=resume, address=address, say=None if quiet else click.echo)
    except Interrupted as stopped:
        click.echo(f"stopped by {stopped}; go on with the same command and --resume", err=True)
        sys.exit(128 + stopped.number)
    click.echo(f"\n{table(result)}\n\n{verdict(result)}")
    again = " ".join(["rayfl sweep", str(file), *overrides])
    click.echo(f"best again       {again} --best")
    click.echo(f"look at all      rayfl ui -o {result.directory.parent.parent}")
    if result.failed:
        click.echo(
            f"error: {len(result.failed)} trials failed; try them again: {again} --resume", err=True
        )
        sys.exit(1)
