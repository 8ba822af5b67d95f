"""MLflow's store in a sqlite file: made whole or not at all, and made again where it is damaged.

MLflow makes its tables in some seventy steps, in place. Whoever is killed meanwhile leaves a store
that no version of MLflow can use. Here it is made under another name, and gets its own when it is
whole. What is found half-made or damaged is kept under a name of its own, and replaced: everything
that rayfl has tracked lies in journals, from which `rayfl sync` fills it again."""

from __future__ import annotations

import enum
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rayfl.locks import take_lock
from rayfl.tracking.blank_store import copy_blank, keep_blank

log = logging.getLogger("rayfl")

SCHEME = "sqlite:///"
COMPANIONS = ("-journal", "-wal", "-shm")
"""What sqlite keeps beside a file while it is written to; without them it may not be whole."""
BUSY_SECONDS = 30.0
PATIENCE_SECONDS = 120.0
"""How long another process may take to make the store before this one tries again later."""


class State(enum.Enum):
    """What is found where a store should be."""

    MISSING = "missing"
    READY = "ready"
    FOREIGN = "of a newer MLflow, or not to be looked into"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"


def path_of(uri: str) -> Path | None:
    """The file of a sqlite store; None for any other store."""
    if not uri.startswith(SCHEME) or "?" in uri:
        return None
    return Path(uri.removeprefix(SCHEME)).absolute()


