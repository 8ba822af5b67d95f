"""Runs that are over, read back from the output folder: what studies, sweeps and reports stand on.

A run's directory holds `config.yaml` (resolved), `run.json` (what it is), `result.json` (how it
ended, every round's metrics) and `arrays.npz` (confusion matrix and whatever the method left). A
run without `result.json` is not over."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rayfl.config.schema import Config

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
        text = (self.directory / "config.yaml").read_text()
        # The parser in C is ten times as quick, where PyYAML was built with it.
        return dict(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """`confusion`, and under its own name whatever the method left."""
        path = self.directory / "arrays.npz"
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as saved:
            return {name: saved[name] for name in saved.files}

    @cached_property
    def environment(self) -> dict[str, str]:
        """The code, the libraries and the machine that it was made with, as far as it says."""
        facts = json.loads((self.directory / "run.json").read_text(encoding="utf-8"))
        kept = facts.get("environment")
        found = dict(kept) if isinstance(kept, dict) else self._read_tags()
        return {**found, "capability": str(self.facts.get("capability", ""))}

    def _read_tags(self) -> dict[str, str]:
        """The same from the tags of the tracking, where runs of earlier versions left it."""
        try:
            with (self.directory / "journal.jsonl").open(encoding="utf-8") as lines:
                tags = json.loads(next(lines))["tags"]
        except (OSError, ValueError, LookupError, TypeError, StopIteration):
            return {}
        named = {"commit": "git", "rayfl": "rayfl", "python": "python", "numpy": "numpy"}
        named |= {"torch": "torch", "machine": "machine", "host": "host"}
        return {name: str(tags[tag]) for name, tag in named.items() if tag in tags}

    def total(self, metric: str) -> float:
        """The sum of a metric over all rounds; nan where it was not measured."""
        values = self.series(metric)[1]
        return math.fsum(values) if values else math.nan

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric, of a clock reading or of a derived measure, where it has
        one."""
        measured = [
            ({**entry["metrics"], **entry["clock"]}, int(entry["round"])) for entry in self.history
        ]
        if metric in DERIVED:
            values = [(t, DERIVED[metric](entry, self)) for entry, t in measured]
        else:
            values = [(t, float(entry[metric])) for entry, t in measured if metric in entry]
        points = [(t, value) for t, value in values if not math.isnan(value)]
        return [t for t, _ in points], [value for _, value in points]

    def score(
        self, metric: str, over: str = "last", window: int = LAST, lower_is_better: bool = False
    ) -> float:
        """One number for a run: the `final` value, the `best`, the `mean`, or the mean of the
        `last` few rounds."""
        values = self.series(metric)[1]
        if not values:
            return float("nan")
        best = min(values) if lower_is_better else max(values)
        chosen = {"final": values[-1:], "best": [best], "mean": values, "last": values[-window:]}[
            over
        ]
        return float(np.mean(chosen))


# -- measures that are derived from others ---------------------------------------------------------

Derived = Callable[[Mapping[str, float], Record], float]


def divide_or_nan(value: float, *units: float) -> float:
    """A value in some unit; nan where the unit is unknown or zero."""
    unit = math.prod(units)
    return value / unit if unit else math.nan


def count_models(*ways: str) -> Derived:
    """Models (of four bytes a parameter) that a participant was sent, or sent, in a round."""

    def models(entry: Mapping[str, float], record: Record) -> float:
        megabytes = sum(entry.get(f"cost/{way}_mb", math.nan) for way in ways)
        units = (4 * record.facts.get("parameters", 0), entry.get("clients/participants", 0))
        return divide_or_nan(megabytes * 1e6, *units)

    return models


def count_passes(*directions: str) -> Derived:
    """Passes over its data that a participant made in a round."""

    def made(entry: Mapping[str, float], record: Record) -> float:
        samples = sum(entry.get(f"cost/{direction}", math.nan) for direction in directions)
        return divide_or_nan(
            samples,
            record.facts.get("mean_client_samples", 0),
            entry.get("clients/participants", 0),
        )

    return made


def seconds_a_pass(entry: Mapping[str, float], record: Record) -> float:
    """Seconds of training for one epoch over as many images as all clients hold together; of one
    actor, if the run has one."""
    held = record.facts.get("mean_client_samples", 0) * record.config["clients"]
    return divide_or_nan(entry.get("time/train_s", math.nan) * held, entry.get("cost/backward", 0))


DERIVED: Mapping[str, Derived] = {
    "cost/down_models": count_models("down"),
    "cost/up_models": count_models("up"),
    "cost/models": count_models("down", "up"),
    "cost/forward_passes": count_passes("forward"),
    "cost/backward_passes": count_passes("backward"),
    "cost/passes": count_passes("forward", "backward"),
    "time/epoch_s": seconds_a_pass,
}
"""Measures in the units of papers, by name, from one round's metrics and clock readings and the
run's facts."""


# -- finding runs ----------------------------------------------------------------------------------


def list_records(output: Path) -> Iterator[Record]:
    """The finished runs below an output folder, oldest first."""
    for path in sorted(output.glob("runs/*/result.json")):
        found = read_record(path.parent)
        if found is not None:
            yield found


def read_record(directory: Path) -> Record | None:
    """One run, if it is over, and what it left can be read."""
    try:
        facts = json.loads((directory / "run.json").read_text(encoding="utf-8"))
        result = json.loads((directory / "result.json").read_text(encoding="utf-8"))
        return Record(
            directory=directory,
            digest=str(facts["digest"]),
            scenario=str(facts["scenario"]),
            rounds=int(result["rounds"]),
            sha256=str(result["sha256"]),
            history=list(result["history"]),
            facts=dict(result.get("facts", {})),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def find_record(output: Path, config: Config, scenario: str | None = None) -> Record | None:
    """The newest finished run with this configuration, as many rounds and, if given, this
    scenario."""
    return Shelf(output).find(config, scenario)


class Shelf:
    """The finished runs below an output folder, by what they are: each is read once."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.runs: dict[tuple[str, int], list[Record]] = {}
        for record in list_records(output):
            self.add(record)

    def add(self, record: Record) -> None:
        """One more, newer than all before."""
        self.runs.setdefault((record.digest, record.rounds), []).append(record)

    def find(self, config: Config, scenario: str | None = None) -> Record | None:
        """The newest with this configuration, as many rounds and, if given, this scenario."""
        same = self.runs.get((config.digest, config.training.rounds), [])
        return next(
            (record for record in reversed(same) if scenario in (None, record.scenario)), None
        )

    def __iter__(self) -> Iterator[Record]:
        return (record for found in self.runs.values() for record in found)
