"""The sqlite store: whole or not there, whoever is killed while it is made; what is found half-made
or damaged is kept, and filled again from journals."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rayfl import cli
from rayfl.locks import take_lock
from rayfl.tracking.carrier import Carrier, sync_journals
from rayfl.tracking.journal import Journal
from rayfl.tracking.sqlite_store import COMPANIONS, State, prepare_store, read_state
from rayfl.tracking.store import default_uri, list_addresses, open_client
from tests.reliability.drills import ROOT
from tests.reliability.power_loss import Recorder, chances, found_after, lay_out
from tests.sockets import user_environment

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]

PATIENCE = 120.0
FURTHER = [pytest.param(seconds, marks=pytest.mark.long) for seconds in (0.05, 0.6)]
"""Moments to kill at besides the one at which most of a store is made."""
IN_PLACE = "from mlflow import MlflowClient; MlflowClient({uri!r}).search_experiments()"
"""As MLflow makes a store by itself."""
WITH_CARE = (
    "from pathlib import Path; from rayfl.tracking.sqlite_store import prepare_store; "
    "prepare_store(Path({path!r})); print('made')"
)


def tell(output: Path, name: str, rounds: int = 3, parent: str = "") -> Journal:
    """The journal of a run that is over."""
    journal = Journal(output / "runs" / name)
    tags = {"mlflow.parentRunId": parent} if parent else {}
    journal.append("start", experiment="e", run_name=name, tags=tags, params={"lr": 0.1})
    for step in range(1, rounds + 1):
        journal.append("metrics", step=step, values={"loss": 1.0 / step})
    journal.append("status", status="FINISHED")
    return journal


def runs_of(output: Path) -> dict[str, tuple[str, list[int]]]:
    """What the store has: by name of a run its status and the rounds of its loss."""
    client = open_client(default_uri(output))
    experiment = client.get_experiment_by_name("e")
    found = client.search_runs([experiment.experiment_id]) if experiment else []
    return {
        str(run.info.run_name): (
            str(run.info.status),
            sorted(point.step for point in client.get_metric_history(run.info.run_id, "loss")),
        )
        for run in found
    }


def start(code: str, home: Path) -> subprocess.Popen[str]:
    environment = {**user_environment(home), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_after(process: subprocess.Popen[str], file: Path, seconds: float) -> None:
    """End a process so long after a file has appeared."""
    begun = time.monotonic()
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def half_made(path: Path) -> None:
    """What an interrupted migration leaves: a version of long ago, and the tables of later ones."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
        file.commit()


def asides(output: Path) -> list[Path]:
    found = output.glob("mlflow.db.aside-*")
    return [path for path in sorted(found) if not path.name.endswith(COMPANIONS)]


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without runs: to make one takes MLflow seconds."""
    path = tmp_path_factory.mktemp("blank") / "mlflow.db"
    prepare_store(path)
    return path


@pytest.fixture
def output(tmp_path: Path, blank: Path) -> Path:
    """An output folder with a store."""
    shutil.copy(blank, tmp_path / "mlflow.db")
    return tmp_path


# -- made --------------------------------------------------------------------------------------


def test_only_the_store_in_the_making_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow.store.tracking.sqlalchemy_store as stores
    from sqlalchemy import create_engine, text

    waits = {}

    def make(uri: str, _artifacts: str) -> None:
        for name, address in (("made", uri), ("other", f"sqlite:///{tmp_path}/other.db")):
            engine = create_engine(address)
            with engine.connect() as connection:
                waits[name] = connection.execute(text("PRAGMA synchronous")).scalar()
                connection.execute(text("CREATE TABLE t (x)"))
            engine.dispose()

    monkeypatch.setattr(stores, "SqlAlchemyStore", make)
    prepare_store(tmp_path / "mlflow.db")
    assert waits == {"made": 0, "other": 2}
    # What is opened later waits again.
    with create_engine(f"sqlite:///{tmp_path}/mlflow.db").connect() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2


def test_a_store_made_of_the_kept_one_differs_in_its_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # As old as each other: the default experiment has the time of its making.
    monkeypatch.setattr("mlflow.store.tracking.sqlalchemy_store.get_current_time_millis", int)
    folders = [tmp_path / "first", tmp_path / "later"]
    for folder in folders:
        prepare_store(folder / "mlflow.db")
    assert len(kept_blanks(tmp_path)) == 1
    walked, copied = (dump(folder).replace(folder.name, "here") for folder in folders)
    assert "file://" in walked
    assert copied == walked


def test_steps_are_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow.store.db.utils as tables

    walked: list[int] = []
    upgrade = tables._upgrade_db

    def walk(engine: Any) -> None:
        walked.append(1)
        upgrade(engine)

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tables, "_upgrade_db", walk)
    for name in ("first", "second", "third"):
        prepare_store(tmp_path / name / "mlflow.db")
    assert walked == [1]


@pytest.mark.parametrize("spoil", ["garbage", "half made", "cut"])
def test_a_kept_store_that_is_none_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    prepare_store(tmp_path / "a" / "mlflow.db")
    (kept,) = kept_blanks(tmp_path)
    if spoil == "garbage":
        kept.write_bytes(b"no store" * 1000)
    elif spoil == "half made":
        half_made(kept)
    else:
        os.truncate(kept, kept.stat().st_size // 2)
    prepare_store(tmp_path / "b" / "mlflow.db")
    assert read_state(tmp_path / "b" / "mlflow.db", thorough=True) is State.READY
    (again,) = kept_blanks(tmp_path)
    assert read_state(again, thorough=True) is State.READY


def test_without_a_home_to_write_to_a_store_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    prepare_store(tmp_path / "mlflow.db")
    assert read_state(tmp_path / "mlflow.db", thorough=True) is State.READY


def test_a_user_without_a_home_has_a_store_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs under a number that nobody has a name for."""

    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    prepare_store(tmp_path / "mlflow.db")
    assert read_state(tmp_path / "mlflow.db", thorough=True) is State.READY


