"""Rows made again: equal, different, or not to be compared and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rayfl.commands.study import study_command
from rayfl.errors import ConfigError
from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row, write_rows
from rayfl.run.environment import code_commit, cpu_capability, describe_environment, is_same_code
from rayfl.study import verification
from rayfl.study.order import StudyOrder
from rayfl.study.plan import make_plan
from rayfl.study.recording import Recorder
from rayfl.study.runner import run_plan
from rayfl.study.verification import draw_rows, find_differences, verify_rows
from tests.ledger.made_rows import make_row
from tests.study.tiny import study_file


def invoke(*words: object) -> Result:
    return CliRunner().invoke(study_command, [str(word) for word in words])


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Two rows of the tiny study."""
    home = tmp_path_factory.mktemp("verified")
    order = StudyOrder(study_file(home), only=("noise=clean", "method=fedavg"), output=home / "out")
    ledger = Ledger(home / "results")
    run_plan(make_plan(order), lambda _: None, tell=Recorder(order, ledger).record_run)
    return ledger


@pytest.fixture
def same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a difference could be put down to, also where the code is being changed."""
    monkeypatch.setattr(verification, "find_differences", lambda row: [])


def changed(ledger: Ledger, folder: Path, **changes: object) -> Ledger:
    """The same ledger with other words in its rows, beside the same study."""
    study_file(folder)
    (folder / "results").mkdir()
    rows = [replace(row, **changes) for row in ledger]  # type: ignore[arg-type]
    (folder / "results" / "tiny.csv").write_text(write_rows(rows))
    return Ledger(folder / "results")


def test_rows_are_made_again_and_equal(ledger: Ledger, same_place: None) -> None:
    said: list[str] = []
    verdicts = verify_rows(draw_rows(ledger, 10, 0), ledger, said.append)
    assert [verdict.kind for verdict in verdicts] == ["equal", "equal"]
    assert said[-1] == "2 equal"
    assert said[0].startswith("[1/2] tiny: FedAvg, clean, seed ")


def test_equal_is_equal_wherever_it_was_made(ledger: Ledger, tmp_path: Path) -> None:
    other = changed(ledger, tmp_path, environment={"commit": "0123abc", "torch": "1.0"})
    (verdict,) = verify_rows(draw_rows(other, 1, 0), other, lambda _: None)
    assert verdict.kind == "equal"
    assert "torch 1.0 there" in str(verdict)


def test_another_model_is_a_failure_where_nothing_else_differs(
    ledger: Ledger, tmp_path: Path, same_place: None
) -> None:
    other = changed(ledger, tmp_path, model="0" * 64)
    done = invoke("--verify", 1, "--ledger", other.folder)
    assert done.exit_code == 1
    assert "differs: tiny: FedAvg, clean" in done.output
    assert "model 000000000000 there" in done.output


def test_another_library_is_a_reason_and_no_failure(ledger: Ledger, tmp_path: Path) -> None:
    environment = {"torch": "1.0", "capability": "AVX1"}
    other = changed(ledger, tmp_path, model="0" * 64, environment=environment)
    done = invoke(tmp_path / "tiny.yaml", "--verify", 1, "--ledger", other.folder)
    assert done.exit_code == 0, done.output
    assert "cannot be compared: tiny" in done.output
    assert f"torch 1.0 there, {describe_environment()['torch']} here" in done.output
    assert f"capability AVX1 there, {cpu_capability()} here" in done.output


def test_a_changed_configuration_is_not_run(ledger: Ledger, tmp_path: Path) -> None:
    other = changed(ledger, tmp_path, digest="0" * 64)
    (verdict,) = verify_rows(draw_rows(other, 1, 0), other, lambda _: None, tmp_path / "out")
    assert verdict.kind == "cannot be compared"
    assert "a row's configuration is what it was" in str(verdict)
    assert not (tmp_path / "out").exists()


def test_rows_are_drawn_by_the_seed(ledger: Ledger, tmp_path: Path) -> None:
    many = Ledger(tmp_path)
    many.record([make_row(seed=seed, study=name) for seed in range(20) for name in ("a", "b")])
    first = [row.key for row in draw_rows(many, 5, 1)]
    assert first == [row.key for row in draw_rows(many, 5, 1)]
    assert first != [row.key for row in draw_rows(many, 5, 2)]
    assert {row.study for row in draw_rows(many, 5, 1, "a")} == {"a"}
    with pytest.raises(ConfigError, match="--verify repeats rows"):
        draw_rows(many, 5, 1, "c")


# -- what may be a reason --------------------------------------------------------------------------


def make_here(**changes: str) -> Row:
    here = {**describe_environment(), "capability": cpu_capability()}
    return make_row(environment={**here, **changes})


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "capability"])
def test_what_decides_bits_is_a_reason(name: str) -> None:
    found = find_differences(make_here(**{name: "0"}))
    assert any(said.startswith(f"{name} 0 there") for said in found)


@pytest.mark.parametrize("name", ["host", "machine", "ray"])
def test_the_place_is_none(name: str) -> None:
    found = find_differences(make_here(**{name: "0"}))
    assert not any(said.startswith(f"{name} ") for said in found)


@pytest.mark.parametrize(
    ("same", "reasons"), [(True, 0), (False, 1), (None, 1)], ids=["same", "other", "unknown"]
)
def test_other_code_is_a_reason(
    same: bool | None, reasons: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "is_same_code", lambda commit: same)
    found = find_differences(make_here(commit="0123abc"))
    assert len([said for said in found if "0123abc" in said]) == reasons


def test_the_code_of_this_commit_is_this_code() -> None:
    commit = code_commit()
    assert is_same_code("no such commit") is None
    if commit == "none" or commit.endswith("+"):
        assert is_same_code(commit) is None
    else:
        assert is_same_code(commit) is True
