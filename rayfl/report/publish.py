"""A report on disk and in MLflow: tables, figures, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rayfl.errors import StorageError, broken
from rayfl.plots.style import render_png
from rayfl.report.chart import draw_chart
from rayfl.report.gallery import draw_gallery
from rayfl.report.latex import write_latex
from rayfl.report.long_csv import write_csv
from rayfl.report.markdown import write_markdown
from rayfl.report.material import Drawing
from rayfl.report.page import write_page
from rayfl.secrets import describe_error, mask_secrets
from rayfl.study.result import StudyResult
from rayfl.tracking.experiment_view import arrange_experiment
from rayfl.version import __version__

KIND = "report"
NOTE_LETTERS = 5000
"""Letters that MLflow keeps of a tag."""


def publish_report(result: StudyResult, directory: Path, names: Sequence[str]) -> Path:
    """Write a report.

    Parameters
    ----------
    directory
        Where it goes; made where it is not there.
    names
        The figures to draw, in this order.

    Returns
    -------
    Path
        Its page."""
    drawn, lacking = draw_gallery(result, names)
    texts = {
        "table.md": write_markdown(result),
        "table.tex": write_latex(result),
        "table.csv": write_csv(result),
        "index.html": write_page(result, drawn, lacking),
    }
    try:
        _save_figures(directory / "figures", drawn)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        rule = "a report needs a writable folder"
        raise StorageError(broken(rule, f"{directory} ({error})")) from error
    return directory / "index.html"


def _save_figures(folder: Path, drawn: Sequence[Drawing]) -> None:
    """Number the figures as the page does, in place of an earlier report's."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("[0-9][0-9]_*.png"):
        old.unlink()
    for number, drawing in enumerate(drawn, 1):
        path = folder / f"{number:02d}_{drawing.name}.png"
        path.write_bytes(_render_pixels(drawing))


def _render_pixels(drawing: Drawing) -> bytes:
    """A figure as PNG, whatever it is made of."""
    if drawing.image is not None:
        return drawing.image
    figure = drawing.figure if drawing.chart is None else draw_chart(drawing.chart)
    assert figure is not None
    return render_png(figure)


def log_report(
    result: StudyResult,
    directory: Path,
    uri: str,
    experiment: str,
) -> str:
    """Log a report to MLflow as a run of its own in the experiment of its runs.

    Parameters
    ----------
    directory
        Where the report was written.
    uri
        The MLflow store.
    experiment
        The experiment's name; it is made where the store has none.

    Returns
    -------
    str
        Where the UI shows it."""
    try:
        return _log_run(result, directory, uri, experiment)
    except Exception as error:
        rule = "the MLflow store must answer"
        got = f"{mask_secrets(uri)}: {describe_error(error, uri)}"
        raise StorageError(broken(rule, got)) from error


def _log_run(
    result: StudyResult,
    directory: Path,
    uri: str,
    experiment: str,
) -> str:
    from rayfl.tracking.store import artifact_root, open_client

    client = open_client(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        place = client.create_experiment(experiment, artifact_root(uri))
    else:
        place = found.experiment_id
    tags = {"kind": KIND, "study": result.name, "rayfl": __version__}
    # MLflow shows a note of this name as the run's description.
    tags["mlflow.note.content"] = write_markdown(result)[:NOTE_LETTERS]
    run = client.create_run(place, run_name=f"report {result.name}", tags=tags)
    client.log_artifacts(run.info.run_id, str(directory), "report")
    client.set_terminated(run.info.run_id, "FINISHED")
    arrange_experiment(client, place)
    page = f"#/experiments/{place}/runs/{run.info.run_id}/artifacts/report/index.html"
    return f"{page}?workflowType=machine_learning"
