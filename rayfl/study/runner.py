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
from pathlib import Path

from rayfl.config.schema import Config, parsed
from rayfl.errors import RayflError
from rayfl.run.experiment import (
    Interrupted,
    newest_unfinished,
    run as run_experiment,
    stoppable,
    tracking_uri,
)
from rayfl.run.progress import Progress, Silent
from rayfl.study.plan import PlannedRun, StudyPlan
from rayfl.tracking.tracker import Tracker

log = logging.getLogger("rayfl")

PATIENCE = 15.0
"""Seconds to wait for the study's own run in MLflow; without it the runs stand on their own."""

Say = Callable[[str], None]
ProgressOf = Callable[[Config], Progress]


@dataclass
class Ran:
    """How the runs went."""

    finished: list[PlannedRun] = field(default_factory=list)
    failed: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The first failure of a cell, by the names of its choices."""


def silent(_: Config) -> Progress:
    return Silent()


def run_plan(
    plan: StudyPlan, say: Say, progress: ProgressOf = silent, address: str | None = None
) -> Ran:
    """Run all that is to do. Interrupted, the run that is on writes its checkpoint; `Interrupted`
    is raised."""
    ran, todo = Ran(), plan.todo
    plan.order.remember()
    if not todo:
        return ran
    # Between two runs a signal finds these handlers; within one, the run's own.
    with stoppable(), shared_ray([run.config for run in todo], address):
        parent = Parent(plan)
        status = "FAILED"
        try:
            for number, run in enumerate(todo, start=1):
                say(f"[{number}/{len(todo)}] {run.title}")
                one(run, parent, ran, say, progress, address)
            status = "FAILED" if ran.failed else "FINISHED"
        except (Interrupted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            parent.close(status)
    return ran


def one(
    run: PlannedRun, parent: Parent, ran: Ran, say: Say, progress: ProgressOf, address: str | None
) -> None:
    """One run, whose failure is its own."""
    config = parent.adopted(run.config)
    try:
        run_experiment(
            config, resume=unfinished(config), address=address, progress=progress(config)
        )
        ran.finished.append(run)
    except RayflError as error:
        ran.failed.setdefault(run.cell.key, f"failed: {error}")
        say(f"failed: {run.title}: {error}")
    except Exception as error:
        ran.failed.setdefault(run.cell.key, f"failed: {type(error).__name__}: {error}")
        say(f"failed: {run.title}:\n{traceback.format_exc().rstrip()}")


def unfinished(config: Config) -> Path | None:
    """The run to take up again: of this configuration and, unlike with `--resume auto`, of as many
    rounds."""
    found = newest_unfinished(config.output / "runs", config)
    try:
        rounds = None if found is None else parsed(found / "config.yaml")["training"]["rounds"]
    except (RayflError, KeyError, TypeError):  # cut short by a crash: the run begins anew
        return None
    return found if rounds == config.training.rounds else None


def shared_ray(configs: list[Config], address: str | None) -> AbstractContextManager[None]:
    """One Ray for all runs, if any of them needs one."""
    if all(config.fleet == "inline" for config in configs):
        return nullcontext()
    from rayfl.fleet.on_ray.connection import connected

    return connected(address)


class Parent:
    """The study's own run in MLflow, under which its runs are listed. The same study continues the
    same one."""

    def __init__(self, plan: StudyPlan) -> None:
        config, order = plan.todo[0].config, plan.order
        self.tracker: Tracker | None = None
        if not config.tracking.enabled:
            return
        self.tracker = Tracker(order.notes, tracking_uri(config), enabled=True)
        tags = {"study": order.name, "kind": "study", "mlflow.note.content": order.study.notes}
        params = {"command": order.command(), "seeds": order.wanted_seeds, "scale": order.scale}
        self.tracker.start(config.tracking.experiment, order.study.title, tags, params)
        # The first contact makes the store's tables, which the first run would wait for anyway.
        waited = time.monotonic() + PATIENCE
        while self.tracker.run_id is None and time.monotonic() < waited:
            time.sleep(0.05)

    def adopted(self, config: Config) -> Config:
        """The configuration of a run that is listed under this one."""
        if self.tracker is None or self.tracker.run_id is None:
            return config
        tags = {**config.tracking.tags, "mlflow.parentRunId": self.tracker.run_id}
        tracking = config.tracking.model_copy(update={"tags": tags})
        return config.model_copy(update={"tracking": tracking})

    def close(self, status: str) -> None:
        if self.tracker is not None:
            self.tracker.finish(status, patience=0.5 if status == "KILLED" else 30.0)


def exit_code(stopped: BaseException) -> int:
    """What a shell expects of a command that was told to stop."""
    return 128 + (stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT)
