"""Runs that are over, read back from the output folder: what studies, sweeps and reports stand on.

A run's directory holds `config.yaml` (resolved), `run.json` (what it is), `result.json` (how it ended, every round's
metrics) and `arrays.npz` (confusion matrix and whatever the method left). A run without `result.json` is not over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rayfl.config import Config

LAST = 10


@dataclass(frozen=True)
class Record:
    """One finished run."""

    directory: Path
    digest: str
    scenario: str
    rounds: int
    sha256: str
    history: list[dict[str, Any]]
    facts: Mapping[str, Any]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as plain values."""
        settings = yaml.safe_load((self.directory / "config.yaml").read_text())
        return dict(settings)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """`confusion`, and under its own name whatever the method left."""
        path = self.directory / "arrays.npz"
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as saved:
            return {name: saved[name] for name in saved.files}

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric or of a clock reading, where it has one."""
        points = [
            (int(entry["round"]), float(values[metric]))
            for entry in self.history
            for values in (entry["metrics"], entry["clock"])
            if metric in values
        ]
        return [t for t, _ in points], [value for _, value in points]

    def score(self, metric: str, over: str = "last", window: int = LAST) -> float:
        """One number for a run: the `final` value, the `best`, the `mean`, or the mean of the `last` few rounds."""
        values = self.series(metric)[1]
        if not values:
            return float("nan")
        chosen = {"final": values[-1:], "best": [max(values)], "mean": values, "last": values[-window:]}[over]
        return float(np.mean(chosen))


def records(output: Path) -> Iterator[Record]:
    """The finished runs below an output folder, oldest first."""
    for path in sorted(output.glob("runs/*/result.json")):
        found = read(path.parent)
        if found is not None:
            yield found


def read(directory: Path) -> Record | None:
    """One run, if it is over."""
    try:
        facts = json.loads((directory / "run.json").read_text())
        result = json.loads((directory / "result.json").read_text())
    except (OSError, ValueError):
        return None
    return Record(
        directory=directory,
        digest=facts["digest"],
        scenario=facts["scenario"],
        rounds=result["rounds"],
        sha256=result["sha256"],
        history=result["history"],
        facts=result.get("facts", {}),
    )


def alike(output: Path, config: Config, scenario: str | None = None) -> Record | None:
    """The newest finished run with this configuration, as many rounds and, if given, this scenario."""
    wanted = (config.digest, config.training.rounds)
    same = [record for record in records(output) if (record.digest, record.rounds) == wanted]
    return next((record for record in reversed(same) if scenario in (None, record.scenario)), None)
