"""`rayfl sweep`: search settings, every trial a run of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rayfl.tuning.result import SweepResult
    from rayfl.tuning.schema import Sweep


@click.command("sweep")
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
def sweep_command(
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
        _find_best(chosen)
        return
    result = _search_settings(chosen, resume, address, quiet)
    _show_result(result)
    again = " ".join(["rayfl sweep", str(file), *overrides])
    click.echo(f"best again       {again} --best")
    click.echo(f"look at all      rayfl ui -o {result.directory.parent.parent}")
    if result.failed:
        failed = f"{len(result.failed)} trials failed"
        click.echo(f"error: {failed}; try them again: {again} --resume", err=True)
        sys.exit(1)


def _search_settings(
    chosen: Sweep,
    resume: bool,
    address: str | None,
    quiet: bool,
) -> SweepResult:
    """Run the sweep; stopped, it says how to go on and exits as the signal would have it."""
    from rayfl.run.experiment import Interrupted
    from rayfl.tuning.driver import sweep as search

    say = None if quiet else click.echo
    try:
        return search(chosen, resume=resume, address=address, say=say)
    except Interrupted as stopped:
        click.echo(f"stopped by {stopped}; go on with the same command and --resume", err=True)
        sys.exit(128 + stopped.number)


def _find_best(chosen: Sweep) -> None:
    """Print what a sweep has found so far."""
    from rayfl.tuning.book import Book, locate_sweep
    from rayfl.tuning.result import describe_best, format_table, read_result

    found = read_result(Book.open(locate_sweep(chosen)))
    click.echo(f"{format_table(found)}\n\n{describe_best(found)}")


def _show_result(result: SweepResult) -> None:
    from rayfl.tuning.result import describe_best, format_table

    click.echo(f"\n{format_table(result)}\n\n{describe_best(result)}")
