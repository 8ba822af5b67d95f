"""From a study's finished runs to rows of the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rayfl.config.schema import PLACE
from rayfl.ledger.ledger import Ledger, Written
from rayfl.ledger.rows import Row
from rayfl.run.environment import cpu_capability, describe_environment
from rayfl.run.store import Record, read_record
from rayfl.secrets import mask_secrets
from rayfl.study.order import StudyOrder, shorten_path
from rayfl.study.plan import PlannedRun, StudyPlan
from rayfl.study.scores import scale_window, summarise_run

ANEW = "--ledger none"
"""What makes a command run what is recorded."""
SAME_PLACE = ("host", "python", "numpy", "torch")
"""What must be the same here and there for this machine to speak for the one of a run."""


@dataclass(frozen=True)
class Recorder:
    """Writes the finished runs of an order into a ledger."""

    order: StudyOrder
    ledger: Ledger

    def record_plan(self, plan: StudyPlan) -> Written:
        """Every run of a plan that is over: those of the store, and those that another study has
        recorded."""
        return self.ledger.record(list(self._iterate_rows(plan.runs)))

    def record_run(self, run: PlannedRun, directory: Path) -> Written:
        """A run that has just ended, from its directory."""
        record = read_record(directory)
        return self.ledger.record([] if record is None else [self._make_row(run, record)])

    def _iterate_rows(self, runs: Iterable[PlannedRun]) -> Iterator[Row]:
        for run in runs:
            if run.done is not None:
                yield self._make_row(run, run.done)
            elif run.recorded is not None and run.recorded.study != self.order.name:
                yield self._adopt_row(run, run.recorded)

    def _make_row(self, run: PlannedRun, record: Record) -> Row:
        scores = [scale_window(score, self.order.scale) for score in run.cell.scores.values()]
        return replace(
            self._begin_row(run),
            scenario=record.scenario,
            model=record.sha256,
            scores=summarise_run(record, scores),
            down_mb=record.total("cost/down_mb"),
            up_mb=record.total("cost/up_mb"),
            forward=record.total("cost/forward"),
            backward=record.total("cost/backward"),
            seconds=record.total("time/train_s") + record.total("time/evaluate_s"),
            environment=complete_environment(record),
            finished=_find_end(record),
        )

    def _adopt_row(self, run: PlannedRun, row: Row) -> Row:
        """Another study's row as one of this study."""
        ours = self._begin_row(run)
        return replace(
            row,
            study=ours.study,
            file=ours.file,
            cell=ours.cell,
            axes=ours.axes,
            scale=ours.scale,
            overrides=ours.overrides,
            command=ours.command,
        )

    def _begin_row(self, run: PlannedRun) -> Row:
        """What is known of a run before it is made."""
        root = self.ledger.root
        alone = replace(self.order, seeds=(run.seed,), output=None, root=root)
        return Row(
            study=self.order.name,
            file=shorten_path(self.order.path, root),
            cell=run.cell.label,
            axes=dict(run.cell.choices),
            seed=run.seed,
            scale=self.order.scale,
            overrides=tuple(mask_secrets(list(filter(is_decisive, self.order.overrides)))),
            precision=run.config.training.precision,
            rounds=run.config.training.rounds,
            digest=run.config.digest,
            scenario="",
            model="",
            scores={},
            command=f"{alone.command(run.cell)} {ANEW}",
        )


def is_decisive(override: str) -> bool:
    """Whether a `key=value` word can change a result, and not only where it comes about."""
    return override.partition("=")[0].partition(".")[0].strip() not in PLACE


def _find_end(record: Record) -> str:
    """When its result was written."""
    seconds = (record.directory / "result.json").stat().st_mtime
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(seconds))


def complete_environment(record: Record) -> dict[str, str]:
    """What a run stands on; runs of earlier versions left out what this machine still knows, where
    it is the one that made them."""
    found = dict(record.environment)
    here = describe_environment()
    if all(found.get(name) == here[name] for name in SAME_PLACE):
        found["ray"] = found.get("ray") or here["ray"]
        found["capability"] = found.get("capability") or cpu_capability()
    return found
