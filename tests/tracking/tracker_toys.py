"""What the tests of tracker share."""

from __future__ import annotations

from typing import Any

import pytest

import rayfl
from rayfl.tracking.store import default_uri, open_client

SECRET = "hunter2"


SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 4,
    "noise": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 3, "batch_size": 64},
    "fleet": "inline",
    "checkpoint": {"uri": None, "min_seconds": 0},
}


def steps_of(uri: str, run_id: str, metric: str = "loss") -> list[int]:
    """The rounds of a metric's history, in order and with whatever is there twice."""
    return sorted(point.step for point in open_client(uri).get_metric_history(run_id, metric))


# -- the journal -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store for the runs of several tests: to make one takes MLflow seconds."""
    return default_uri(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> rayfl.Result:
    """A run of three rounds that was then taken up again for two more, with secrets in its
    configuration."""
    output = tmp_path_factory.mktemp("tracked")
    see = f"http://me:{SECRET}@example.org"
    settings = {
        **SETTINGS,
        "output": output,
        "tracking": {"experiment": "mine", "tags": {"see": see, "team": "a"}},
    }
    first = rayfl.run(settings)
    longer = {**SETTINGS["training"], "rounds": 5}
    second = rayfl.run({**settings, "training": longer}, resume=first.directory)
    assert second.mlflow_run_id == first.mlflow_run_id
    return second


def uri_of(result: rayfl.Result) -> str:
    return default_uri(result.config.output)
