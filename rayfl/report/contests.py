"""Recorded runs by what they compete in: methods on one scenario, with the same data, network and
training."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rayfl.arrays import Floats
from rayfl.config.schema import PLACE, Config
from rayfl.errors import RayflError
from rayfl.ledger.rows import Row
from rayfl.report.inference import Interval, mean_interval, measure_stability, rank_methods
from rayfl.report.material import join_titles
from rayfl.report.slots import find_compared_axis
from rayfl.study.recorded import RecordedStudy
from rayfl.study.result import CellResult
from rayfl.study.schema import Score
from rayfl.study.scores import name_score, scale_window, score_row

LEAST_SEEDS = 2
BASELINE = {"name": "fedavg"}
"""The method that others are to beat, in its plain settings."""
WHY = "cause"
"""A study along this axis asks why a figure is what it is: its variants are nobody's rivals."""


@dataclass
class Contender:
    """A method in a scenario."""

    title: str
    settings: Mapping[str, Any]
    """The method's own, as plain values."""
    is_reference: bool = False
    """Whether it knows which labels are right: it is shown, and wins nothing."""
    rows: dict[int, Row] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)
    """The score by seed, as shown."""

    @property
    def mean(self) -> float:
        """Over its seeds."""
        return float(np.mean(list(self.values.values())))

    @property
    def interval(self) -> Interval:
        """Student's, of the mean."""
        return mean_interval(list(self.values.values()))

    @property
    def identity(self) -> str:
        """What tells a method from others, in every scenario."""
        return json.dumps(self.settings, sort_keys=True)

    def find_usual(self, cost: str) -> float:
        """The median of a cost over its runs: one that was held up says nothing of the others."""
        return float(np.median([getattr(row, cost) for row in self.rows.values()]))


@dataclass
class Contest:
    """Methods on one scenario, by one score."""

    title: str
    facts: str
    grade: str
    score: Score
    contenders: dict[str, Contender] = field(default_factory=dict)

    @cached_property
    def ranked(self) -> list[Contender]:
        """The best first."""
        sign = 1 if self.score.lower_is_better else -1
        return sorted(self.contenders.values(), key=lambda each: sign * each.mean)

    @cached_property
    def rivals(self) -> list[Contender]:
        """Those that can win."""
        return [each for each in self.ranked if not each.is_reference]

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that all rivals have."""
        sets = [set(each.values) for each in self.rivals]
        return sorted(set.intersection(*sets)) if sets else []

    @property
    def is_open(self) -> bool:
        """Whether there is anything to rank: more than one pair, and more than one draw."""
        return len(self.rivals) > 2 and len(self.seeds) >= LEAST_SEEDS

    @cached_property
    def baseline(self) -> Contender | None:
        """Plain averaging, where it was run."""
        named = [each for each in self.rivals if each.settings["name"] == BASELINE["name"]]
        plain = [each for each in named if _is_plain(each.settings)]
        return plain[0] if len(plain) == 1 else None

    def table(self) -> Floats:
        """Rivals by common seeds."""
        return np.array([[each.values[seed] for seed in self.seeds] for each in self.rivals])

    def ranks(self) -> tuple[Floats, Floats]:
        """The rivals' ranks by the common seeds, and how stable they are: `measure_stability`."""
        values = self.table()
        lower = self.score.lower_is_better
        return rank_methods(values.mean(axis=1), lower), measure_stability(values, lower)

    def differences(self, first: Contender, second: Contender) -> list[float]:
        """What one has over the other, seed by seed; more is better."""
        sign = -1 if self.score.lower_is_better else 1
        common = sorted(set(first.values) & set(second.values))
        return [sign * (first.values[seed] - second.values[seed]) for seed in common]


def _is_plain(settings: Mapping[str, Any]) -> bool:
    """Averaging by size with cross-entropy, and nothing else."""
    parts = {"weighting": "size", "loss": "ce", "aggregation": "mean"}
    return all(settings.get(slot, {}).get("name", name) == name for slot, name in parts.items())


