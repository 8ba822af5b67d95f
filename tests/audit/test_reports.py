"""What a report says of clients: who stands out, and what corrected labels changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rayfl
from rayfl.audit.publish import publish_audit
from rayfl.audit.story import Audit
from rayfl.report.corrections import find_corrections, list_client_corrections, list_corrections
from rayfl.report.experiment_runs import read_experiment
from rayfl.report.publish import publish_report
from rayfl.report.stand_out import list_stand_out
from rayfl.run.result import Result
from rayfl.study.result import StudyResult
from rayfl.tracking.store import default_uri
from tests.audit.toys import make_settings

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Twice(NamedTuple):
    """One federation trained on given and on corrected labels, and the report of both."""

    given: Result
    corrected: Result
    report: StudyResult


def run(output: Path, **changes: Any) -> Result:
    training = {"rounds": 12, "epochs": 3, "lr": 0.1}
    settings = {**make_settings(), "output": str(output), "training": training, **changes}
    result: Result = rayfl.run({**settings, "tracking": {"enabled": True}})
    return result


@pytest.fixture(scope="module")
def twice(made: Audit, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    output = tmp_path_factory.mktemp("twice")
    publish_audit(made, output / "audit", local=False, images=False, track=False)
    given = run(output)
    corrected = run(output, labels=str(output / "audit"))
    return Twice(given, corrected, read_experiment("rayfl", default_uri(output)))


def test_a_run_on_corrected_labels_stands_beside_that_on_given_ones(twice: Twice) -> None:
    (found,) = find_corrections(twice.report)
    assert found.before is not None
    assert found.before.directory == twice.given.directory
    gain = twice.corrected.summary["last10/test/accuracy"]
    gain -= twice.given.summary["last10/test/accuracy"]
    assert found.gain == pytest.approx(gain)
    (row,) = list_corrections([found])
    assert row["difference"] == f"{100 * gain:+.1f} points"


def test_changed_labels_are_told_by_client(made: Audit, twice: Twice) -> None:
    rows = list_client_corrections(find_corrections(twice.report))
    samples, scenario = made.findings.samples, made.subject.scenario
    realised = scenario.realised
    assert realised is not None
    for row in rows:
        mine = samples.clients == int(row["client"])
        changed = np.mean(samples.flagged[mine])
        assert row["changed labels"] == f"{changed:.1%}"
        assert row["wrong before"] == f"{realised[int(row['client'])]:.1%}"
    # The worst client comes first, and has few wrong labels left.
    assert rows[0]["client"] == "3"
    assert float(rows[0]["wrong after"].rstrip("%")) < float(rows[0]["wrong before"].rstrip("%"))


def test_a_table_without_a_run_on_given_labels_is_told_so(twice: Twice, tmp_path: Path) -> None:
    run(tmp_path, labels=twice.corrected.config.resolved()["labels"])
    found = read_experiment("rayfl", default_uri(tmp_path))
    page = publish_report(found, tmp_path / "report", []).read_text(encoding="utf-8")
    assert "Without a run on the given labels" in page


@pytest.mark.parametrize("name", ["index.html", "table.md"])
def test_page_and_table_say_what_labels_changed(twice: Twice, tmp_path: Path, name: str) -> None:
    publish_report(twice.report, tmp_path, [])
    text = (tmp_path / name).read_text(encoding="utf-8")
    (row,) = list_corrections(find_corrections(twice.report))
    assert row["difference"] in text
    assert "Corrected labels" in text


def test_a_report_names_the_clients_that_stand_out(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 0.0, 0.0, 0.9]}
    run(tmp_path, clients=6, noise=noise, method={"name": "fedrn", "warmup": 1, "k": 1})
    found = read_experiment("rayfl", default_uri(tmp_path))
    told = {(row["client"], row["estimate"]) for row in list_stand_out(found)}
    assert ("5", "expertise") in told
    page = publish_report(found, tmp_path / "report", []).read_text(encoding="utf-8")
    assert "Clients that stand out" in page
