"""A study from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import rayfl
from tests.study.tiny import study_file


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> rayfl.StudyResult:
    folder = tmp_path_factory.mktemp("study")
    asked = ["method=fedavg,fedprox,gain", "noise=clean"]
    found: rayfl.StudyResult = rayfl.study(study_file(folder), only=asked, output=folder / "out")
    return found


def test_a_study_runs_what_is_missing_and_hands_its_table_back(ran: rayfl.StudyResult) -> None:
    fedavg = ran.at(method="fedavg", noise="clean")
    assert fedavg is not None
    assert sorted(fedavg.records) == [0, 1]
    runs = {record.directory for cell in ran.cells for record in cell.records.values()}
    assert len(runs) == 4
    assert set(runs) == set((next(iter(runs)).parent).iterdir())


def test_its_frame_has_a_line_a_cell(ran: rayfl.StudyResult) -> None:
    frame = ran.frame()
    assert list(frame["method"]) == ["FedAvg", "FedProx", "Delta"]
    fedavg = ran.at(method="fedavg", noise="clean")
    assert fedavg is not None
    assert frame["mean"][0] == fedavg.value.mean
    assert frame["difference"][0] == pytest.approx(fedavg.value.mean - 90)
    assert frame["n"].tolist() == [2, 2, 2]


def test_a_notebook_shows_the_table_of_the_command_line(ran: rayfl.StudyResult) -> None:
    page = ran._repr_html_()
    assert page.startswith("<pre>Tiny")
    assert "90.00 ± 1.0" in page
    assert repr(ran) == "<StudyResult of Tiny: 2 of 3 cells>"


def test_asked_again_nothing_is_run(ran: rayfl.StudyResult) -> None:
    output = next(iter(ran.cells[0].records.values())).directory.parents[1]
    before = sorted(path.name for path in (output / "runs").iterdir())
    file: Path = output.parent / "tiny.yaml"
    rayfl.study(file, only=["method=fedavg", "noise=clean"], seeds=[1], output=output)
    assert sorted(path.name for path in (output / "runs").iterdir()) == before
