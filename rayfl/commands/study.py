"""`rayfl study`: run a paper's table, and put ours beside the printed figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rayfl.study.plan import StudyPlan
    from rayfl.study.schema import ChoiceKey

HELP = """Run the cells of the study FILE that are missing, then print its table.

A study is a table or a figure of a paper as a file: a base configuration, axes, and the printed
figures. See configs/paper. Runs that the output folder already holds (same configuration, same
scenario) are not repeated, and an interrupted study goes on when the same command is given again.
Overrides hold for every cell.

--scale S shrinks every run: rounds (and what methods count in rounds), clients, training and test
images and the server's sets are multiplied by S; clients keep their size, and rounds their share of
clients. Nothing falls below 5 rounds, 10 clients, 4 clients a round, 1,000 training and test
images; networks and local training stay. The table says what was changed.
"""


@click.command("study", help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
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
def study_command(
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
    from rayfl.study.cells import load_study
    from rayfl.study.order import StudyOrder, parse_seeds
    from rayfl.study.plan import make_plan

    listed = None if seeds is None else parse_seeds(seeds, load_study(file))
    order = StudyOrder(file, only, listed, scale, output, overrides)
    plan = make_plan(order)
    for line in plan.lines():
        click.echo(line)
    if plan_only:
        return
    _refuse_empty(plan)
    if not yes:
        _agree_on_hours(plan)
    _carry_out(plan, address, quiet)


def _refuse_empty(plan: StudyPlan) -> None:
    """A study of which nothing can run has failed."""
    from rayfl.errors import RayflError

    if not plan.runs:
        raise RayflError("none of these cells can run; the reasons are above")


def can_ask() -> bool:
    """Whether there is somebody to answer a question."""
    return sys.stdin.isatty()


def _agree_on_hours(plan: StudyPlan) -> None:
    """Ask before hours of work; where nobody can answer, refuse."""
    from rayfl.errors import ConfigError
    from rayfl.run.progress import format_duration
    from rayfl.study.plan import HOUR

    if plan.seconds <= HOUR:
        return
    work = f"{format_duration(plan.seconds)} of work"
    if not can_ask():
        remedy = "Give --yes, or less of it: --only, --seeds, --scale."
        raise ConfigError(f"{work} are not begun without a word from you. {remedy}")
    click.confirm(f"Begin {work}?", abort=True)


def _carry_out(plan: StudyPlan, address: str | None, quiet: bool) -> None:
    """Run, print the table, exit with 1 if a run failed."""
    from rayfl.config.schema import Config
    from rayfl.run.experiment import Interrupted
    from rayfl.run.progress import Progress, progress_for
    from rayfl.study.runner import choose_exit_code, run_plan

    def show_progress(config: Config) -> Progress:
        return progress_for(config.training.rounds, quiet)

    try:
        ran = run_plan(plan, click.echo, show_progress, address)
    except (Interrupted, KeyboardInterrupt) as stopped:
        again = f"Go on with the same command:\n  {plan.order.command()}"
        click.echo(f"stopped; nothing is lost. {again}", err=True)
        sys.exit(choose_exit_code(stopped))
    _show_table(plan, ran.failed)
    if ran.failed:
        click.echo(f"{len(ran.failed)} cells failed; the same command tries them again", err=True)
        sys.exit(1)


def _show_table(plan: StudyPlan, failed: Mapping[ChoiceKey, str]) -> None:
    """Print what the study came to, and leave it among the study's notes."""
    from rayfl.study.gather import gather_results
    from rayfl.study.text_table import format_table

    result = gather_results(plan.order, problems={**plan.problems, **failed})
    table = format_table(result)
    click.echo(f"\n{table}")
    plan.order.notes.mkdir(parents=True, exist_ok=True)
    (plan.order.notes / "table.txt").write_text(f"{table}\n")
    click.echo(f"\nruns {plan.order.folder / 'runs'}")
