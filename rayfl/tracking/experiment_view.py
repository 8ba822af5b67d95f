"""How an experiment shows in MLflow's UI: as model training, and with columns that tell runs apart.

The UI keeps what a person chose in the browser. A view that lies with the experiment is opened by
its key in the address; see `address`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY = "rayfl"
TAGS = (
    "method",
    "noise",
    "noise_rate",
    "partition",
    "alpha",
    "dataset",
    "seed",
    "clients",
    "rounds",
    "lr",
)
METRICS = ("test/accuracy", "last10/test/accuracy", "best/test/accuracy", "labels/precision")
WIDTHS = {
    "attributes.`Run Name`": 300,
    "metrics.`last10/test/accuracy`": 150,
    "metrics.`best/test/accuracy`": 150,
    "tags.`seed`": 60,
    "tags.`alpha`": 70,
    "tags.`lr`": 70,
    "tags.`clients`": 80,
    "tags.`rounds`": 80,
}
WIDTH = 110
CHARTS = "^test/(accuracy|loss|macro_f1)|^labels/"
"""What is drawn when runs are compared: a regular expression, which stands in a field where it can
be changed."""


def arrange_experiment(client: MlflowClient, experiment_id: str) -> None:
    """Give an experiment its kind and its view; once is enough, twice does no harm."""
    client.set_experiment_tag(experiment_id, "mlflow.experimentKind", "custom_model_development")
    client.set_experiment_tag(
        experiment_id, f"mlflow.sharedViewState.{KEY}", json.dumps(_make_view())
    )


def _make_view() -> dict[str, object]:
    """The columns of the list of runs and the charts of the comparison, in the UI's own words."""
    # What a run came to is seen without scrolling, however narrow the window.
    columns = [*(f"metrics.`{name}`" for name in METRICS), *(f"tags.`{name}`" for name in TAGS)]
    shown = ["attributes.`Run Name`", "runDateAndNestInfo", *columns]
    widths = {**dict.fromkeys(columns, WIDTH), **WIDTHS}
    return {
        "selectedColumns": columns,
        "columnOrder": shown,
        "columnWidths": widths,
        "chartsSearchFilter": CHARTS,
    }


def view_address(experiment_id: str) -> str:
    """The part of the UI's address that opens an experiment in its view."""
    return (
        f"#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={KEY}"
    )
