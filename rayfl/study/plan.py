"""What a study will do: which runs, which of them are done, which cannot be, and how long the rest
will take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rayfl.config.schema import Config
from rayfl.errors import RayflError
from rayfl.run.progress import duration
from rayfl.run.store import Record, Shelf
from rayfl.study.cells import Cell
from rayfl.study.checks import ConfigTrials
from rayfl.study.durations import DurationEstimate, DurationEstimator
from rayfl.study.order import StudyOrder
from rayfl.study.scaling import ScaledConfig

HOUR = 3600.0

DONE = DurationEstimate(0.0)


@dataclass(frozen=True)
class PlannedRun:
    """One run of one cell."""

    cell: Cell
    seed: int
    config: Config
    note: str = ""
    done: Record | None = None
    """The finished run that the store holds, where it holds one."""
    estimate: DurationEstimate = DONE

    @property
    def title(self) -> str:
        return f"{self.cell.label}, seed {self.seed}"


@dataclass(frozen=True)
class StudyPlan:
    """All runs of an order, and the cells that have none."""

    order: StudyOrder
    runs: tuple[PlannedRun, ...]
    problems: Mapping[tuple[str, ...], str]
    """Why a cell cannot run here, by the names of its choices; what is not built is not among
    them."""

    @property
    def todo(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.done is None]

    @property
    def seconds(self) -> float:
        return sum(run.estimate.seconds for run in self.todo)

    def lines(self) -> Iterator[str]:
        """The plan for people."""
        order, todo = self.order, self.todo
        yield order.study.title + (f", scaled by {order.scale:g}" if order.scale != 1 else "")
        kinds = {
            "to run": [cell.runs for cell in order.cells],
            "not built": [bool(c.missing) for c in order.cells],
        }
        kinds["computed from others"] = [cell.computed is not None for cell in order.cells]
        counts = [f"{sum(marks)} {kind}" for kind, marks in kinds.items() if any(marks)]
        seeds = ", ".join(map(str, order.wanted_seeds))
        yield f"{len(order.cells)} cells ({', '.join(counts)}), seeds {seeds}"
        yield from self.left_out()
        yield f"{len(self.runs) - len(todo)} runs are done, {len(todo)} are to do"
        yield from (f"  {run.title}: {describe_duration(run.estimate)}" for run in todo[:SHOWN])
        if len(todo) > SHOWN:
            yield f"  ... and {len(todo) - SHOWN} more"
        if todo:
            least = any(run.estimate.at_least for run in todo)
            yield f"in all {describe_duration(DurationEstimate(self.seconds, least))}, one after the other, as measured on this machine"

    def left_out(self) -> Iterator[str]:
        """The cells that will have no numbers, by reason."""
        reasons: dict[str, list[str]] = {}
        for cell in self.order.cells:
            why = cell.missing or self.problems.get(cell.key, "")
            if why and cell.computed is None:
                reasons.setdefault(" ".join(why.split()), []).append(cell.label)
        for why, labels in reasons.items():
            yield f"left out ({len(labels)}): {why}"
            more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
            yield f"    {'; '.join(labels[:NAMED])}{more}"


SHOWN, NAMED = 12, 3


def describe_duration(estimate: DurationEstimate) -> str:
    return f"{'at least' if estimate.at_least else 'about'} {duration(estimate.seconds)}"


def make_plan(order: StudyOrder, shelf: Shelf | None = None) -> StudyPlan:
    """Try every distinct configuration, look into the store, and estimate what is left."""
    shelf, checks = shelf or Shelf(order.folder), ConfigTrials()
    estimator = DurationEstimator(shelf)
    runs: dict[tuple[str, ...], list[PlannedRun]] = {}
    problems: dict[tuple[str, ...], str] = {}
    for cell, seed, made in _sort_by_dataset(order):
        if isinstance(made, RayflError):
            problems.setdefault(cell.key, str(made))
            continue
        facts = checks.of(made.config)
        if facts.problem:
            problems.setdefault(cell.key, facts.problem)
            continue
        done = _find_stored(shelf, checks, made.config)
        estimate = estimator.of(made.config, facts) if done is None else DONE
        runs.setdefault(cell.key, []).append(
            PlannedRun(cell, seed, made.config, made.note, done, estimate)
        )
    checks.close()
    ordered = tuple(run for cell in order.cells for run in runs.get(cell.key, []))
    return StudyPlan(order, ordered, problems)


def _sort_by_dataset(order: StudyOrder) -> list[tuple[Cell, int, ScaledConfig | RayflError]]:
    """The configurations with those of one dataset and one federation side by side, so that each is
    read once."""

    def place(item: tuple[Cell, int, ScaledConfig | RayflError]) -> tuple[str, str]:
        made = item[2]
        # What cannot be configured has no dataset; it is told wherever it stands.
        if isinstance(made, RayflError):
            return "", ""
        return json.dumps(made.config.resolved()["data"]), json.dumps(
            [made.config.recorded(), made.config.seed]
        )

    return sorted(order.configurations(), key=place)


def _find_stored(shelf: Shelf, checks: ConfigTrials, config: Config) -> Record | None:
    """The finished run with this configuration and scenario. The scenario is drawn only if there is
    one to compare."""
    if shelf.find(config) is None:
        return None
    return shelf.find(config, checks.scenario_hash(config))
