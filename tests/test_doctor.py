"""What the doctor finds, and what it tells to do about it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from rayfl import cli
from rayfl.commands import doctor
from rayfl.commands.doctor import (
    PACKAGES,
    Check,
    check_disk,
    check_package,
    check_store,
    guard_check,
    run_checks,
)

# MLflow's store uses what SQLAlchemy is about to drop.
store_of_others = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_that_a_run_needs_is_there(name: str) -> None:
    found = check_package(name)
    assert (found.what, found.good, found.remedy) == (name, True, "")
    assert found.found[0].isdigit()


def test_a_missing_package_comes_with_its_command() -> None:
    assert check_package("no-such-package") == Check(
        "no-such-package", False, "not installed", "pip install no-such-package"
    )


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
        (OSError(), "OSError"),
        (ValueError("http://me:hunter2@host is gone"), "ValueError: http://***@host is gone"),
    ],
)
def test_a_check_that_fails_is_a_finding_of_one_line_without_secrets(
    error: Exception, found: str
) -> None:
    def look() -> str:
        raise error

    assert guard_check("part", look, "Mend it.") == Check("part", False, found, "Mend it.")


def test_a_check_that_passes_needs_no_remedy() -> None:
    assert guard_check("part", lambda: "fine", "Mend it.") == Check("part", True, "fine")


@pytest.mark.parametrize(("free", "good"), [(1e9, False), (2.1e9, True)])
def test_two_gigabytes_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, good: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(int(1e10), 0, int(free)))
    found = check_disk(tmp_path / "not" / "yet" / "there")
    assert (found.good, bool(found.remedy)) == (good, not good)
    assert found.found == f"{free / 1e9:.1f} GB free at {tmp_path}"


def test_a_place_that_cannot_be_written_is_bad(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert check_disk(tmp_path) == Check(
        "disk", False, f"{tmp_path} is not writable", "Set output to another folder."
    )


@pytest.mark.parametrize(("version", "good"), [((3, 9, 1), False), ((3, 12, 0), True)])
def test_python_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: object, good: bool
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    first = next(run_checks(tmp_path, None))
    assert (first.what, first.good, bool(first.remedy)) == ("python", good, not good)


@store_of_others
def test_a_store_that_answers_says_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert (
        check_store(tmp_path / "new")
        == f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}: 1 experiments"
    )


def test_a_store_that_cannot_be_read_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "bogus://me:hunter2@host")
    found = guard_check("mlflow store", lambda: check_store(tmp_path), "Set tracking.uri.")
    assert not found.good
    assert "hunter2" not in found.found


@store_of_others
@pytest.mark.usefixtures("cluster")
def test_the_doctor_looks_at_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_GB", 0.0)
    result = CliRunner().invoke(cli.rayfl, ["doctor", "-o", str(tmp_path)], catch_exceptions=False)
    lines = [line.split(maxsplit=2) for line in result.output.splitlines()]
    names = [line[1] for line in lines]
    assert names[: len(PACKAGES) + 1] == ["python", *PACKAGES]
    assert names[len(PACKAGES) + 1 :] == ["torch", "disk", "mlflow", "ray"]
    assert {line[0] for line in lines} == {"ok"}
    assert lines[-1][2] == "1 nodes, 8 CPUs, 2 GPUs"
    assert result.exit_code == 0


def test_the_doctor_fails_where_something_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Check("one", True, "fine"), Check("two", False, "broken", "Mend it.")]
    monkeypatch.setattr("rayfl.commands.doctor.run_checks", lambda output, address: iter(findings))
    result = CliRunner().invoke(cli.rayfl, ["doctor", "-o", str(tmp_path)])
    assert result.exit_code == 1
    assert [line.strip() for line in result.output.splitlines()] == [
        "ok   one              fine",
        "BAD  two              broken",
        "-> Mend it.",
    ]
