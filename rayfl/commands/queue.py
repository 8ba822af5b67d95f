"""`rayfl queue`: work through a list of studies and record every run, or say what is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayfl.commands.ledgers import LedgerFolder

if TYPE_CHECKING:
    from rayfl.ledger.ledger import Ledger
    from rayfl.study.queue import Queue

FILE = "queue.yaml"


@click.command("queue", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--state", is_flag=True, help="Say what is left and how long it takes, and stop.")
@click.option(
    "--hours", type=click.FloatRange(0, min_open=True), help="Begin no run after so many hours."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where runs go; by default where FILE says.",
)
@LedgerFolder
@click.option("--quiet", is_flag=True, help="No progress, only the names of the runs.")
def queue_command(
    file: Path | None,
    state: bool,
    hours: float | None,
    output: Path | None,
    ledger: Path | None,
    quiet: bool,
) -> None:
    """Run what the queue FILE lists and the ledger does not have, and record each run as it ends.

    FILE is `queue.yaml` beside the ledger's rows. Stopped, the same command goes on; several may
    be at work at once."""
    from rayfl.commands.ledgers import open_writable
    from rayfl.study.queue import describe_queue, load_queue

    rows = open_writable(ledger)
    queue = load_queue(file or rows.folder / FILE)
    if not state:
        _work(queue, rows, output, hours, quiet)
    for line in describe_queue(queue, rows):
        click.echo(line)


def _work(
    queue: Queue,
    ledger: Ledger,
    output: Path | None,
    hours: float | None,
    quiet: bool,
) -> None:
    """Run and record; a run that fails does not keep the others from being made."""
    from rayfl.config.schema import Config
    from rayfl.run.experiment import Interrupted
    from rayfl.run.progress import Progress, progress_for
    from rayfl.study.queue import work_through
    from rayfl.study.runner import choose_exit_code

    end = None if hours is None else time.monotonic() + 3600 * hours

    def show_progress(config: Config) -> Progress:
        return progress_for(config.training.rounds, quiet)

    def is_over() -> bool:
        return end is not None and time.monotonic() > end

    folder = None if output is None else output.absolute()
    try:
        failed = work_through(queue, ledger, click.echo, show_progress, folder, is_over)
    except (Interrupted, KeyboardInterrupt) as stopped:
        click.echo("stopped; nothing is lost. The same command goes on.", err=True)
        sys.exit(choose_exit_code(stopped))
    if failed:
        click.echo(f"{failed} runs failed; the same command tries them again", err=True)
        sys.exit(1)
