"""Running what is missing, one run after the other on one Ray; what fails is told, and the others
go on."""

from __future__ import annotations

import logging
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rayfl.bits import hold_bits
from rayfl.config.files import parse_file
from rayfl.config.schema import Config
from rayfl.errors import RayflError
from rayfl.locks import FileLock, LockHeldError, take_lock
from rayfl.run.experiment import (
    Interrupted,
    newest_unfinished,
    run as run_experiment,
    tracking_uri,
)
from rayfl.run.progress import Progress, Silent
from rayfl.run.signals import stop_on_signals
from rayfl.run.store import Record, Shelf
from rayfl.study.cell_locks import CellLocks
from rayfl.study.checks import ConfigTrials
from rayfl.study.plan import PlannedRun, StudyPlan, find_stored
from rayfl.tracking.journal import Journal
from rayfl.tracking.tracker import Tracker

log = logging.getLogger("rayfl")

PATIENCE = 15.0
"""Seconds to wait for the study's own run in MLflow; without it the runs stand on their own."""

WAIT_SECONDS = 1.0

Say = Callable[[str], None]
ProgressOf = Callable[[Config], Progress]
Finished = Callable[[PlannedRun, Path], object]
"""Told of every run that has ended well, with its directory."""


@dataclass
class RunOutcomes:
    """How the runs went."""

    finished: list[PlannedRun] = field(default_factory=list)
    failed: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The first failure of a cell, by the names of its choices."""
    tell: Finished | None = None

    def tell_finished(self, run: PlannedRun, directory: Path) -> None:
        """One more, made here or by another process."""
        if self.tell is not None:
            self.tell(run, directory)


def _make_silent(_: Config) -> Progress:
    return Silent()


def run_plan(
    plan: StudyPlan,
    say: Say,
    progress: ProgressOf = _make_silent,
    address: str | None = None,
    tell: Finished | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> RunOutcomes:
    """Run all that is to do. Interrupted, the run that is on writes its checkpoint; `Interrupted`
    is raised.

    Parameters
    ----------
    tell
        Told of every run that ends well.
    is_over
        Asked before every run, whether to begin no more."""
    ran, todo = RunOutcomes(tell=tell), plan.todo
    plan.order.remember()
    if not todo:
        return ran
    hold_bits(run.config.bits for run in todo)
    # Between two runs a signal finds these handlers; within one, the run's own.
    with stop_on_signals() as stop, _share_ray([run.config for run in todo], address):
        parent = StudyRun(plan, say)
        locks = CellLocks(plan.order.folder, partial(_find_run, ConfigTrials()))
        status = "FAILED"
        left: list[PlannedRun] = []
        try:
            for number, run in enumerate(todo, start=1):
                stop.heed()
                if is_over():
                    status = "KILLED"
                    return ran
                say(f"[{number}/{len(todo)}] {run.title}")
                try:
                    claim_and_run(run, locks, parent, ran, say, progress, address)
                except LockHeldError as held:
                    say(f"left to {held.holder or 'another process'}: {run.title}")
                    left.append(run)
            for run in left:
                say(f"waiting for the end of {run.title}")
                while not claimed_and_run(run, locks, parent, ran, say, progress, address):
                    time.sleep(WAIT_SECONDS)
            status = "FAILED" if ran.failed else "FINISHED"
        except (Interrupted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            parent.close(status)
    return ran


def claim_and_run(
    run: PlannedRun,
    locks: CellLocks,
    parent: StudyRun,
    ran: RunOutcomes,
    say: Say,
    progress: ProgressOf,
    address: str | None,
) -> None:
    """One run, unless another process is making it (LockHeldError) or has made it meanwhile."""
    with locks.take(run.config, f"the run {run.title}"):
        if locks.is_finished(run.config):
            say(f"made by another process meanwhile: {run.title}")
            found = locks.find(locks.shelf, run.config)
            assert found is not None, "it was found a moment ago"
            ran.tell_finished(run, found.directory)
        else:
            _run_one(run, parent, ran, say, progress, address)


def claimed_and_run(run: PlannedRun, locks: CellLocks, *rest: Any) -> bool:
    """Whether nobody else held it."""
    try:
        claim_and_run(run, locks, *rest)
    except LockHeldError:
        return False
    return True


def _find_run(checks: ConfigTrials, shelf: Shelf, config: Config) -> Record | None:
    return find_stored(shelf, checks, config)


def _run_one(
    run: PlannedRun,
    parent: StudyRun,
    ran: RunOutcomes,
    say: Say,
    progress: ProgressOf,
    address: str | None,
) -> None:
    """One run, whose failure is its own."""
    config = parent.adopted(run.config)
    try:
        result = run_experiment(
            config, resume=find_unfinished(config), address=address, progress=progress(config)
        )
    except LockHeldError:  # somebody has taken up the unfinished run by itself
        raise
    except RayflError as error:
        ran.failed.setdefault(run.cell.key, f"failed: {error}")
        say(f"failed: {run.title}: {error}")
    except Exception as error:
        ran.failed.setdefault(run.cell.key, f"failed: {type(error).__name__}: {error}")
        say(f"failed: {run.title}:\n{traceback.format_exc().rstrip()}")
    else:
        ran.finished.append(run)
        ran.tell_finished(run, result.directory)


def find_unfinished(config: Config) -> Path | None:
    """The run to take up again: of this configuration and, unlike with `--resume auto`, of as many
    rounds."""
    found = newest_unfinished(config.output / "runs", config)
    try:
        rounds = None if found is None else parse_file(found / "config.yaml")["training"]["rounds"]
    except (RayflError, KeyError, TypeError):  # cut short by a crash: the run begins anew
        return None
    return found if rounds == config.training.rounds else None


def _share_ray(configs: list[Config], address: str | None) -> AbstractContextManager[None]:
    """One Ray for all runs, if any of them needs one."""
    if all(config.fleet == "inline" for config in configs):
        return nullcontext()
    from rayfl.fleet.on_ray.connection import connect_ray

    return connect_ray(address)


class StudyRun:
    """The study's own run in MLflow, under which its runs are listed. The same study continues the
    same one; while another process does, this one only lists its runs there."""

    def __init__(self, plan: StudyPlan, say: Say) -> None:
        config, order = plan.todo[0].config, plan.order
        self.tracker: Tracker | None = None
        self.journal = Journal(order.notes)
        self.lock: FileLock | None = None
        try:
            self.lock = take_lock(order.notes / "lock", f"the study {order.name}")
        except LockHeldError as held:
            say(f"this study is being run by {held.holder or 'another process'} too")
        if not config.tracking.enabled:
            return
        if self.lock is not None:
            self.tracker = Tracker(order.notes, tracking_uri(config), enabled=True)
            tags = {"study": order.name, "kind": "study", "mlflow.note.content": order.study.notes}
            seeds = order.wanted_seeds
            params = {"command": order.command(), "seeds": seeds, "scale": order.scale}
            self.tracker.start(config.tracking.experiment, order.study.title, tags, params)
        # The first contact makes the store's tables, which the first run would wait for anyway.
        waited = time.monotonic() + PATIENCE
        while self.run_id is None and time.monotonic() < waited:
            time.sleep(0.05)

    @property
    def run_id(self) -> str | None:
        """The MLflow run, once there is one."""
        return self.journal.noted().get("run_id")

    def adopted(self, config: Config) -> Config:
        """The configuration of a run that is listed under this one."""
        run_id = self.run_id
        if run_id is None or not config.tracking.enabled:
            return config
        tags = {**config.tracking.tags, "mlflow.parentRunId": run_id}
        tracking = config.tracking.model_copy(update={"tags": tags})
        return config.model_copy(update={"tracking": tracking})

    def close(self, status: str) -> None:
        if self.tracker is not None:
            self.tracker.finish(status, patience=0.5 if status == "KILLED" else 30.0)
        if self.lock is not None:
            self.lock.release()


def choose_exit_code(stopped: BaseException) -> int:
    """What a shell expects of a command that was told to stop."""
    return 128 + (stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT)
