"""What a study will do: which runs, which of them are done, which cannot be, and how long the rest
will take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rayfl.bits import hold_bits
from rayfl.config.schema import Config
from rayfl.errors import RayflError
from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row
from rayfl.run.progress import format_duration
from rayfl.run.store import Record, Shelf
from rayfl.study.cells import Cell
from rayfl.study.checks import ConfigTrials, TrialFacts
from rayfl.study.durations import DurationEstimate, DurationEstimator
from rayfl.study.order import StudyOrder
from rayfl.study.scaling import ScaledConfig
from rayfl.study.schema import ChoiceKey
from rayfl.study.scores import name_score, scale_window

HOUR = 3600.0
DONE = DurationEstimate(0.0)
MOST_SHOWN = 12
"""Runs that a plan names."""
MOST_NAMED = 3
"""Cells that are named with a reason."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of one cell."""

    cell: Cell
    seed: int
    config: Config
    note: str = ""
    done: Record | None = None
    """The finished run that the store holds, where it holds one."""
    recorded: Row | None = None
    """Its row in the ledger, where the store does not hold it."""
    estimate: DurationEstimate = DONE

    @property
    def is_over(self) -> bool:
        """Whether it need not be made."""
        return self.done is not None or self.recorded is not None

    @property
    def title(self) -> str:
        """What a reader calls it."""
        return f"{self.cell.label}, seed {self.seed}"


@dataclass(frozen=True)
class StudyPlan:
    """All runs of an order, and the cells that have none."""

    order: StudyOrder
    runs: tuple[PlannedRun, ...]
    problems: Mapping[ChoiceKey, str]
    """Why a cell cannot run here, by the names of its choices; what is not built is not among
    them."""

    @property
    def todo(self) -> list[PlannedRun]:
        """The runs that are not over."""
        return [run for run in self.runs if not run.is_over]

    @property
    def seconds(self) -> float:
        """How long they take, one after the other."""
        return sum(run.estimate.seconds for run in self.todo)

    def lines(self) -> Iterator[str]:
        """The plan for people."""
        order = self.order
        scaled = f", scaled by {order.scale:g}" if order.scale != 1 else ""
        yield f"{order.study.title}{scaled}"
        seeds = ", ".join(map(str, order.wanted_seeds))
        yield f"{len(order.cells)} cells ({self._count_cells()}), seeds {seeds}"
        yield from self._list_left_out()
        yield from self._list_todo()

    def _count_cells(self) -> str:
        """How many cells there are of each kind that there is."""
        cells = self.order.cells
        counts = {
            "to run": sum(cell.runs for cell in cells),
            "not built": sum(bool(cell.missing) for cell in cells),
            "computed from others": sum(cell.computed is not None for cell in cells),
        }
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)

    def _list_left_out(self) -> Iterator[str]:
        """The cells that will have no numbers, by reason."""
        reasons: dict[str, list[str]] = {}
        for cell in self.order.cells:
            why = cell.missing or self.problems.get(cell.key, "")
            if why and cell.computed is None:
                reasons.setdefault(" ".join(why.split()), []).append(cell.label)
        for why, labels in reasons.items():
            yield f"left out ({len(labels)}): {why}"
            named = "; ".join(labels[:MOST_NAMED])
            further = len(labels) - MOST_NAMED
            yield f"    {named} and {further} more" if further > 0 else f"    {named}"

    def _list_todo(self) -> Iterator[str]:
        """What is done, what is not, and how long that takes."""
        todo = self.todo
        recorded = sum(run.recorded is not None for run in self.runs)
        said = f" ({recorded} of them recorded in the ledger)" if recorded else ""
        yield f"{len(self.runs) - len(todo)} runs are done{said}, {len(todo)} are to do"
        for run in todo[:MOST_SHOWN]:
            yield f"  {run.title}: {describe_duration(run.estimate)}"
        if len(todo) > MOST_SHOWN:
            yield f"  ... and {len(todo) - MOST_SHOWN} more"
        if todo:
            at_least = any(run.estimate.at_least for run in todo)
            whole = describe_duration(DurationEstimate(self.seconds, at_least))
            yield f"in all {whole}, one after the other, as measured on this machine"


