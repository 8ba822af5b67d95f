"""A sweep from its first line to its last: Ray Tune runs the trials, the book knows what is left to
do.

Tune's own state is thrown away with every start. What ended is known from the runs' directories,
which are written by whoever ran them; so after Ctrl-C, or a kill of anything, a resumed sweep
begins with just the trials that are left, each of which goes on from its last checkpoint."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining, TrialScheduler

from rayfl.config.schema import Config
from rayfl.errors import ConfigError, broken
from rayfl.fleet.on_ray.connection import connected
from rayfl.fleet.on_ray.coordinator import placed
from rayfl.run.experiment import Interrupted, tracking_uri
from rayfl.tracking.tracker import Carrier, Journal, Tracker
from rayfl.tuning import suggest
from rayfl.tuning.book import Book, Trial
from rayfl.tuning.points import config_of, corners, planned, refuse_bad_points
from rayfl.tuning.result import SweepResult, result_of, write
from rayfl.tuning.schema import Asha, Domain, Pbt, Sweep, load_sweep, read_sweep
from rayfl.tuning.trial import TrialActor
from rayfl.tuning.watch import Watch

log = logging.getLogger("rayfl")

KEPT = 4
PARENT_SECONDS = 30.0
FAREWELL_SECONDS = 1.2
QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Tune's logs, tables and signal handlers: a sweep has its own."""


def sweep(
    settings: Sweep | Mapping[str, Any] | str | Path,
    *,
    resume: bool = False,
    address: str | None = None,
    say: Callable[[str], object] | None = None,
) -> SweepResult:
    """Run a sweep: a file, its content, or a Sweep. `say` is given a line now and then."""
    chosen = sweep_of(settings)
    if chosen.searcher == "optuna":
        suggest.require()
    refuse_bad_points(chosen, planned(chosen))
    book = Book.begun(chosen, resume)
    tell = say or silent
    with connected(address) if remaining(book) else nullcontext(), stopping(book) as stopped:
        base = config_of(chosen, next(corners(chosen)), chosen.seeds[0])
        tracker = Tracker(book.directory, tracking_uri(base), base.tracking.enabled)
        try:
            announce(tracker, book, base)
            tried(book, tracker, tell)
            if stopped:
                raise interruption(stopped[0], book)
            result = concluded(book, tracker)
        except BaseException as error:
            tracker.finish(
                "KILLED" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "FAILED",
                patience=0.5,
            )
            raise
        tracker.finish("FAILED" if result.failed else "FINISHED")
    return result


def sweep_of(settings: Sweep | Mapping[str, Any] | str | Path) -> Sweep:
    if isinstance(settings, (str, Path)):
        return load_sweep(Path(settings))
    return settings if isinstance(settings, Sweep) else read_sweep(settings, Path.cwd())


def silent(text: str) -> None:
    """Nobody listens."""


# -- trials ----------------------------------------------------------------------------------------------------------


def tried(book: Book, tracker: Tracker, tell: Callable[[str], object]) -> None:
    """All trials that are left, by Tune."""
    trials, left = book.trials(), remaining(book)
    if not left:
        tell("every trial has ended already")
        return
    sizes, asked, count = Sizes.of(book), book.sweep.searcher == "optuna", book.count
    watch = Watch(book, tracker, tell, count, count - left)
    tell(f"{book.sweep.name}: {count} trials, {left} to run, {sizes}")
    # A rung's cut depends on who reached it before: those that have ended report again, without
    # being run.
    again = isinstance(book.sweep.scheduler, Asha)
    listed = (
        sorted(trials, key=lambda trial: not trial.over)
        if again
        else [t for t in trials if not t.over]
    )
    begun = sum(len(trial.lives) for trial in trials)
    with quietly(), chance(book.sweep.seed + begun):
        tune.Tuner(
            tune.with_resources(TrialActor, sizes),
            param_space=space(book, [] if asked else listed, tracker.uri),
            tune_config=tune.TuneConfig(
                search_alg=suggest.OverSeeds(book) if asked else None,
                num_samples=left if asked else 1,
                scheduler=scheduler(book.sweep, [trial.config for trial in trials]),
                # A population takes turns by itself; who is not there cannot be compared with.
                max_concurrent_trials=None if book.sweep.stretch else sizes.at_once,
                reuse_actors=True,
                trial_name_creator=name_of,
                trial_dirname_creator=name_of,
            ),
            run_config=tune.RunConfig(
                name=time.strftime("%Y%m%d-%H%M%S"),
                storage_path=str(book.directory / "tune"),
                failure_config=tune.FailureConfig(max_failures=book.sweep.retries),
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=1, num_to_keep=KEPT, checkpoint_at_end=False
                ),
                callbacks=[watch],
                stop=StopFile(book.stop_file),
                verbose=0,
            ),
        ).fit()


