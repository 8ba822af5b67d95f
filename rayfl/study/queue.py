"""A queue of studies: what is to be recorded, in an order that is written down beforehand.

    output: outputs/results
    overrides: [fleet=inline]
    queue:
      - study: configs/paper/fedds_table4.yaml
        only: ["dataset=mnist", "partition=iid,alpha0.5,alpha10"]
        seeds: [0, 1]
        scale: 1
        why: the headline of FedDS

Entries are worked through from the first to the last, within one all cells of its first seed come
before those of the next. What the ledger has is skipped, what a store has left unfinished goes on,
and cells that cannot run yet, for their method is not built or their data is not here, wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from rayfl.config.explain import explain_errors
from rayfl.config.files import parse_file
from rayfl.config.schema import Section, Seed
from rayfl.config.shipped import refuse_other_kind
from rayfl.errors import ConfigError, RayflError
from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row
from rayfl.run.progress import format_duration
from rayfl.study.cells import Cell
from rayfl.study.order import StudyOrder
from rayfl.study.plan import find_row, make_plan
from rayfl.study.recording import Recorder
from rayfl.study.runner import ProgressOf, RunOutcomes, Say, run_plan


class QueueEntry(Section):
    """Some cells of a study, at a scale, with some seeds."""

    study: str
    """The file, from the top of the checkout."""
    only: list[str] = Field(default_factory=list)
    """As `--only`: `axis=choice,choice`."""
    seeds: list[Seed] = Field(default_factory=lambda: [0, 1, 2], min_length=1)
    scale: float = Field(default=1.0, gt=0, le=1)
    overrides: list[str] = Field(default_factory=list)
    why: str = ""
    """What its cells are to tell."""


class Queue(Section):
    """The whole file."""

    output: str = "outputs/results"
    """Where the runs go, from the top of the checkout."""
    overrides: list[str] = Field(default_factory=list)
    """Those of every entry."""
    queue: list[QueueEntry] = Field(min_length=1)


def load_queue(path: Path) -> Queue:
    """The queue of a file."""
    settings = parse_file(path)
    refuse_other_kind(settings, path, "queue")
    try:
        return Queue(**settings)
    except ValidationError as error:
        raise ConfigError(explain_errors(error, Queue, settings, str(path))) from None


def list_orders(
    queue: Queue, entry: QueueEntry, root: Path, output: Path | None
) -> list[StudyOrder]:
    """What an entry asks for, a seed at a time."""
    whole = StudyOrder(
        root / entry.study,
        only=tuple(entry.only),
        seeds=tuple(entry.seeds),
        scale=entry.scale,
        output=output or root / queue.output,
        overrides=(*queue.overrides, *entry.overrides),
        root=root,
    )
    return [replace(whole, seeds=(seed,)) for seed in entry.seeds]


# -- working through it ----------------------------------------------------------------------------


def work_through(
    queue: Queue,
    ledger: Ledger,
    say: Say,
    progress: ProgressOf,
    output: Path | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Run and record all that is left; the number of runs that failed.

    Parameters
    ----------
    output
        Where the runs go, in place of the queue's folder.
    is_over
        Asked before every run, whether to stop here."""
    failed = 0
    for entry in queue.queue:
        for order in list_orders(queue, entry, ledger.root, output):
            if is_over():
                return failed
            failed += len(_work_on(order, ledger, say, progress, is_over).failed)
    return failed


def _work_on(
    order: StudyOrder,
    ledger: Ledger,
    say: Say,
    progress: ProgressOf,
    is_over: Callable[[], bool],
) -> RunOutcomes:
    """One seed of one entry."""
    # To plan takes seconds, to look into the ledger a moment; others record into it, too.
    ledger.read()
    if not _find_left(order, ledger).runs:
        return RunOutcomes()
    say(order.study.title)
    plan = make_plan(order, ledger=ledger)
    for cell in plan.order.cells:
        if cell.key in plan.problems:
            say(f"waits: {cell.label}: {plan.problems[cell.key]}")
    recorder = Recorder(order, ledger)
    recorder.record_plan(plan)
    return run_plan(plan, say, progress, tell=recorder.record_run, is_over=is_over)