def describe_duration(estimate: DurationEstimate) -> str:
    """`about 5m` or `at least 5m`."""
    return f"{'at least' if estimate.at_least else 'about'} {format_duration(estimate.seconds)}"


# -- planning --------------------------------------------------------------------------------------


def make_plan(
    order: StudyOrder, shelf: Shelf | None = None, ledger: Ledger | None = None
) -> StudyPlan:
    """Try every distinct configuration, look into the store and the ledger, and estimate what is
    left.

    Parameters
    ----------
    shelf
        The runs that are over; by default those of the order's folder.
    ledger
        Rows of runs that need not be repeated; by default none."""
    shelf = shelf or Shelf(order.folder)
    trials = ConfigTrials()
    estimator = DurationEstimator(shelf)
    runs: dict[ChoiceKey, list[PlannedRun]] = {}
    problems: dict[ChoiceKey, str] = {}
    sorted_runs = _sort_by_dataset(order)
    hold_bits(made.config.bits for *_, made in sorted_runs if not isinstance(made, RayflError))
    for cell, seed, made in sorted_runs:
        if isinstance(made, RayflError):
            problems.setdefault(cell.key, str(made))
            continue
        row = None if ledger is None else find_row(ledger, cell, made.config, order.scale)
        facts = trials.of(made.config)
        # What is recorded is known without its data, which may not be here.
        if facts.problem and row is None:
            problems.setdefault(cell.key, facts.problem)
            continue
        done = None if facts.problem else find_stored(shelf, trials, made.config)
        if done is not None or not _is_row_of(row, trials, made.config, facts):
            row = None
        over = done is not None or row is not None
        estimate = DONE if over else estimator.of(made.config, facts)
        run = PlannedRun(cell, seed, made.config, made.note, done, row, estimate)
        runs.setdefault(cell.key, []).append(run)
    trials.close()
    ordered = tuple(run for cell in order.cells for run in runs.get(cell.key, []))
    return StudyPlan(order, ordered, problems)


def find_row(ledger: Ledger, cell: Cell, config: Config, scale: float) -> Row | None:
    """The row of a run, recorded with all that the cell's study asks of it."""
    scores = [scale_window(score, scale) for score in cell.scores.values()]
    return ledger.find(config.digest, config.training.rounds, map(name_score, scores))


def _is_row_of(row: Row | None, trials: ConfigTrials, config: Config, facts: TrialFacts) -> bool:
    """Whether a row's run had the scenario that this one would have; without its data nobody can
    tell, and the row is believed."""
    if row is None:
        return False
    return bool(facts.problem) or trials.scenario_hash(config) == row.scenario


def _sort_by_dataset(order: StudyOrder) -> list[tuple[Cell, int, ScaledConfig | RayflError]]:
    """The configurations with those of one dataset and one federation side by side, so that each is
    read once."""

    def find_place(item: tuple[Cell, int, ScaledConfig | RayflError]) -> tuple[str, str]:
        made = item[2]
        # What cannot be configured has no dataset; it is told wherever it stands.
        if isinstance(made, RayflError):
            return "", ""
        config = made.config
        dataset = json.dumps(config.resolved()["data"])
        return dataset, json.dumps([config.recorded(), config.seed])

    return sorted(order.configurations(), key=find_place)


def find_stored(shelf: Shelf, trials: ConfigTrials, config: Config) -> Record | None:
    """The finished run with this configuration and scenario. The scenario is drawn only if there is
    one to compare."""
    if shelf.find(config) is None:
        return None
    return shelf.find(config, trials.scenario_hash(config))
