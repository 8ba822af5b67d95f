"""`rayfl promote`: a run's model into MLflow's registry."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rayfl.config.schema import default_output


@click.command("promote")
@click.argument("run")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=default_output,
    show_default="RAYFL_OUTPUT, or outputs",
    help="The folder that runs lie below.",
)
@click.option("--uri", help="The MLflow store; MLFLOW_TRACKING_URI, or the sqlite file in OUTPUT.")
@click.option("--alias", help="An alias of the new version, such as champion.")
def promote_command(run: str, name: str, output: Path, uri: str | None, alias: str | None) -> None:
    """Register the model of RUN as a new version of NAME.

    RUN is the name of a run's folder, its end, or its path. The version keeps the link to its run,
    its metrics and its dataset."""
    from rayfl.run.loading import find_run
    from rayfl.secrets import mask_secrets
    from rayfl.tracking.registry import promote_model
    from rayfl.tracking.store import default_uri

    folder = output.absolute()
    store = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(folder)
    directory = find_run(run, folder)
    version = promote_model(directory, name, store, alias)
    click.echo(f"{directory.name} is version {version} of {name}  ({mask_secrets(store)})")
    click.echo(f"load it with  mlflow.pytorch.load_model('models:/{name}/{version}')")
