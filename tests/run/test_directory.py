"""The directory of a run: whose it is, which one `auto` takes, and what damage there does."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rayfl
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError
from rayfl.locks import LockHeldError
from rayfl.run.directory import claim_directory, lock_directory, read_digest, unfinished_runs
from rayfl.run.store import list_records, read_record

HOLD = """
import sys
from pathlib import Path
from rayfl.run.directory import lock_directory
lock = lock_directory(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return validate_config({"output": str(tmp_path), "fleet": "inline"})


def unfinished(config: Config, *names: str) -> list[Path]:
    """Runs that were begun, and no more."""
    folders = [config.output / "runs" / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"digest": config.digest}))
        (folder / "config.yaml").write_text("{}")
    return folders


@contextmanager
def worked_on(folder: Path) -> Iterator[int]:
    """Another process is at work there; its id."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        try:
            yield other.pid
        finally:
            other.kill()


# -- one writer ------------------------------------------------------------------------------------


def test_auto_passes_over_a_run_that_somebody_is_at_work_on(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = unfinished(config, "20260101-a", "20260102-b")
    caplog.set_level(logging.WARNING, "rayfl")
    with worked_on(newer) as pid, claim_directory(config, None, "auto") as taken:
        assert taken == older
        # And of those that nobody else is at work on none is left.
        with claim_directory(config, None, "auto") as another:
            assert another not in (older, newer)
    assert f"20260102-b is passed over: process {pid} on " in caplog.text
    with claim_directory(config, None, "auto") as taken:
        assert taken == newer, "a killed one has left no lock"


def test_a_run_that_is_named_is_refused_with_who_holds_it(config: Config) -> None:
    (folder,) = unfinished(config, "20260101-a")
    with worked_on(folder) as pid:
        rule = rf"works on the run 20260101-a; got one that is held by process {pid} on \S+ since"
        with pytest.raises(LockHeldError, match=rule), claim_directory(config, None, folder.name):
            pytest.fail("nobody is to come here")


def test_a_run_that_is_finished_meanwhile_is_not_taken(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = unfinished(config, "20260101-a")

    def finish_first(directory: Path, patience: float = 0.0) -> Any:
        if directory == folder:
            (directory / "result.json").write_text("{}")
        return lock_directory(directory, patience)

    monkeypatch.setattr("rayfl.run.directory.lock_directory", finish_first)
    with claim_directory(config, None, "auto") as taken:
        assert taken != folder


def test_the_lock_goes_with_the_run(tmp_path: Path) -> None:
    settings = {
        "data": {"name": "blobs", "samples": 60, "test_samples": 20, "classes": 3},
        "clients": 2,
        "training": {"rounds": 1},
        "model": {"name": "mlp", "hidden": [4]},
        "fleet": "inline",
        "output": str(tmp_path),
        "tracking": {"enabled": False},
    }
    result = rayfl.run(settings)
    lock_directory(result.directory).release()
    assert (result.directory / "lock").read_bytes() == b""


# -- damage ----------------------------------------------------------------------------------------

DAMAGE = [b"", b"{", b"[]", b"null", b'{"digest": 3}', b"\xff\xfe", b"{}"]


@pytest.mark.parametrize("blob", DAMAGE)
def test_what_run_json_said_is_found_in_the_configuration_beside_it(
    blob: bytes, config: Config
) -> None:
    (folder,) = unfinished(config, "20260101-a")
    (folder / "run.json").write_bytes(blob)
    assert read_digest(folder) == config.digest
    assert unfinished_runs(config.output / "runs", config) == [folder]


def test_where_both_are_damaged_auto_begins_anew_and_a_name_is_refused(config: Config) -> None:
    (folder,) = unfinished(config, "20260101-a")
    for name in ("run.json", "config.yaml"):
        (folder / name).write_bytes(b"{\xff")
    with claim_directory(config, None, "auto") as taken:
        assert taken != folder
    rule = "with the configuration that it began with; got .*20260101-a, whose own is damaged"
    with pytest.raises(ConfigError, match=rule), claim_directory(config, None, folder):
        pytest.fail("nobody is to come here")


@pytest.mark.parametrize("name", ["run.json", "result.json"])
@pytest.mark.parametrize("blob", DAMAGE)
def test_a_finished_run_whose_files_are_damaged_is_none(
    name: str, blob: bytes, config: Config
) -> None:
    (folder,) = unfinished(config, "20260101-a")
    (folder / "run.json").write_text(json.dumps({"digest": config.digest, "scenario": "s"}))
    ended = {"rounds": 1, "sha256": "a", "history": []}
    (folder / "result.json").write_text(json.dumps(ended))
    assert read_record(folder) is not None
    (folder / name).write_bytes(blob)
    assert read_record(folder) is None
    assert list(list_records(config.output)) == []
