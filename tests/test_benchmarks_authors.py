"""The page beside the authors' code: its figures are those that are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import authors  # noqa: E402


def test_the_page_is_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authors, "PAGE", tmp_path / "authors.md")
    assert CliRunner().invoke(authors.main, ["--write"]).exit_code == 0
    assert (tmp_path / "authors.md").read_text() == (
        BENCHMARKS.parent / "docs" / "authors.md"
    ).read_text()


def test_a_kept_run_is_shown_round_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authors, "KEPT", tmp_path)
    history = [{"metrics": {"test/accuracy": t / 40 + t % 2 / 100}} for t in range(1, 21)]
    (tmp_path / "result.json").write_text(json.dumps({"history": history}))
    (tmp_path / "theirs.json").write_text(json.dumps([t / 50 - t % 2 / 100 for t in range(1, 21)]))
    authors.keep_run("one", tmp_path, tmp_path / "theirs.json")
    names = ("title", "repository", "commit", "functions", "study", "cell", "scenario", "alike")
    run = {**dict.fromkeys([*names, "unlike"], "x"), "seed": 0, "says": "So.", "alike_from": 3}
    page = authors.show_run(run, authors.read_curve("one"))
    assert "| 10 | 20.00 | 25.00 |" in page
    # Means of rounds 11 to 20, and of all differences.
    assert "theirs 30.50, ours 39.25; best round: theirs 40.00, ours 50.00" in page
    assert "differ by 6.25 points" in page
    # One goes up where the other goes down.
    assert "the correlation of changes from round 3 on is -1.00" in page


def test_runs_of_unequal_lengths_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authors, "KEPT", tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"history": []}))
    (tmp_path / "theirs.json").write_text("[0.5]")
    with pytest.raises(ValueError, match="shorter"):
        authors.keep_run("one", tmp_path, tmp_path / "theirs.json")