def prepare_store(path: Path, thorough: bool = False) -> None:
    """See to it that there is a store which MLflow can use; say what had to be done.

    Parameters
    ----------
    path : Path
        The sqlite file.
    thorough : bool
        Read every page of it, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if read_state(path, thorough) in (State.READY, State.FOREIGN):
        return
    lock = path.with_name(f"{path.name}.lock")
    with take_lock(lock, f"the making of {path}", PATIENCE_SECONDS):
        state = read_state(path, thorough)  # whoever had the lock may have made it
        if state is State.MISSING:
            _make_store(path)
        elif state is State.UNFINISHED:
            _finish_store(path)
        elif state is State.DAMAGED:
            _replace_store(path, "is damaged")


def read_state(path: Path, thorough: bool = False) -> State:
    """What there is, without changing it."""
    try:
        if not path.exists() or path.stat().st_size == 0:
            return State.MISSING
        with closing(_open_file(path)) as file:
            return _state_of(file, thorough)
    except sqlite3.OperationalError:  # locked, or not ours to open: MLflow will say what it is
        return State.FOREIGN
    except sqlite3.DatabaseError:  # no sqlite file, or a page of it is not one
        return State.DAMAGED


def _open_file(path: Path) -> sqlite3.Connection:
    mode = "rw" if os.access(path, os.W_OK) else "ro"
    return sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS)


def _state_of(file: sqlite3.Connection, thorough: bool) -> State:
    tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
    if not tables:
        return State.MISSING
    versions = []
    if "alembic_version" in tables:
        versions = [version for (version,) in file.execute("SELECT * FROM alembic_version")]
    if len(versions) != 1:
        return State.UNFINISHED
    newest, known = _schema_versions()
    if versions[0] != newest:
        return State.UNFINISHED if versions[0] in known else State.FOREIGN
    if thorough and file.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        return State.DAMAGED
    return State.READY


def _schema_versions() -> tuple[str, set[str]]:
    """The version of the tables that this MLflow wants, and all that it knows how to bring there.

    The version is written with the last step of the making: where it is the newest, all is
    there."""
    from alembic.script import ScriptDirectory
    from mlflow.store.db import utils

    scripts = ScriptDirectory.from_config(utils._get_alembic_config(db_url=""))
    known = [script.revision for script in scripts.walk_revisions()]
    return known[0], set(known)


# -- making and mending ------------------------------------------------------------------------


def _make_store(path: Path) -> None:
    part = _make_part(path)
    _remove_companions(path)  # of a file that is gone, they would spoil this one
    _publish_store(part, path)


def _finish_store(path: Path) -> None:
    """A store of an older MLflow, or one whose making was interrupted: finished if it can be."""
    part = _empty_part(path)
    try:
        with closing(_open_file(path)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        _let_mlflow_make(part, path)
        whole = read_state(part, thorough=True) is State.READY
    except Exception as error:  # whatever the database, the migration or MLflow have to say
        log.debug("%s cannot be finished: %s", path, error)
        whole = False
    if not whole:
        _replace_store(path, "was left half-made by a process that was killed")
        return
    aside = _set_aside(path, keep=True)
    _remove_companions(path)
    _publish_store(part, path)
    log.warning(
        "tracking: %s was of an older MLflow, or its making had been interrupted: it was brought "
        "up to date; what it was before is %s",
        path,
        aside.name,
    )


def _replace_store(path: Path, why: str) -> None:
    part = _make_part(path)
    aside = _set_aside(path, keep=False)
    _publish_store(part, path)
    log.warning(
        "tracking: %s %s: it is kept as %s, and a new store takes its place. No journal is lost; "
        "`rayfl sync -o %s` carries all of them to the new store",
        path,
        why,
        aside.name,
        path.parent,
    )


def _make_part(path: Path) -> Path:
    """A whole store under the name under which stores are made."""
    part = _empty_part(path)
    version, _ = _schema_versions()
    copied = copy_blank(version, part, lambda copy: read_state(copy, thorough=True) is State.READY)
    _let_mlflow_make(part, path)
    if not copied:
        keep_blank(version, part)
    return part


def _empty_part(path: Path) -> Path:
    """The name under which a store is made; what a killed process left there goes."""
    part = path.with_name(f"{path.name}.making")
    _close_engine(part)
    part.unlink(missing_ok=True)
    _remove_companions(part)
    return part


def _let_mlflow_make(part: Path, path: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    artifacts = path.with_name("artifacts").as_uri()
    with _spare_syncs(part):
        SqlAlchemyStore(f"{SCHEME}{part}", artifacts)
    # Nobody may have it open under the name that it is about to lose.
    _close_engine(part)


@contextmanager
def _spare_syncs(part: Path) -> Iterator[None]:
    """Wait for the disk once, when the store gets its name, and not after each of the seventy
    steps: what is under another name may be lost with the power."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def relax(connection: sqlite3.Connection, _record: object) -> None:
        # Other threads may open other stores meanwhile.
        if isinstance(connection, sqlite3.Connection):
            (_, _, file), *_ = connection.execute("PRAGMA database_list")
            if file == str(part.resolve()):
                connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", relax)
    try:
        yield
    finally:
        event.remove(Engine, "connect", relax)


def _close_engine(path: Path) -> None:
    """MLflow keeps its connections to a file for as long as the process lives, also to one that has
    been replaced."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    engines: dict[str, Any] = getattr(SqlAlchemyStore, "_engine_map", {})
    engine = engines.get(f"{SCHEME}{path}")
    if engine is not None:
        engine.dispose()


def _publish_store(part: Path, path: Path) -> None:
    """Give a whole store its name, on the disk too."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    _close_engine(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _set_aside(path: Path, keep: bool) -> Path:
    """Another name for a store, with all that belongs to it; its own, too, where it is to keep
    that until it is replaced."""
    aside = path.with_name(f"{path.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}")
    number = 0
    while aside.exists():
        number += 1
        aside = aside.with_suffix(f".{number}")
    for companion in COMPANIONS:
        beside = Path(f"{path}{companion}")
        if beside.exists():
            shutil.copy2(beside, f"{aside}{companion}")
    if keep:
        shutil.copy2(path, aside)
    else:
        os.replace(path, aside)
        _remove_companions(path)
    return aside


def _remove_companions(path: Path) -> None:
    for companion in COMPANIONS:
        Path(f"{path}{companion}").unlink(missing_ok=True)
