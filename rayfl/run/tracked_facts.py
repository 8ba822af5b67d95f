"""What MLflow is told of a run before its first round: tags, a description, where it comes from,
and its datasets."""

from __future__ import annotations

import getpass
import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config.schema import Config
from rayfl.federation.scenario import Scenario
from rayfl.run.description import describe_run, tag_settings
from rayfl.run.environment import (
    ask_git,
    describe_machine,
    git_commit,
    library_versions,
)
from rayfl.run.progress import is_notebook
from rayfl.version import __version__

DIGEST_LETTERS = 36
"""What MLflow keeps of a dataset's digest."""
SLOTS = ("method", "model", "partition", "noise")


def tag_run(config: Config, scenario: Scenario, directory: Path) -> dict[str, str]:
    """Everything that a run is found by; tags of the configuration win.

    Parameters
    ----------
    config : Config
    scenario : Scenario
        Who holds what.
    directory : Path
        Where the run lies.
    """
    return {
        **{slot: config.name_of(slot) for slot in SLOTS},
        "dataset": scenario.dataset.name,
        "seed": str(config.seed),
        "noise_rate": _format_rate(scenario.noise_rate()),
        **tag_settings(config),
        "scenario": scenario.sha256,
        "config": config.digest,
        "run": directory.name,
        "rayfl": __version__,
        "git": git_commit(),
        "fleet": config.fleet,
        **describe_machine(),
        **library_versions(),
        **_tag_source(),
        "mlflow.note.content": _write_description(config, directory),
        **config.tracking.tags,
    }


def _format_rate(rate: float | None) -> str:
    """The share of wrong labels that the clients have; unknown where nobody knows the truth."""
    return "unknown" if rate is None else f"{rate:.3f}"


def _write_description(config: Config, directory: Path) -> str:
    """One sentence, and the command that repeats it; MLflow reads it as Markdown."""
    command = shlex.join(["rayfl", "run", str(directory / "config.yaml")])
    return f"{describe_run(config)}.\n\n```\n{command}\n```"


@lru_cache(maxsize=1)
def _tag_source() -> dict[str, str]:
    """What was called, by whom, of which commit, under MLflow's own names; asked once a
    process."""
    found = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": _name_source(),
        "mlflow.source.git.commit": ask_git(["rev-parse", "HEAD"]),
        "mlflow.source.git.branch": ask_git(["rev-parse", "--abbrev-ref", "HEAD"]),
        "mlflow.source.git.repoURL": ask_git(["remote", "get-url", "origin"]),
    }
    # A process without an account of its own has no name.
    with suppress(OSError, KeyError):
        found["mlflow.user"] = getpass.getuser()
    return {name: value for name, value in found.items() if value}


def _name_source() -> str:
    """The program, with its command where that is ours; MLflow's UI cuts at every slash."""
    if is_notebook():
        return "notebook"
    program, *words = [Path(word).name for word in sys.argv if not word.startswith("-")] or [
        "python"
    ]
    return f"{program} {words[0]}" if program == "rayfl" and words else program


# -- datasets --------------------------------------------------------------------------------------


def list_datasets(
    config: Config, scenario: Scenario, shape: tuple[int, int, int]
) -> list[dict[str, str]]:
    """The clients' images and the test images, as MLflow keeps datasets.

    Parameters
    ----------
    config : Config
    scenario : Scenario
        Its hash is the digest: which images, and who holds them with which labels.
    shape : tuple of int
        Of an image: height, width, channels.
    """
    sizes = scenario.sizes()
    tested = "all" if scenario.test is None else len(scenario.test)
    rate = scenario.noise_rate()
    training = {
        "samples": int(sizes.sum()),
        "clients": scenario.clients,
        "classes": len(scenario.classes),
        "wrong_labels": "unknown" if rate is None else round(rate, 6),
    }
    testing = {"samples": tested, "classes": len(scenario.classes)}
    name = scenario.dataset.name
    made = [
        (name, "training", training),
        (name_test_set(scenario), "testing", testing),
    ]
    return [
        {
            "name": each,
            "digest": scenario.sha256[:DIGEST_LETTERS],
            "context": context,
            "profile": json.dumps(profile),
            "schema": _describe_tensors(shape),
            "source": json.dumps({"uri": json.dumps(config.resolved()["data"])}),
        }
        for each, context, profile in made
    ]


def name_test_set(scenario: Scenario) -> str:
    """What the test images of a scenario are called."""
    return f"{scenario.dataset.name} test"


def _describe_tensors(shape: tuple[int, int, int]) -> str:
    """Images and labels in MLflow's form of a schema."""
    tensors: Mapping[str, list[Any]] = {
        "features": ["uint8", [-1, *shape]],
        "targets": [np.dtype(np.int64).name, [-1]],
    }
    described = {
        name: json.dumps([{"type": "tensor", "tensor-spec": {"dtype": kind, "shape": size}}])
        for name, (kind, size) in tensors.items()
    }
    return json.dumps({"mlflow_tensorspec": described})
