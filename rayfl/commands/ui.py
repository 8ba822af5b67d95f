"""`rayfl ui`: MLflow's pages of this project's store."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from rayfl.config.schema import default_output
from rayfl.errors import ConfigError, broken

QUIET: Mapping[str, str] = {
    # Half a dozen processes of 220 MB each, for evaluations of language models.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""What MLflow's server is told that rayfl has no use for."""


@click.command("ui")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=default_output,
    show_default="RAYFL_OUTPUT, or outputs",
    help="The folder that runs lie below.",
)
@click.option("--uri", help="The MLflow store; MLFLOW_TRACKING_URI, or the sqlite file in OUTPUT.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
def ui_command(output: Path, uri: str | None, port: int) -> None:
    """Open the MLflow UI on this project's store, on loopback."""
    from rayfl.secrets import mask_secrets
    from rayfl.tracking.store import choose_uri, list_addresses
    from rayfl.tracking.ui_server import serve_until_stopped

    store = choose_uri(output.absolute(), uri)
    server = find_server(store)
    refuse_empty_store(store)
    place = server or f"http://127.0.0.1:{port}"
    click.echo(f"{mask_secrets(place)}  ({mask_secrets(store)})")
    for name, address in list_addresses(store).items():
        click.echo(f"  {name}: {mask_secrets(place)}/{address}")
    if server is not None:
        click.echo("this store is a server, which shows its pages itself")
        return
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", store]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    sys.exit(serve_until_stopped(command, {**QUIET, **os.environ}))


def find_server(uri: str) -> str | None:
    """The address of a store that is a server; None for a file or a database.

    Parameters
    ----------
    uri : str
        The store.
    """
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else None


def refuse_empty_store(uri: str) -> None:
    """Say so where a sqlite store is not there, in place of making one that shows nothing.

    Parameters
    ----------
    uri : str
        The store.
    """
    from rayfl.tracking.sqlite_store import State, path_of, read_state

    path = path_of(uri)
    if path is None or read_state(path) is not State.MISSING:
        return
    runs = sorted(path.parent.glob("runs/*/journal.jsonl"))
    remedy = "Run something first (rayfl quickstart), or name the folder of your runs with -o."
    if runs:
        remedy = f"{len(runs)} runs lie there untracked: rayfl sync -o {path.parent}"
    rule = "rayfl ui shows a store that has runs"
    raise ConfigError(broken(rule, f"{path}, which is not there", remedy))