class RecordedRun(NamedTuple):
    """A recorded run of a cell."""

    cell: CellResult
    seed: int
    config: Config
    score: Score


# -- from rows to contests -------------------------------------------------------------------------


def find_contests(recorded: Sequence[RecordedStudy]) -> list[Contest]:
    """The scenarios that more than one method was run on, in the order of the studies."""
    contests: dict[str, Contest] = {}
    for study in recorded:
        if WHY not in study.result.study.axes:
            _add_study(contests, study)
    return [contest for contest in contests.values() if len(contest.contenders) > 1]


def _add_study(contests: dict[str, Contest], recorded: RecordedStudy) -> None:
    scenarios: dict[str, list[RecordedRun]] = {}
    for entry in _iterate_runs(recorded):
        key = _describe_scenario(entry, recorded)
        scenarios.setdefault(key, []).append(entry)
    for key, entries in scenarios.items():
        cells = [entry.cell for entry in entries]
        first = entries[0]
        title = _name_scenario(recorded, first.cell, cells)
        fresh = Contest(title, _tell_facts(first.config), recorded.grade, first.score)
        contest = contests.setdefault(key, fresh)
        for entry in entries:
            _add_run(contest, entry, _name_method(recorded, entry.cell, cells))


def _add_run(contest: Contest, entry: RecordedRun, title: str) -> None:
    row = entry.cell.rows[entry.seed]
    value = score_row(row, entry.score)
    if math.isnan(value):
        return
    config = entry.config
    found = Contender(title, config.resolved()["method"], config.method.labels != "given")
    contender = contest.contenders.setdefault(found.identity, found)
    contender.rows[entry.seed] = row
    contender.values[entry.seed] = value


def _iterate_runs(recorded: RecordedStudy) -> Iterator[RecordedRun]:
    """Every recorded run with its configuration, and its cell's first score."""
    for cell, seed, made in recorded.order.configurations():
        found = recorded.result.at(**cell.choices)
        if found is not None and seed in found.rows and not isinstance(made, RayflError):
            score = next(iter(cell.scores.values()))
            yield RecordedRun(found, seed, made.config, scale_window(score, recorded.order.scale))


def _describe_scenario(entry: RecordedRun, recorded: RecordedStudy) -> str:
    """A hash of all but the method and the seed: what a comparison must leave alone."""
    settings = entry.config.model_dump(mode="json", exclude={*PLACE, "method", "seed"})
    alike = [settings, recorded.grade, name_score(entry.score)]
    return hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).hexdigest()


def _find_varied(cells: Sequence[CellResult]) -> list[str]:
    """The axes that tell the methods of one scenario apart."""
    axes = cells[0].choices
    return [axis for axis in axes if len({cell.choices[axis] for cell in cells}) > 1]


def _name_method(recorded: RecordedStudy, cell: CellResult, rivals: Sequence[CellResult]) -> str:
    compared = find_compared_axis(recorded.result)
    varied = _find_varied(rivals)
    axes = [compared, *(axis for axis in varied if axis != compared)]
    return join_titles(*(cell.titles[axis] for axis in axes))


def _name_scenario(recorded: RecordedStudy, cell: CellResult, rivals: Sequence[CellResult]) -> str:
    study = recorded.result.study
    varied = {find_compared_axis(recorded.result), *_find_varied(rivals)}
    others = [axis for axis in cell.titles if axis not in varied and len(study.axes[axis]) > 1]
    name = study.title.partition(":")[0]
    place = join_titles(*(cell.titles[axis] for axis in others))
    return f"{name}: {place}" if place else name


def _tell_facts(config: Config) -> str:
    """What the scenario is, in a line."""
    resolved = config.resolved()
    network = resolved["model"]["name"]
    training = config.training
    noise = resolved["noise"]
    kind = "wrong labels among the client's own classes"
    targets = f" ({kind})" if noise.get("targets") == "present" else ""
    return (
        f"{resolved['data']['name']}, {resolved['partition']['name']} over {config.clients} "
        f"clients, noise {noise['name']}{targets}, {network}, {training.rounds} rounds of "
        f"{training.cohort(config.clients)} clients"
    )
