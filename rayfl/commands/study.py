"""`rayfl study`: run a paper's table, and put ours beside the printed figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rayfl.study.plan import Plan

HELP = """Run the cells of the study FILE that are missing, then print its table.

A study is a table or a figure of a paper as a file: a base configuration, axes, and the printed figures. See
configs/paper. Runs that the output folder already holds (same configuration, same scenario) are not repeated, and an
interrupted study goes on when the same command is given again. Overrides hold for every cell.

--scale S shrinks every run: rounds (and what methods count in rounds), clients, training and test images and the
server's sets are multiplied by S; clients keep their size, and rounds their share of clients. Nothing falls below 5
rounds, 10 clients, 4 clients a round, 1,000 training and test images; networks and local training stay. The table
says what was changed.
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--only",
    multiple=True,
    metavar="AXIS=A,B",
    help="Only these choices of an axis; may be given again.",
)
@click.option("--seeds", metavar="N|LIST", help="How many seeds, or which ones: 3, or 0,4, or 4,")
@click.option(
    "--scale", type=float, default=1.0, show_default=True, help="Shrink every run; see above."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where runs go; by default as for `rayfl run`.",
)
@click.option(
    "--address", help="A Ray cluster; by default RAY_ADDRESS, or a Ray of our own on this machine."
)
@click.option(
    "--plan",
    "plan_only",
    is_flag=True,
    help="Say what would be run and how long it would take, and stop.",
)
@click.option("--yes", is_flag=True, help="Do not ask before hours of work.")
@click.option("--quiet", is_flag=True, help="No progress, only the plan and the table.")
def study(
    file: Path,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    seeds: str | None,
    scale: float,
    output: Path | None,
    address: str | None,
    plan_only: bool,
    yes: bool,
    quiet: bool,
) -> None:
    from rayfl.study.cells import load
    from rayfl.study.order import Order, seeds_from
    from rayfl.study.plan import planned

    listed = None if seeds is None else seeds_from(seeds, load(file))
    order = Order(file, only, listed, scale, output, overrides)
    plan = planned(order)
    for line in plan.lines():
        click.echo(line)
    if plan_only:
        return
    refuse_empty(plan)
    agree(plan, yes)
    carry_out(plan, address, quiet)


def refuse_empty(plan: Plan) -> None:
    """A study of which nothing can run has failed."""
    from rayfl.errors import RayflError

    if not plan.runs:
        raise RayflError("none of these cells can run; the reasons are above")


def asked() -> bool:
    """Whether there is somebody to answer a question."""
    return sys.stdin.isatty()


def agree(plan: Plan, yes: bool) -> None:
    """Ask before hours of work; where nobody can answer, refuse."""
    from rayfl.errors import ConfigError
    from rayfl.run.progress import duration
    from rayfl.study.plan import HOUR

    if yes or plan.seconds <= HOUR:
        return
    if not asked():
        remedy = "Give --yes, or less of it: --only, --seeds, --scale."
        raise ConfigError(
            f"{duration(plan.seconds)} of work are not begun without a word from you. {remedy}"
        )
    click.confirm(f"Begin {duration(plan.seconds)} of work?", abort=True)


def carry_out(plan: Plan, address: str | None, quiet: bool) -> None:
    """Run, print the table, exit with 1 if a run failed."""
    from rayfl.run.experiment import Interrupted
    from rayfl.run.progress import progress_for
    from rayfl.study.gather import gathered
    from rayfl.study.runner import exit_code, run_plan
    from rayfl.study.table import table

    try:
        ran = run_plan(
            plan, click.echo, lambda config: progress_for(config.training.rounds, quiet), address
        )
    except (Interrupted, KeyboardInterrupt) as stopped:
        click.echo(
            f"stopped; nothing is lost. Go on with the same command:\n  {plan.order.command()}",
            err=True,
        )
        sys.exit(exit_code(stopped))
    result = gathered(plan.order, problems={**plan.problems, **ran.failed})
    click.echo(f"\n{table(result)}")
    plan.order.notes.mkdir(parents=True, exist_ok=True)
    (plan.order.notes / "table.txt").write_text(table(result) + "\n")
    click.echo(f"\nruns {plan.order.folder / 'runs'}")
    if ran.failed:
        click.echo(f"{len(ran.failed)} cells failed; the same command tries them again", err=True)
        sys.exit(1)