# -- what is left ----------------------------------------------------------------------------------


class LeftRun(NamedTuple):
    """A run that is to be made."""

    identity: tuple[str, int]
    """The hash of its configuration and its rounds: entries may share it."""
    seconds: float
    """What runs like it took; nan where none was recorded."""


@dataclass
class EntryState:
    """How far an entry is."""

    entry: QueueEntry
    recorded: int = 0
    waiting: int = 0
    """Runs that cannot be made yet."""
    runs: list[LeftRun] = field(default_factory=list)
    """Those that are left."""
    reasons: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        scaled = f", scale {self.entry.scale:g}" if self.entry.scale != 1 else ""
        name = " ".join([Path(self.entry.study).stem, *self.entry.only])
        said = [f"{self.recorded} recorded", f"{len(self.runs)} left"]
        if self.runs:
            said.append(self.describe_time())
        if self.waiting:
            said.append(f"{self.waiting} wait ({'; '.join(dict.fromkeys(self.reasons))})")
        seeds = ",".join(map(str, self.entry.seeds))
        return f"{name}, seeds {seeds}{scaled}: {', '.join(said)}"

    def describe_time(self) -> str:
        """`about 3h02m and 4 runs of unknown length`."""
        known_seconds = [run.seconds for run in self.runs if not math.isnan(run.seconds)]
        known = f"about {format_duration(sum(known_seconds))}" if known_seconds else ""
        count = len(self.runs) - len(known_seconds)
        unknown = f"{count} run{'s' * (count != 1)} of unknown length" if count else ""
        return " and ".join(filter(None, (known, unknown)))


def describe_queue(queue: Queue, ledger: Ledger) -> Iterator[str]:
    """What is left of each entry, and how long it takes by what is recorded."""
    states = [_find_state(queue, entry, ledger) for entry in queue.queue]
    yield from map(str, states)
    distinct = {run.identity: run for state in states for run in state.runs}
    whole = EntryState(
        queue.queue[0],
        recorded=len(list(ledger)),
        waiting=sum(state.waiting for state in states),
        runs=list(distinct.values()),
    )
    left = f"{len(whole.runs)} left, {whole.describe_time()}" if whole.runs else "nothing left"
    yield f"in all {whole.recorded} rows, {left}, {whole.waiting} wait"


def _find_state(queue: Queue, entry: QueueEntry, ledger: Ledger) -> EntryState:
    state = EntryState(entry)
    for order in list_orders(queue, entry, ledger.root, None):
        found = _find_left(order, ledger)
        state.recorded += found.recorded
        state.waiting += found.waiting
        state.reasons += found.reasons
        state.runs += found.runs
    return state


@dataclass
class FoundLeft:
    """What is left of one seed of an entry, without a look at the data."""

    recorded: int = 0
    waiting: int = 0
    runs: list[LeftRun] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def _find_left(order: StudyOrder, ledger: Ledger) -> FoundLeft:
    found = FoundLeft()
    for cell in order.cells:
        if cell.missing and not cell.computed:
            found.waiting += len(order.wanted_seeds)
            found.reasons.append(" ".join(cell.missing.split()))
    for cell, _, made in order.configurations():
        if isinstance(made, RayflError):
            found.waiting += 1
            found.reasons.append(str(made).splitlines()[0])
        elif find_row(ledger, cell, made.config, order.scale) is not None:
            found.recorded += 1
        else:
            identity = (made.config.digest, made.config.training.rounds)
            found.runs.append(LeftRun(identity, _estimate_seconds(order, cell, ledger)))
    return found


def _estimate_seconds(order: StudyOrder, cell: Cell, ledger: Ledger) -> float:
    """Median seconds of recorded runs like it: of its cell, or else of its study at this scale; nan
    where there are none."""
    rows = [row for row in ledger.of_study(order.name) if row.scale == order.scale]
    same = [row for row in rows if dict(row.axes) == dict(cell.choices)]
    return _find_usual_seconds(same or rows)


def _find_usual_seconds(rows: Sequence[Row]) -> float:
    """The median: a run that was held up for a while says nothing of the others."""
    known = [row.seconds for row in rows if not math.isnan(row.seconds)]
    return float(np.median(known)) if known else math.nan
