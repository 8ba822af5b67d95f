"""A run's model as a LoggedModel of MLflow: found by its metrics, linked to its run and dataset."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rayfl.tracking.journal import Entry

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric

MOMENT = "rayfl.moment"
"""The tag that tells which entry of a journal a model is of: carried twice, it is there once."""
KIND = "classifier"
NUMBERS = ("metrics", "values")
"""Kinds of entries that have numbers."""
DESCRIPTION = "MLmodel"


def log_model(client: MlflowClient, run_id: str, entry: Entry, known: Iterable[Entry]) -> str:
    """The model of an entry, with what is known of it; its id.

    Parameters
    ----------
    client : MlflowClient
    run_id : str
        The run that made it.
    entry : mapping
        Of a journal: the model's folder, and what it says of itself.
    known : iterable of mapping
        The whole journal, which has the values of the metrics that the entry names.
    """
    from mlflow.entities import LoggedModelOutput

    run = client.get_run(run_id)
    experiment = run.info.experiment_id
    outputs = [] if run.outputs is None else run.outputs.model_outputs
    model = _find_model(client, experiment, run_id, entry) or _make_model(
        client, experiment, run_id, entry
    )
    model_id = str(model.model_id)
    if str(model.status) != "READY":
        client.log_model_artifacts(model_id, entry["path"])
        _name_itself(client, model_id, run_id, Path(entry["path"]))
        client.finalize_logged_model(model_id, "READY")
    step = int(entry.get("step", 0))
    # A second link would be refused.
    if model_id not in {each.model_id for each in outputs}:
        client.log_outputs(run_id, [LoggedModelOutput(model_id=model_id, step=step)])
    metrics = list(_list_metrics(run_id, model_id, entry, known))
    if metrics:
        client.log_batch(run_id, metrics=metrics)
    return model_id


def _find_model(
    client: MlflowClient, experiment: str, run_id: str, entry: Entry
) -> LoggedModel | None:
    """The model of an entry that was carried before, by a process that could not note it."""
    wanted = f"source_run_id = '{run_id}' AND tags.`{MOMENT}` = '{entry['time']}'"
    found = client.search_logged_models([experiment], filter_string=wanted)
    return found[0] if found else None


def _make_model(client: MlflowClient, experiment: str, run_id: str, entry: Entry) -> LoggedModel:
    tags = {**entry.get("tags", {}), MOMENT: str(entry["time"])}
    return client.create_logged_model(
        experiment,
        name=entry.get("name"),
        source_run_id=run_id,
        tags=tags,
        params=entry.get("params"),
        model_type=KIND,
    )


def _name_itself(client: MlflowClient, model_id: str, run_id: str, folder: Path) -> None:
    """Write into the model's own description which model it is: whoever loads it is told."""
    from mlflow.models import Model

    described = Model.load(str(folder))
    described.model_id = model_id
    described.run_id = run_id
    with tempfile.TemporaryDirectory(prefix="rayfl-model-") as place:
        path = Path(place, DESCRIPTION)
        described.save(str(path))
        client.log_model_artifact(model_id, str(path))


def _list_metrics(
    run_id: str, model_id: str, entry: Entry, known: Iterable[Entry]
) -> Iterator[Metric]:
    """The last values of the metrics that an entry names, on the dataset that they are of.

    With the moments that they have already: to the run's own history they add nothing."""
    from mlflow.entities import Metric

    about = entry.get("dataset", {})
    wanted = set(entry.get("metrics", ()))
    last: dict[str, Entry] = {}
    for each in known:
        if each["kind"] in NUMBERS and each["time"] <= entry["time"]:
            last |= dict.fromkeys(wanted & set(each["values"]), each)
    for name in sorted(last):
        yield Metric(
            key=name,
            value=last[name]["values"][name],
            timestamp=last[name]["time"],
            step=last[name]["step"],
            model_id=model_id,
            dataset_name=about.get("name"),
            dataset_digest=about.get("digest"),
            run_id=run_id,
        )