def remaining(book: Book) -> int:
    """How many trials have not ended; of points that are still to be thought of, too."""
    return book.count - sum(trial.over for trial in book.trials())


def space(book: Book, trials: list[Trial], uri: str) -> dict[str, Any]:
    """What a trial is told; which trial, Tune fills in."""
    told = [{"id": trial.id, "seed": trial.seed, "values": dict(trial.values)} for trial in trials]
    common = {"sweep": str(book.directory), "tracking": uri}
    return {**common, "trial": tune.grid_search(told)} if told else common


def name_of(trial: Any) -> str:
    """A trial's name stays its own when its settings become another's."""
    return str(trial.config["trial"]["id"])


def scheduler(sweep: Sweep, configs: list[Config]) -> TrialScheduler | None:
    """Tune's scheduler; its clock is the round."""
    chosen = sweep.scheduler
    judged: dict[str, Any] = {"time_attr": "round", "metric": sweep.metric, "mode": sweep.mode}
    if isinstance(chosen, Asha):
        rounds = max((config.training.rounds for config in configs), default=0) or longest(sweep)
        if chosen.grace > rounds:
            raise ConfigError(
                broken(f"scheduler.grace is at most the rounds of a run ({rounds})", chosen.grace)
            )
        rungs = {
            "grace_period": chosen.grace,
            "reduction_factor": chosen.reduction,
            "brackets": chosen.brackets,
        }
        return AsyncHyperBandScheduler(**judged, max_t=rounds, **rungs, stop_last_trials=False)
    if isinstance(chosen, Pbt):
        rng = np.random.default_rng(sweep.seed)
        drawn = {
            path: domain.values or partial(domain.draw, rng)
            for path, domain in sweep.search.items()
        }
        return PopulationBasedTraining(
            **judged,
            perturbation_interval=chosen.interval,
            quantile_fraction=chosen.quantile,
            resample_probability=chosen.resample,
            hyperparam_mutations={"trial": {"values": drawn}},
            custom_explore_fn=partial(within_bounds, sweep.search),
            synch=chosen.together,
        )
    return None


def longest(sweep: Sweep) -> int:
    return max(
        config_of(sweep, values, sweep.seeds[0]).training.rounds for values in corners(sweep)
    )


def within_bounds(search: Mapping[str, Domain], told: dict[str, Any]) -> dict[str, Any]:
    """Tune multiplies a setting without asking how far it may go."""
    values = {path: search[path].within(value) for path, value in told["trial"]["values"].items()}
    return {**told, "trial": {**told["trial"], "values": values}}


@dataclass(frozen=True)
class Sizes:
    """How many trials run at a time, and what each is given: a bundle for every client actor."""

    book: Book
    at_once: int

    @classmethod
    def of(cls, book: Book) -> Sizes:
        """What was asked for, or what the cluster can hold: rather many trials than many actors for
        one."""
        sweep = book.sweep
        if sweep.at_once != "auto":
            return cls(book, sweep.at_once)
        config = config_of(sweep, next(corners(sweep)), sweep.seeds[0])
        wanted = config.resources.actors
        most = room(config) // (wanted if isinstance(wanted, int) else 1)
        return cls(book, max(1, min(most, book.count)))

    def __call__(self, told: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """The trial's placement group. The trial and its coordinator wait more than they work, and
        take no share."""
        config = config_of(self.book.sweep, told["trial"]["values"], told["trial"]["seed"])
        wanted = config.resources
        if config.fleet == "inline":
            return tune.PlacementGroupFactory([{"CPU": wanted.cpus_per_client}])
        fits = room(config) // self.at_once
        actors = (
            max(1, min(config.training.cohort(config.clients), fits))
            if wanted.actors == "auto"
            else wanted.actors
        )
        pinned = placed(
            actors, wanted.cpus_per_client, wanted.gpus_per_client, config.device, actors
        )
        bundle = {"CPU": pinned.cpus, **({"GPU": pinned.gpus} if pinned.gpus else {})}
        return tune.PlacementGroupFactory([{}, *[bundle] * pinned.actors], strategy="PACK")

    def __str__(self) -> str:
        return f"{self.at_once} at a time"


def room(config: Config) -> int:
    """How many client actors the cluster holds."""
    wanted = config.resources
    least = wanted.actors if isinstance(wanted.actors, int) else 1
    placed(least, wanted.cpus_per_client, wanted.gpus_per_client, config.device, least)
    return placed(
        "auto", wanted.cpus_per_client, wanted.gpus_per_client, config.device, sys.maxsize
    ).actors


# -- stopping --------------------------------------------------------------------------------------------------------


class StopFile(tune.Stopper):  # type: ignore[misc]
    """Ends the sweep when a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.file.exists()


@contextmanager
def stopping(book: Book) -> Iterator[list[int]]:
    """SIGINT and SIGTERM ask all trials to stop; which signal it was. A second one is not caught.

    After SIGTERM there are three seconds in all. Trials need a fraction of one for a checkpoint;
    Tune, which would say goodbye to each of its actors, is not waited for."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    }

    def heard(number: int, _: object) -> None:
        asked.append(number)
        book.stop_file.touch()
        for known in (signal.SIGINT, signal.SIGTERM):
            signal.signal(known, before[known])
        if number == signal.SIGTERM:
            signal.setitimer(signal.ITIMER_REAL, FAREWELL_SECONDS)

    def leave(*_: object) -> None:
        raise interruption(signal.SIGTERM, book)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, heard)
        signal.signal(signal.SIGALRM, leave)
        yield asked
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def interruption(number: int, book: Book) -> Interrupted:
    stopped = Interrupted(number)
    stopped.directory = book.directory
    return stopped


