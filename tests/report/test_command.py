"""`rayfl report` as a user gives it: files, the page, a run in MLflow, refusals."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rayfl.commands.report import report_command
from rayfl.errors import ConfigError, StorageError
from rayfl.tracking.store import open_client
from tests.report.conftest import Made

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]
ROOT = Path(__file__).parents[2]
TITLE = "Small & <small>"


def invoke(*words: object) -> Result:
    return CliRunner().invoke(report_command, [str(word) for word in words])


def test_a_study_is_reported_and_logged(made: Made, tmp_path: Path) -> None:
    done = invoke(
        made.path, "--runs", made.output, "-o", tmp_path / "r", "--figures", "curves, reliability"
    )
    assert done.exit_code == 0, done.output
    assert "runs       8 in 4 of 6 cells" in done.output
    assert f"page       {tmp_path / 'r' / 'index.html'}" in done.output
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [
        "figures", "index.html", "table.csv", "table.md", "table.tex",
    ]  # fmt: skip
    pictures = sorted(path.name for path in (tmp_path / "r" / "figures").iterdir())
    assert pictures[0] == "01_test_accuracy.png"
    assert len(pictures) == 4  # expertise, reliability, and what a client keeps
    with (tmp_path / "r" / "table.csv").open() as lines:
        rows = {row["method"]: row for row in csv.DictReader(lines)}
    assert set(rows) == {"FedAvg", "Delta", "RHFL", "FedDS", "FedRN", "local k"}
    assert (rows["FedAvg"]["n"], rows["FedAvg"]["printed"], rows["RHFL"]["missing"]) == (
        "2",
        "80.00",
        "RHFL is not built",
    )
    client = open_client(made.uri)
    experiment = client.get_experiment_by_name(TITLE)
    logged = client.search_runs([experiment.experiment_id], "tags.kind = 'report'")[0]
    assert logged.data.tags["study"] == "tiny"
    assert "| method |" in logged.data.tags["mlflow.note.content"]
    assert (
        f"#/experiments/{experiment.experiment_id}/runs/{logged.info.run_id}/artifacts/report/index.html"
        in done.output
    )
    there = {file.path for file in client.list_artifacts(logged.info.run_id, "report")}
    assert {"report/index.html", "report/figures", "report/table.tex"} <= there


def test_an_experiment_is_reported_and_older_reports_are_no_runs(
    made: Made, tmp_path: Path
) -> None:
    for _ in range(2):
        done = invoke(TITLE, "--runs", made.output, "-o", tmp_path, "--figures", "curves")
        assert done.exit_code == 0, done.output
        assert "runs       8 in 4 of 4 cells" in done.output
    assert len(list((tmp_path / "figures").iterdir())) == 1


def test_a_report_has_a_usual_place_and_need_not_be_logged(made: Made) -> None:
    done = invoke(TITLE, "--runs", made.output, "--no-track", "--figures", "curves")
    assert str(made.output / "reports" / "small_small" / "index.html") in done.output
    assert "mlflow" not in done.output.splitlines()[-1].split()[0]


def test_only_some_cells_are_reported(made: Made, tmp_path: Path) -> None:
    only = ("--only", "method=fedavg,fedrn", "--only", "noise=noisy")
    done = invoke(made.path, "--runs", made.output, "-o", tmp_path, *only, "--no-track")
    assert "runs       4 in 2 of 2 cells" in done.output, done.output
    assert "FedDS" not in (tmp_path / "table.md").read_text()


def test_pictures_of_an_older_report_go_and_other_files_stay(made: Made, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("99_old.png", "mine.png"):
        (tmp_path / "figures" / name).write_bytes(b"")
    invoke(made.path, "--runs", made.output, "-o", tmp_path, "--no-track", "--figures", "curves")
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "01_test_accuracy.png",
        "mine.png",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("x", "--figures", "curvs"),
            r"--figures names some of curves, .*; got curvs\. Did you mean 'curves'\?",
        ),
        (("none.yaml",), r"readable YAML file; got .*none\.yaml"),
    ],
)
def test_what_is_not_there_is_refused(words: tuple[str, ...], message: str, home: Path) -> None:
    done = invoke(*words)
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise done.exception


def test_a_folder_that_cannot_be_written_is_named(made: Made, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = invoke(
        made.path,
        "--runs",
        made.output,
        "-o",
        tmp_path / "file",
        "--no-track",
        "--figures",
        "curves",
    )
    assert isinstance(done.exception, StorageError)
    assert "a report needs a writable folder; got" in str(done.exception)


def test_the_job_is_the_command(made: Made, tmp_path: Path) -> None:
    words = [
        str(made.path),
        "--runs",
        str(made.output),
        "-o",
        str(tmp_path),
        "--no-track",
        "--figures",
        "curves",
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "report.py"), *words],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
