"""Datasets as inputs of an MLflow run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

CONTEXT = "mlflow.data.context"
"""The tag by which MLflow tells what a dataset was for."""
KIND = "local"
"""MLflow's name for a source that is a place on this machine."""


def make_inputs(datasets: Sequence[Mapping[str, str]]) -> list[DatasetInput]:
    """What a journal says of datasets in MLflow's form.

    Parameters
    ----------
    datasets : sequence of mapping
        `name`, `digest`, `context`, `profile`, `schema` and `source` each.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    return [
        DatasetInput(
            Dataset(
                name=dataset["name"],
                digest=dataset["digest"],
                source_type=KIND,
                source=dataset["source"],
                schema=dataset["schema"],
                profile=dataset["profile"],
            ),
            [InputTag(CONTEXT, dataset["context"])],
        )
        for dataset in datasets
    ]
