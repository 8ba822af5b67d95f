"""`rayfl sweep`: search settings, every trial a run of its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayfl.commands.completing import offer_files
from rayfl.commands.json_output import AsJson, print_json

if TYPE_CHECKING:
    from rayfl.tuning.result import SweepResult
    from rayfl.tuning.schema import Sweep


@click.command("sweep")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=offer_files("sweep"))
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
@AsJson
def sweep_command(
    file: Path,
    overrides: tuple[str, ...],
    resume: bool,
    best: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Search the settings that FILE names, a file of yours or one that comes with rayfl; overrides
    are of the sweep file, such as at_once=2 or set.clients=50."""
    from rayfl.tuning.schema import load_sweep

    chosen = load_sweep(file, overrides)
    if best:
        _find_best(chosen, as_json)
        return
    result = _search_settings(chosen, resume, address, quiet or as_json)
    if as_json:
        print_json(describe_sweep(result))
    else:
        _show_result(result)
        _suggest_next(result, file, overrides)
    if result.failed:
        again = _repeat(file, overrides)
        failed = f"{len(result.failed)} trials failed"
        click.echo(f"error: {failed}; try them again: {again} --resume", err=True)
        sys.exit(1)


def _repeat(file: Path, overrides: Sequence[str]) -> str:
    return shlex.join(["rayfl", "sweep", str(file), *overrides])


def _suggest_next(result: SweepResult, file: Path, overrides: Sequence[str]) -> None:
    click.echo(f"best again       {_repeat(file, overrides)} --best")
    output = shlex.quote(str(result.directory.parent.parent))
    click.echo(f"look at all      rayfl ui -o {output}")


def describe_sweep(result: SweepResult) -> dict[str, Any]:
    """What a sweep has found, as plain values."""
    from rayfl.tuning.result import list_rows, list_trials

    return {
        "sweep": result.sweep.name,
        "directory": result.directory,
        "metric": result.sweep.metric,
        "mode": result.sweep.mode,
        "points": list_rows(result),
        "trials": list_trials(result),
        "best": result.best_config,
        "mlflow_run": result.mlflow_run_id,
    }


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


def _find_best(chosen: Sweep, as_json: bool) -> None:
    """Print what a sweep has found so far."""
    from rayfl.tuning.book import Book, locate_sweep
    from rayfl.tuning.result import describe_best, format_table, read_result

    found = read_result(Book.open(locate_sweep(chosen)))
    if as_json:
        print_json(describe_sweep(found))
        return
    click.echo(f"{format_table(found)}\n\n{describe_best(found)}")


def _show_result(result: SweepResult) -> None:
    from rayfl.tuning.result import describe_best, format_table

    click.echo(f"\n{format_table(result)}\n\n{describe_best(result)}")
