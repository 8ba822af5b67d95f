"""What all tests share: a quiet, private Ray that is started once, and no traces outside temporary
folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl.fleet.on_ray.own_ray import own_settings

# No variable is set that a user's shell does not have. Those that would lead tests to somebody's
# own cluster or store are taken away.
os.environ.pop("RAY_ADDRESS", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)


DEAR = ("tuning", "report", "tracking", "study", "audit", "reliability")
"""Folders whose tests share what takes long to make."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share something dear come first: those that are left at the end are dealt out one
    by one among processes, each of which would make it anew."""
    items.sort(key=lambda item: item.path.parent.name not in DEAR)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local Ray with two logical GPUs and room for many small actors."""
    import ray

    # As a run of a user's starts its own: for this machine alone, with a token.
    with own_settings():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                num_cpus=8,
                num_gpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
            )
        yield
        ray.shutdown()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