@contextmanager
def chance(seed: int) -> Iterator[None]:
    """Tune's population draws from Python's own generator: for as long as this lasts, from a
    seed."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


@contextmanager
def quietly() -> Iterator[None]:
    """Tune says nothing: what matters is said by the sweep, in its own words."""
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update(QUIET)
    tunes = logging.getLogger("ray.tune")
    level = tunes.level
    tunes.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        tunes.setLevel(level)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


# -- tracking --------------------------------------------------------------------------------------------------------


def announce(tracker: Tracker, book: Book, base: Config) -> None:
    """The sweep's own run in MLflow, below which its trials are."""
    sweep = book.sweep
    params = {f"search/{path}": domain.text for path, domain in sweep.search.items()}
    params |= {
        key: value
        for key, value in sweep.decisive().items()
        if key not in ("search", "set", "base")
    }
    tracker.start(
        base.tracking.experiment, sweep.name, {"kind": "sweep", "sweep": sweep.name}, params
    )
    if not tracker.enabled:
        return
    started = time.monotonic()
    while tracker.run_id is None and time.monotonic() - started < PARENT_SECONDS:
        time.sleep(0.05)
    if tracker.run_id is None:
        log.warning(
            "tracking: the store does not answer; trials will not be nested below the sweep's run"
        )


def concluded(book: Book, tracker: Tracker) -> SweepResult:
    """Table, figure and best point, on disk and in MLflow."""
    result = result_of(book)
    close_books(result, tracker)
    for path in write(result):
        tracker.artifact(path)
    best = result.best
    if best is not None:
        tags = {"best_point": str(best.number), "best_score": f"{best.score:.6g}"}
        tracker.tags(
            {**tags, **{f"best/{path}": str(value) for path, value in best.values.items()}}
        )
        ended = len(result.trials) - result.count("begun", "waiting")
        tracker.metrics(ended + 1, {"sweep/best_score": float(best.score or 0.0)})
    return result


def close_books(result: SweepResult, tracker: Tracker) -> None:
    """No run of the sweep stays open in MLflow, whatever its trial died of."""
    for trial in result.trials:
        for number, directory in enumerate(trial.lives):
            journal = Journal(directory)
            journal.mend()
            statuses = [entry["status"] for entry in journal.entries() if entry["kind"] == "status"]
            begun = [entry["kind"] for entry in journal.entries()]
            if number + 1 < len(trial.lives):
                journal.append("tags", tags={"stopped_by": "pbt"})
            if "start" in begun and not ends_closed(begun):
                journal.append("status", status="FAILED" if trial.status == "failed" else "KILLED")
            if tracker.enabled and (statuses or begun):
                with suppress(Exception):  # a store that is away gets it by `rayfl sync`
                    Carrier(journal, tracker.uri).carry()


def ends_closed(kinds: list[str]) -> bool:
    """Whether the last thing that happened to a run's life cycle is its end."""
    cycle = [kind for kind in kinds if kind in ("start", "status")]
    return cycle[-1] == "status"