def kept_blanks(home: Path) -> list[Path]:
    return list((home / ".cache" / "rayfl" / "mlflow").iterdir())


def dump(folder: Path) -> str:
    """A store as text: its tables, and all that is in them."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as file:
        return "\n".join(sorted(file.iterdump()))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.3, *FURTHER])
def test_whoever_is_killed_while_making_a_store_leaves_none(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "mlflow.db"
    process = start(WITH_CARE.format(path=str(path)), tmp_path)
    kill_after(process, tmp_path / "mlflow.db.making", seconds)
    assert read_state(path) in (State.MISSING, State.READY)
    tell(tmp_path, "a")
    assert sync_journals(tmp_path, default_uri(tmp_path)) == {"a": 5}
    assert runs_of(tmp_path) == {"a": ("FINISHED", [1, 2, 3])}
    assert not (tmp_path / "mlflow.db.making").exists()
    assert asides(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, *FURTHER])
def test_a_store_whose_making_was_interrupted_is_replaced(
    tmp_path: Path, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """As MLflow makes it: in place."""
    path = tmp_path / "mlflow.db"
    process = start(IN_PLACE.format(uri=f"sqlite:///{path}"), tmp_path)
    kill_after(process, path, seconds)
    before = read_state(path)
    tell(tmp_path, "a")
    assert sync_journals(tmp_path, default_uri(tmp_path)) == {"a": 5}
    assert runs_of(tmp_path) == {"a": ("FINISHED", [1, 2, 3])}
    assert before in (State.MISSING, State.UNFINISHED, State.READY)
    if before is State.UNFINISHED:
        assert len(asides(tmp_path)) == 1
        assert asides(tmp_path)[0].name in caplog.text


@pytest.mark.slow
def test_of_two_that_need_a_store_one_makes_it_and_the_other_waits(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    both = [start(WITH_CARE.format(path=str(path)), tmp_path) for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE) for process in both]
    assert [out for out, _ in said] == ["made\n"] * 2, said
    assert read_state(path, thorough=True) is State.READY


def test_nobody_makes_a_store_that_somebody_else_is_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfl.tracking.sqlite_store.PATIENCE_SECONDS", 0.0)
    held = pytest.raises(Exception, match="one process at a time works on the making of")
    with take_lock(tmp_path / "mlflow.db.lock", "it"), held:
        prepare_store(tmp_path / "mlflow.db")
    assert not (tmp_path / "mlflow.db").exists()


def test_the_ui_of_an_empty_folder_finds_a_whole_store(tmp_path: Path) -> None:
    """MLflow would make it in place, and Ctrl-C break it."""
    assert list_addresses(default_uri(tmp_path)) == {}
    assert read_state(tmp_path / "mlflow.db") is State.READY


# -- found -------------------------------------------------------------------------------------


def spoil_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 20))


def spoil_head(path: Path) -> None:
    path.write_bytes(b"no database" + path.read_bytes()[11:])


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (half_made, "was left half-made"),
        (spoil_page, "is damaged"),
        (spoil_head, "is damaged"),
        (cut, "is damaged"),
    ],
)
def test_what_a_lost_store_had_is_carried_again(
    output: Path, caplog: pytest.LogCaptureFixture, spoil: Any, why: str
) -> None:
    uri = default_uri(output)
    parent = Journal(output / "sweeps" / "s")
    parent.append("start", experiment="e", run_name="s", tags={}, params={})
    Carrier(parent, uri).carry()
    lost = str(parent.noted()["run_id"])
    tell(output, "a", parent=lost)
    tell(output, "b", rounds=2)
    sync_journals(output, uri)
    spoil(output / "mlflow.db")
    words = ["sync", "-o", str(output), "--uri", uri]
    with caplog.at_level(logging.WARNING):
        said = CliRunner().invoke(cli.rayfl, words, catch_exceptions=False)
    assert said.exit_code == 0
    assert said.output.splitlines()[:3] == ["s: 1 entries", "b: 4 entries", "a: 5 entries"]
    assert f"mlflow.db {why}" in caplog.text
    (aside,) = asides(output)
    assert f"kept as {aside.name}" in caplog.text
    stored = runs_of(output)
    assert stored.pop("s")[1] == []
    assert stored == {"a": ("FINISHED", [1, 2, 3]), "b": ("FINISHED", [1, 2])}
    client = open_client(uri)
    tags = client.get_run(Journal(output / "runs" / "a").noted()["run_id"]).data.tags
    assert tags["mlflow.parentRunId"] == parent.noted()["run_id"] != lost
    assert sync_journals(output, uri) == {}


def test_a_store_that_somebody_has_removed_is_filled_again(output: Path) -> None:
    uri = default_uri(output)
    journal = tell(output, "a")
    sync_journals(output, uri)
    first = journal.noted()["run_id"]
    (output / "mlflow.db").unlink()
    assert sync_journals(output, uri) == {"a": 5}
    assert journal.noted()["former"] == [first]
    assert runs_of(output) == {"a": ("FINISHED", [1, 2, 3])}


def test_a_store_of_a_newer_mlflow_is_left_as_it_is(output: Path) -> None:
    path = output / "mlflow.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE alembic_version SET version_num = 'of tomorrow'")
        file.commit()
    assert read_state(path) is State.FOREIGN
    prepare_store(path)
    assert [found.name for found in output.glob("mlflow.db*")] == ["mlflow.db"]


def test_a_store_that_only_lacks_its_last_steps_is_finished_with_all_that_it_has(
    output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of an older MLflow is."""
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config

    uri = default_uri(output)
    tell(output, "a")
    sync_journals(output, uri)
    command.downgrade(_get_alembic_config(uri), "-1")
    assert read_state(output / "mlflow.db") is State.UNFINISHED
    assert runs_of(output) == {"a": ("FINISHED", [1, 2, 3])}
    assert sync_journals(output, uri) == {}, "nothing was lost"
    assert "it was brought up to date" in caplog.text


