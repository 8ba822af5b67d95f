"""`rayfl report`: tables, figures and a page, from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from rayfl.commands.completing import complete_choices, offer_files
from rayfl.commands.ledgers import LedgerFolder

if TYPE_CHECKING:
    from rayfl.ledger.ledger import Ledger
    from rayfl.study.result import StudyResult


@click.command("report")
@click.argument(
    "source", metavar="[STUDY|EXPERIMENT]", required=False, shell_complete=offer_files("study")
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where the report goes, by default RUNS/reports/NAME; or the pages of --recorded.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    help="The output folder of the runs; by default as for `rayfl run`.",
)
@click.option("--uri", help="The MLflow store; MLFLOW_TRACKING_URI, or the sqlite file in RUNS.")
@click.option(
    "--only",
    multiple=True,
    metavar="AXIS=A,B",
    help="Only these choices of a study's axis.",
    shell_complete=complete_choices,
)
@click.option(
    "--figures",
    help="Names of figures, separated by commas; by default those of the study, or all.",
)
@click.option("--recorded", is_flag=True, help="All tables of the ledger.")
@LedgerFolder
@click.option(
    "--track/--no-track", default=True, show_default=True, help="Log the report to MLflow as well."
)
def report_command(
    source: str | None,
    output: Path | None,
    runs: Path | None,
    uri: str | None,
    only: tuple[str, ...],
    figures: str | None,
    recorded: bool,
    ledger: Path | None,
    track: bool,
) -> None:
    """Write tables, figures and a page of finished runs. Nothing is run.

    STUDY is a file, or the name of one that comes with rayfl; its cells are those that were last
    run in the output folder, or those that --only names. EXPERIMENT is the name of an MLflow
    experiment, whose runs are grouped by method, dataset, partition and noise.

    What the output folder does not hold comes from the ledger, the folder `results` of this
    checkout: scores, but no curves. --recorded prints every table that the ledger has; with -o DIR
    it writes them to DIR/results.md, and DIR/leaderboard.md beside it."""
    from rayfl.commands.ledgers import open_ledger, open_writable

    if recorded:
        _show_recorded(open_writable(ledger), output)
        return
    if source is None:
        raise click.MissingParameter(param_type="argument", param_hint="STUDY or EXPERIMENT")
    from rayfl.config.schema import default_output
    from rayfl.tracking.store import choose_uri

    folder = (runs or default_output()).absolute()
    store = choose_uri(folder, uri)
    found = open_ledger(ledger)
    # What is refused at a glance is refused before torch and MLflow are imported.
    names = _parse_figures(figures)
    _look_quickly(source, folder, store, found)
    from rayfl.report.material import make_slug
    from rayfl.report.publish import log_report, publish_report

    result = _gather_result(source, folder, store, only, found)
    _refuse_empty(source, result, folder)
    where = (output or folder / "reports" / make_slug(result.name)).absolute()
    page = publish_report(result, where, names or _choose_usual_figures(source, result))
    counts = [len(cell.made) for cell in result.cells]
    cells = sum(map(bool, counts))
    _say("runs", f"{sum(counts)} in {cells} of {len(counts)} cells")
    _say("page", f"{page}")
    if track:
        experiment = _find_experiment(source, result)
        _say("mlflow", log_report(result, where, store, experiment))


def _show_recorded(ledger: Ledger, output: Path | None) -> None:
    """Every recorded table, on the screen or as pages."""
    from rayfl.durable import write_file
    from rayfl.report.leaderboard_page import write_leaderboard
    from rayfl.report.results_page import write_results
    from rayfl.study.recorded import list_recorded
    from rayfl.study.text_table import format_table

    found = list_recorded(ledger)
    if output is None:
        for each in found:
            click.echo(f"{format_table(each.result)}\n[{each.grade}; {len(each.rows)} rows]\n")
        return
    output.mkdir(parents=True, exist_ok=True)
    pages = {
        "results.md": write_results(ledger, found),
        "leaderboard.md": write_leaderboard(found),
    }
    for name, text in pages.items():
        write_file(output / name, text)
        _say("page", str(output / name))


def _say(what: str, text: str) -> None:
    click.echo(f"{what:10} {text}")


def _parse_figures(words: str | None) -> list[str]:
    """The names in `--figures`, all of them known."""
    from rayfl.errors import ConfigError, broken, suggest_nearest
    from rayfl.study.schema import FIGURES

    names = [name.strip() for name in words.split(",")] if words else []
    for name in names:
        if name not in FIGURES:
            rule = f"--figures names some of {', '.join(FIGURES)}"
            raise ConfigError(broken(rule, name, suggest_nearest(name, FIGURES)))
    return names


def _choose_usual_figures(source: str, result: StudyResult) -> list[str]:
    """What a study asks for; an experiment gets all that its runs have, but for what takes long."""
    from rayfl.report.gallery import SLOW
    from rayfl.study.schema import FIGURES

    if _is_study(source):
        return result.study.figures or ["curves"]
    return [name for name in FIGURES if name not in SLOW]


def _look_quickly(source: str, folder: Path, store: str, ledger: Ledger | None) -> None:
    """Refuse a report of nothing, where that shows without looking into any run."""
    if not _is_study(source):
        from rayfl.tracking.experiment_names import explain_unknown, list_experiments

        known = list_experiments(store)
        if known is not None and source not in known:
            raise explain_unknown(source, known, store)
        return
    from rayfl.config.shipped import find_file

    runs = folder / "runs"
    nothing_made = not runs.is_dir() or not any(runs.iterdir())
    nothing_recorded = ledger is None or not ledger.rows
    # A study that is not there is another mistake, which its reader tells.
    if nothing_made and nothing_recorded and find_file(Path(source), "study").is_file():
        _refuse_nothing(source, folder)


def _gather_result(
    source: str,
    folder: Path,
    store: str,
    only: tuple[str, ...],
    ledger: Ledger | None,
) -> StudyResult:
    """What is to be reported: a study file's cells, or an experiment's runs."""
    if not _is_study(source):
        from rayfl.report.experiment_runs import read_experiment

        return read_experiment(source, store)
    from rayfl.config.shipped import find_file
    from rayfl.study.gather import gather_results
    from rayfl.study.order import StudyOrder

    path = find_file(Path(source), "study")
    order = StudyOrder(path, only, output=folder) if only else path
    return gather_results(order, folder, ledger=ledger)


def _refuse_empty(source: str, result: StudyResult, folder: Path) -> None:
    """A report of nothing is none."""
    if not any(cell.made for cell in result.cells):
        _refuse_nothing(source, folder)


def _refuse_nothing(source: str, folder: Path) -> NoReturn:
    from rayfl.errors import ConfigError, broken

    rule = "a report is of runs that have been made"
    command = f"rayfl study {source}" if _is_study(source) else "rayfl run"
    raise ConfigError(broken(rule, f"none of {source} in {folder}", f"Run `{command} ...` first."))


def _find_experiment(source: str, result: StudyResult) -> str:
    """The experiment that the report belongs to: the one that its runs are in."""
    if not _is_study(source):
        return source
    for cell in result.cells:
        for record in cell.records.values():
            return str(record.config["tracking"]["experiment"])
    return "rayfl"


def _is_study(source: str) -> bool:
    """Whether a study is meant, by its file or its name, and not an experiment."""
    from rayfl.config.shipped import find_file
    from rayfl.study.cells import is_study

    if source.endswith((".yaml", ".yml")):
        return True
    found = find_file(Path(source), "study")
    return found.is_file() and is_study(found)
