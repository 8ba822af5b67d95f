"""`rayfl report`: tables, figures and a page, from finished runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rayfl.study.result import StudyResult


@click.command()
@click.argument("source", metavar="STUDY|EXPERIMENT")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where the report goes; by default RUNS/reports/NAME.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    help="The output folder of the runs; by default as for `rayfl run`.",
)
@click.option("--uri", help="The MLflow store; MLFLOW_TRACKING_URI, or the sqlite file in RUNS.")
@click.option(
    "--only", multiple=True, metavar="AXIS=A,B", help="Only these choices of a study's axis."
)
@click.option(
    "--figures",
    help="Names of figures, separated by commas; by default those of the study, or all.",
)
@click.option(
    "--track/--no-track", default=True, show_default=True, help="Log the report to MLflow as well."
)
def report(
    source: str,
    output: Path | None,
    runs: Path | None,
    uri: str | None,
    only: tuple[str, ...],
    figures: str | None,
    track: bool,
) -> None:
    """Write tables, figures and a page of finished runs. Nothing is run.

    STUDY is a file; its cells are those that were last run in the output folder, or those that
    --only names. EXPERIMENT is the name of an MLflow experiment, whose runs are grouped by method,
    dataset, partition and noise."""
    from rayfl.config.schema import default_output
    from rayfl.report.curves import slug
    from rayfl.report.publish import publish, track as log_report
    from rayfl.tracking.tracker import default_uri

    folder = (runs or default_output()).absolute()
    store = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(folder)
    names = figures_named(figures)
    result = result_of(source, folder, store, only)
    where = (output or folder / "reports" / slug(result.name)).absolute()
    page = publish(result, where, names or usual_figures(source, result))
    counts = [len(cell.records) for cell in result.cells]
    click.echo(f"{'runs':10} {sum(counts)} in {sum(map(bool, counts))} of {len(counts)} cells")
    click.echo(f"{'page':10} {page}")
    if track:
        click.echo(
            f"{'mlflow':10} {log_report(result, where, store, experiment_of(source, result))}"
        )


def figures_named(words: str | None) -> list[str]:
    """The names in `--figures`, all of them known."""
    from rayfl.errors import ConfigError, broken, nearest
    from rayfl.study.schema import FIGURES

    names = [name.strip() for name in words.split(",")] if words else []
    for name in names:
        if name not in FIGURES:
            raise ConfigError(
                broken(
                    f"--figures names some of {', '.join(FIGURES)}", name, nearest(name, FIGURES)
                )
            )
    return names


def usual_figures(source: str, result: StudyResult) -> list[str]:
    """What a study asks for; an experiment gets all that its runs have, but for what takes long."""
    from rayfl.report.gallery import SLOW
    from rayfl.study.schema import FIGURES

    if is_file(source):
        return result.study.figures or ["curves"]
    return [name for name in FIGURES if name not in SLOW]


def result_of(source: str, folder: Path, store: str, only: tuple[str, ...]) -> StudyResult:
    """What is to be reported: a study file's cells, or an experiment's runs."""
    if is_file(source):
        from rayfl.study.gather import gathered
        from rayfl.study.order import Order

        return gathered(Order(Path(source), only, output=folder) if only else Path(source), folder)
    from rayfl.report.runs import experiment_result

    return experiment_result(source, store)


def experiment_of(source: str, result: StudyResult) -> str:
    """The experiment that the report belongs to: the one that its runs are in."""
    if not is_file(source):
        return source
    first = next((record for cell in result.cells for record in cell.records.values()), None)
    return "rayfl" if first is None else str(first.config["tracking"]["experiment"])


def is_file(source: str) -> bool:
    """Whether a study file is meant, and not an experiment."""
    return source.endswith((".yaml", ".yml"))
