"""Runs and stores that several tests of tracking look at."""

from __future__ import annotations

import pytest

import rayfl
from rayfl.tracking.store import default_uri
from tests.tracking.tracker_toys import SECRET, SETTINGS


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
