"""A report on disk and in MLflow: tables, figures, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rayfl.config.schema import mask
from rayfl.errors import StorageError, broken
from rayfl.plots.style import png
from rayfl.report.chart import chart_figure
from rayfl.report.formats import latex, long_csv, markdown
from rayfl.report.gallery import gallery
from rayfl.report.material import Drawing
from rayfl.report.page import page
from rayfl.study.result import StudyResult
from rayfl.tracking.view import arrange
from rayfl.version import __version__

KIND = "report"


def publish(result: StudyResult, directory: Path, names: Sequence[str]) -> Path:
    """Write a report; the path of its page."""
    drawn, lacking = gallery(result, names)
    texts = {
        "table.md": markdown(result),
        "table.tex": latex(result),
        "table.csv": long_csv(result),
        "index.html": page(result, drawn, lacking),
    }
    try:
        figures = directory / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        for old in figures.glob("[0-9][0-9]_*.png"):
            old.unlink()
        for number, drawing in enumerate(drawn, 1):
            (figures / f"{number:02d}_{drawing.name}.png").write_bytes(pixels(drawing))
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            broken("a report needs a writable folder", f"{directory} ({error})")
        ) from error
    return directory / "index.html"


def pixels(drawing: Drawing) -> bytes:
    """A figure as PNG, whatever it is made of."""
    if drawing.image is not None:
        return drawing.image
    figure = chart_figure(drawing.chart) if drawing.chart is not None else drawing.figure
    assert figure is not None
    return png(figure)


def track(result: StudyResult, directory: Path, uri: str, experiment: str) -> str:
    """Log a report to MLflow as a run of its own in the experiment of its runs; where the UI shows
    it."""
    from rayfl.tracking.tracker import artifact_root, quiet_client

    client = quiet_client(uri)
    try:
        found = client.get_experiment_by_name(experiment)
        place = (
            client.create_experiment(experiment, artifact_root(uri))
            if found is None
            else found.experiment_id
        )
        tags = {"kind": KIND, "study": result.name, "rayfl": __version__}
        # MLflow shows a note of this name as the run's description.
        tags["mlflow.note.content"] = markdown(result)[:5000]
        run = client.create_run(place, run_name=f"report {result.name}", tags=tags)
        client.log_artifacts(run.info.run_id, str(directory), "report")
        client.set_terminated(run.info.run_id, "FINISHED")
        arrange(client, place)
    except Exception as error:
        short = str(mask(str(error))).splitlines()[0]
        raise StorageError(
            broken("the MLflow store must answer", f"{mask(uri)}: {short}")
        ) from error
    return f"#/experiments/{place}/runs/{run.info.run_id}/artifacts/report/index.html?workflowType=machine_learning"
