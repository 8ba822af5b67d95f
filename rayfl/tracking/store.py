"""The stores that journals are carried to: the sqlite file below the output folder, or an MLflow
server."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rayfl.errors import StorageError, broken
from rayfl.secrets import mask_secrets
from rayfl.tracking.experiment_view import view_address
from rayfl.tracking.sqlite_store import SCHEME, path_of, prepare_store

if TYPE_CHECKING:
    from mlflow import MlflowClient


def default_uri(output: Path) -> str:
    """The sqlite store below the output folder."""
    return f"{SCHEME}{output / 'mlflow.db'}"


def choose_uri(output: Path, given: str | None = None) -> str:
    """The store that is meant: as given, by MLFLOW_TRACKING_URI, or below the output folder.

    Parameters
    ----------
    output : Path
        The folder that runs lie below.
    given : str or None
        What a configuration or a command line says.
    """
    return given or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(output)


def refuse_bad_uri(uri: str) -> None:
    """A StorageError for an address of a server that is none, as it is where a password is written
    out; whether anybody answers there is not asked."""
    if not uri.lower().startswith(("http://", "https://")):
        return
    try:
        parts = urlsplit(uri)
        good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        rule = "tracking.uri, or MLFLOW_TRACKING_URI, names a server and its port"
        remedy = "What it has of user and password is percent-encoded."
        raise StorageError(broken(rule, mask_secrets(uri), remedy))


def open_client(uri: str, thorough: bool = False) -> MlflowClient:
    """A client that gives up on a dead server in seconds, not minutes, and does not chat.

    A sqlite store is made, or mended, before it is used.

    Parameters
    ----------
    uri : str
        The store.
    thorough : bool
        Read a sqlite store from end to end, to know that it is whole.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    # What it prints of a finished run is the URI, with the password that is in it.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    _silence_loggers()
    from mlflow import MlflowClient

    _silence_loggers()  # MLflow sets levels of its own when it is imported
    path = path_of(uri)
    if path is not None:
        prepare_store(path, thorough)
    return MlflowClient(tracking_uri=uri)


def list_addresses(uri: str) -> dict[str, str]:
    """The part of the UI's address that opens each experiment with the columns that tell runs
    apart."""
    found = open_client(uri).search_experiments()
    return {
        experiment.name: view_address(experiment.experiment_id)
        for experiment in found
        if experiment.name != "Default"
    }


def artifact_root(uri: str) -> str | None:
    """Artifacts of a sqlite store lie beside it; a server knows its own place."""
    path = path_of(uri)
    return None if path is None else path.with_name("artifacts").as_uri()


def _silence_loggers() -> None:
    for name in ("alembic", "mlflow", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
