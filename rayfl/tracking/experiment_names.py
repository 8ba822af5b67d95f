"""The experiments of a store by name, and the refusal of one that it does not have."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rayfl.errors import ConfigError, broken, suggest_nearest
from rayfl.secrets import mask_secrets
from rayfl.tracking.sqlite_store import path_of


def list_experiments(uri: str) -> list[str] | None:
    """The names that a sqlite store has, without MLflow, which takes seconds to import; None where
    only MLflow can tell.

    Parameters
    ----------
    uri : str
        The store.
    """
    path = path_of(uri)
    if path is None:
        return None
    return _read_names(path) if path.is_file() else []


def _read_names(path: Path) -> list[str] | None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            rows = store.execute("select name from experiments").fetchall()
    except (
        sqlite3.Error
    ):  # half-made, damaged, or of another kind: MLflow's way mends it or says so
        return None
    return [str(name) for (name,) in rows]


def explain_unknown(name: str, known: Sequence[str], uri: str) -> ConfigError:
    """The refusal of an experiment that is not there, with those that are.

    Parameters
    ----------
    name : str
        The experiment that is wanted.
    known : sequence of str
        Those that there are.
    uri : str
        The store.
    """
    there = f"There are: {', '.join(known)}." if known else "It has none: run something first."
    remedy = suggest_nearest(name, known) or there
    return ConfigError(broken(f"{mask_secrets(uri)} has the experiment", name, remedy))


__all__ = ["explain_unknown", "list_experiments"]