# -- journals and notes that are damaged -------------------------------------------------------


@pytest.mark.parametrize("damage", [b"\xff\xfe{", b'{"kind": "metr', b"[]", b'{"kind": "metrics"}'])
def test_a_damaged_line_costs_itself_alone(
    output: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    journal = tell(output, "a")
    whole = journal.path.read_bytes().splitlines()
    whole[2] = damage
    journal.path.write_bytes(b"\n".join(whole) + b"\n")
    assert Journal(journal.directory).last_round == 3
    assert sync_journals(output, default_uri(output)) == {"a": 4}
    assert runs_of(output) == {"a": ("FINISHED", [1, 3])}
    assert f"1 damaged lines of {journal.path} are left out, from line 3 on" in caplog.text


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b"\xff", b'{"run_id": 3}', b'{"carried": 4}', b'{"run_id": "x"}']
)
def test_a_damaged_note_doubles_nothing(output: Path, note: bytes) -> None:
    uri = default_uri(output)
    journal = tell(output, "a")
    sync_journals(output, uri)
    first = journal.noted()["run_id"]
    journal.note.write_bytes(note)
    assert sync_journals(output, uri) == {"a": 5}
    assert journal.noted()["run_id"] == first
    assert runs_of(output) == {"a": ("FINISHED", [1, 2, 3])}


def test_no_loss_of_power_leaves_more_noted_than_written(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else lines that are written in place of the lost ones would never be carried."""
    recorder = Recorder(output / "runs")
    with monkeypatch.context() as patch:
        recorder.patch(patch)
        journal = tell(output, "a")
        sync_journals(output, default_uri(output))
    assert journal.noted()["carried"] == 5
    for moment in range(len(recorder.steps) + 1):
        for number, chance in enumerate(chances(moment)):
            folder = output / f"found-{moment}-{number}"
            found = Journal(lay_out(folder, found_after(recorder.steps[:moment], chance)) / "a")
            assert found.noted().get("carried", 0) <= len(list(found.lines()))


def test_a_file_that_is_gone_keeps_nothing_else_from_being_carried(
    output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tell(output, "a")
    journal.append("artifact", path=str(output / "gone.txt"), folder="")
    journal.append("tags", tags={"x": "1"})
    assert sync_journals(output, default_uri(output)) == {"a": 7}
    assert "gone.txt is gone, and left out" in caplog.text


def test_two_that_carry_one_journal_make_one_run(output: Path) -> None:
    uri = default_uri(output)
    tell(output, "a", rounds=40)
    code = (
        "from pathlib import Path; from rayfl.tracking.carrier import sync_journals; "
        f"sync_journals(Path({str(output)!r}), {uri!r})"
    )
    both = [start(code, output) for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert runs_of(output) == {"a": ("FINISHED", list(range(1, 41)))}
