"""`rayfl study`: run a paper's table, and put ours beside the printed figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayfl.commands.ledgers import LedgerFolder

if TYPE_CHECKING:
    from rayfl.ledger.ledger import Ledger
    from rayfl.study.plan import StudyPlan
    from rayfl.study.recording import Recorder
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

The ledger is the folder `results` of the checkout around the working directory: a row for every
finished run that somebody has recorded. What has a row is shown, and not run again. --record
writes the rows of this study's finished runs, each as it ends; with --plan nothing is run for it.
--verify N repeats N of the rows, drawn at random from those of FILE or of all, and compares the
models.
"""


@click.command("study", help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
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
@click.option("--record", is_flag=True, help="Write finished runs into the ledger.")
@LedgerFolder
@click.option("--verify", type=click.IntRange(1), metavar="N", help="Repeat N rows of the ledger.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="What --verify draws its rows by.",
)
@click.option("--yes", is_flag=True, help="Do not ask before hours of work.")
@click.option("--quiet", is_flag=True, help="No progress, only the plan and the table.")
def study_command(
    file: Path | None,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    seeds: str | None,
    scale: float,
    output: Path | None,
    address: str | None,
    plan_only: bool,
    record: bool,
    ledger: Path | None,
    verify: int | None,
    seed: int,
    yes: bool,
    quiet: bool,
) -> None:
    from rayfl.commands.ledgers import open_ledger, open_writable
    from rayfl.study.cells import load_study
    from rayfl.study.order import StudyOrder, parse_seeds
    from rayfl.study.plan import make_plan
    from rayfl.study.recording import Recorder

    if verify is not None:
        _verify_rows(verify, seed, file, open_writable(ledger), output)
        return
    if file is None:
        raise click.MissingParameter(param_type="argument", param_hint="FILE")
    listed = None if seeds is None else parse_seeds(seeds, load_study(file))
    order = StudyOrder(file, only, listed, scale, output, overrides)
    rows = open_writable(ledger) if record else open_ledger(ledger)
    plan = make_plan(order, ledger=rows)
    for line in plan.lines():
        click.echo(line)
    recorder = Recorder(order, rows) if record and rows is not None else None
    if recorder is not None:
        click.echo(f"{recorder.ledger.folder}: {recorder.record_plan(plan)}")
    if plan_only:
        return
    _refuse_empty(plan)
    if not yes:
        _agree_on_hours(plan)
    _carry_out(plan, address, quiet, rows, recorder)


def _verify_rows(
    count: int,
    seed: int,
    file: Path | None,
    ledger: Ledger,
    output: Path | None,
) -> None:
    """Repeat rows of the ledger; exit with 1 where one came out differently and must not have."""
    from rayfl.study.verification import draw_rows, verify_rows

    study = None if file is None else file.stem
    rows = draw_rows(ledger, count, seed, study)
    verdicts = verify_rows(rows, ledger, click.echo, output)
    if any(verdict.is_failure for verdict in verdicts):
        sys.exit(1)


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


def _carry_out(
    plan: StudyPlan,
    address: str | None,
    quiet: bool,
    ledger: Ledger | None,
    recorder: Recorder | None,
) -> None:
    """Run, print the table, exit with 1 if a run failed."""
    from rayfl.config.schema import Config
    from rayfl.run.experiment import Interrupted
    from rayfl.run.progress import Progress, progress_for
    from rayfl.study.runner import choose_exit_code, run_plan

    def show_progress(config: Config) -> Progress:
        return progress_for(config.training.rounds, quiet)

    try:
        tell = None if recorder is None else recorder.record_run
        ran = run_plan(plan, click.echo, show_progress, address, tell)
    except (Interrupted, KeyboardInterrupt) as stopped:
        again = f"Go on with the same command:\n  {plan.order.command()}"
        click.echo(f"stopped; nothing is lost. {again}", err=True)
        sys.exit(choose_exit_code(stopped))
    _show_table(plan, ran.failed, ledger)
    if ran.failed:
        click.echo(f"{len(ran.failed)} cells failed; the same command tries them again", err=True)
        sys.exit(1)


def _show_table(plan: StudyPlan, failed: Mapping[ChoiceKey, str], ledger: Ledger | None) -> None:
    """Print what the study came to, and leave it among the study's notes."""
    from rayfl.run.summary import suggest_report
    from rayfl.study.gather import gather_results
    from rayfl.study.text_table import format_table

    problems = {**plan.problems, **failed}
    result = gather_results(plan.order, problems=problems, ledger=ledger)
    table = format_table(result)
    click.echo(f"\n{table}")
    plan.order.notes.mkdir(parents=True, exist_ok=True)
    (plan.order.notes / "table.txt").write_text(f"{table}\n")
    click.echo(f"\nruns {plan.order.folder / 'runs'}")
    click.echo(f"next {suggest_report(plan.order.path, plan.order.folder)}")
