"""What an audit leaves on disk, at the command line and on its page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import yaml
from click.testing import CliRunner

import rayfl
from rayfl.audit.publish import publish_audit, refuse_full
from rayfl.audit.story import Audit
from rayfl.audit.summary import summarise
from rayfl.cli import rayfl as command
from rayfl.errors import StorageError
from tests.audit.toys import make_settings
from tests.report.chromium import tab


@pytest.fixture(scope="module")
def folder(made: Audit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("audits") / "joined"
    publish_audit(made, where, local=False, images=True, track=False)
    return where


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_suspects_are_the_flagged_samples_the_worst_first(made: Audit, folder: Path) -> None:
    rows = read(folder / "suspects.csv")
    assert len(rows) == made.findings.samples.flagged.sum()
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores)
    assert all(row["given_label"] != row["suggested_label"] for row in rows)
    everything = parquet.read_table(folder / "samples.parquet")
    assert everything.num_rows == len(made.findings.samples)


def test_a_run_takes_the_corrected_labels(made: Audit, folder: Path) -> None:
    settings = {**make_settings(), "training": {"rounds": 1}, "labels": str(folder)}
    corrected = rayfl.run({**settings, "output": str(folder / "o")})
    before = made.subject.scenario.noise_rate()
    assert before is not None
    assert corrected.noise_rate is not None
    assert corrected.noise_rate < before / 2


def test_clients_have_intervals_and_reasons(made: Audit, folder: Path) -> None:
    rows = read(folder / "clients.csv")
    assert [row["verdict"] for row in rows].count("wrong labels") == 1
    for row in rows:
        share = [float(row[f"wrong_share{end}"]) for end in ("_low", "", "_high")]
        assert share == sorted(share)


def test_nothing_is_overwritten(folder: Path) -> None:
    with pytest.raises(StorageError, match="new or empty folder"):
        refuse_full(folder)


def test_local_findings_stay_with_their_clients(made: Audit, tmp_path: Path) -> None:
    where = tmp_path / "local"
    publish_audit(made, where, local=True, images=True, track=False)
    assert not (where / "suspects.csv").exists()
    assert not (where / "contact_sheet.png").exists()
    assert "Suspicious labels" not in (where / "index.html").read_text(encoding="utf-8")
    held = [len(read(path)) for path in sorted(where.glob("clients/*/labels.csv"))]
    assert held == [client.samples for client in made.findings.clients]
    told = "\n".join(summarise(made.findings, made.subject, samples=False))
    assert "->" not in told


def test_the_terminal_names_the_bad_client_first(made: Audit) -> None:
    lines = list(summarise(made.findings, made.subject))
    first = lines[3].split()
    assert first[0] == "3"
    assert "wrong labels" in lines[3]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_filters_and_asks_nobody(folder: Path, tmp_path: Path, width: int) -> None:
    with tab(tmp_path) as page:
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        page.open((folder / "index.html").as_uri())
        assert page.js("document.documentElement.scrollWidth") <= width
        shown = "[...document.querySelectorAll('#suspects-table tbody tr')].filter(r => !r.hidden)"
        everything = page.js(f"{shown}.length")
        page.js(
            "{const s = document.querySelector('select[name=site]'); s.value = '3';"
            "s.dispatchEvent(new Event('change'))}"
        )
        assert 0 < page.js(f"{shown}.length") < everything
        assert page.js(f"{shown}.every(r => r.dataset.site === '3')")
        assert page.js("document.querySelectorAll('#suspects-table img').length") == everything
        assert page.complaints() == []
        assert all(url.startswith(("file:", "data:")) for url in page.requests())


def test_the_command_audits_a_finished_run(home: Path) -> None:
    result = rayfl.run({**make_settings(), "training": {"rounds": 1}, "output": str(home)})
    ran = CliRunner().invoke(
        command, ["audit", str(result.directory), "-o", "found", "--folds", "2", "--quiet"]
    )
    assert ran.exit_code == 0, ran.output
    assert "wrong labels:" in ran.output
    written = yaml.safe_load((home / "found" / "config.yaml").read_text(encoding="utf-8"))
    assert written["data"]["name"] == "digits"


def test_the_command_prints_one_value_for_programs(home: Path) -> None:
    settings = {**make_settings(), "output": str(home)}
    (home / "sites.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    words = ["audit", str(home / "sites.yaml"), "-o", "found", "--folds", "2", "--json"]
    ran = CliRunner().invoke(command, words)
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    result = rayfl.audit(settings, plan={"folds": 2}, directory=home / "again")
    assert told["page"] == str(Path("found") / "index.html")
    assert [row["client"] for row in told["clients"]] == [
        one.client for one in result.findings.clients
    ]
    assert told["scenario"] == result.subject.scenario.sha256
