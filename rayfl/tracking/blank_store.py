"""A store without a run, kept from the first that was made: MLflow's seventy steps are walked once
on a machine, and not for every output folder."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

log = logging.getLogger("rayfl")

NO_CACHE = (OSError, RuntimeError)
"""What is raised where nothing is kept yet, or can be; and by Path.home() for a user without a
name, as containers have them."""


def copy_blank(version: str, part: Path, is_whole: Callable[[Path], bool]) -> bool:
    """Begin a store with a copy of the kept one; whether there was one.

    Parameters
    ----------
    version : str
        Of the tables that this MLflow wants.
    part : Path
        Where the copy goes.
    is_whole : callable
        Whether a copy can be used: what lies in a cache may be anything.
    """
    try:
        kept = _path_of_blank(version)
        shutil.copyfile(kept, part)
    except NO_CACHE:
        return False
    if is_whole(part):
        return True
    log.debug("%s is no blank store: it goes", kept)
    part.unlink()
    # Somebody else may have been quicker, or it is not ours.
    with suppress(OSError):
        kept.unlink()
    return False


def keep_blank(version: str, made: Path) -> None:
    """Keep a copy of a store that nobody has used yet, for the next output folder."""
    # Every store is then made by itself.
    with suppress(*NO_CACHE, sqlite3.Error):
        kept = _path_of_blank(version)
        kept.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: others may keep theirs at this moment.
        handle, name = tempfile.mkstemp(dir=kept.parent)
        os.close(handle)
        part = Path(name)
        try:
            shutil.copyfile(made, part)
            with closing(sqlite3.connect(part)) as file:
                # The default experiment says where the artifacts of this very store are; MLflow
                # makes one wherever there is none.
                file.execute("DELETE FROM experiments")
                file.commit()
            os.replace(part, kept)
        finally:
            part.unlink(missing_ok=True)


def _path_of_blank(version: str) -> Path:
    import mlflow

    name = f"blank-{mlflow.__version__}-{version}.db"
    return Path.home() / ".cache" / "rayfl" / "mlflow" / name
