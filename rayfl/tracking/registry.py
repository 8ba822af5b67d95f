"""Models of runs in MLflow's registry, under names that people give them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rayfl.errors import ConfigError, StorageError, broken
from rayfl.secrets import mask_secrets
from rayfl.tracking.journal import Journal
from rayfl.tracking.store import open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient


VERSIONS = "mlflow.modelVersions"


def promote_model(directory: Path, name: str, uri: str, alias: str | None = None) -> int:
    """Register a run's model; the number of its version.

    Parameters
    ----------
    directory : Path
        The run's.
    name : str
        Of the registered model, which is made where there is none.
    uri : str
        The store that the run was carried to.
    alias : str or None
        Points to the new version from now on.
    """
    note = Journal(directory).noted()
    if "model_id" not in note:
        rule = "a run that is promoted has a model in MLflow"
        remedy = "Finish it; or carry it with: rayfl sync"
        raise ConfigError(broken(rule, f"{directory.name}, which has none", remedy))
    try:
        return _register_model(open_client(uri), note["run_id"], note["model_id"], name, alias)
    except Exception as error:
        short = str(mask_secrets(str(error))).splitlines()[0]
        rule = "the MLflow store must take the model"
        raise StorageError(broken(rule, f"{mask_secrets(uri)}: {short}")) from error


def _register_model(
    client: MlflowClient, run_id: str, model_id: str, name: str, alias: str | None
) -> int:
    from mlflow.exceptions import MlflowException

    with suppress(MlflowException):  # it is there already; else the next call says what is wrong
        client.create_registered_model(name)
    model = client.get_logged_model(model_id)
    version = client.create_model_version(
        name,
        source=str(model.artifact_location),
        run_id=run_id,
        model_id=model_id,
        tags=dict(model.tags),
    )
    # By this tag MLflow's page of the model knows where it is registered.
    versions = json.loads(model.tags.get(VERSIONS, "[]"))
    versions.append({"name": name, "version": str(version.version)})
    client.set_logged_model_tags(model_id, {VERSIONS: json.dumps(versions)})
    if alias:
        client.set_registered_model_alias(name, alias, version.version)
    return int(version.version)
