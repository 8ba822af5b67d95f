"""A sweep from its first line to its last: Ray Tune runs the trials, the book knows what is left to
do.

Tune's own state is thrown away with every start. What ended is known from the runs' directories,
which are written by whoever ran them; so after Ctrl-C, or a kill of anything, a resumed sweep
begins with just the trials that are left, each of which goes on from its last checkpoint."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune

from rayfl.bits import hold_bits
from rayfl.config.schema import Config
from rayfl.errors import ConfigError, broken
from rayfl.fleet.on_ray.connection import connect_ray
from rayfl.locks import take_lock
from rayfl.run.experiment import Interrupted, tracking_uri
from rayfl.run.progress import is_watched
from rayfl.secrets import mask_secrets
from rayfl.tracking.carrier import Carrier
from rayfl.tracking.journal import Journal
from rayfl.tracking.tracker import Tracker
from rayfl.tuning import suggest
from rayfl.tuning.book import Book, Trial
from rayfl.tuning.node_watch import watch_nodes
from rayfl.tuning.points import config_of, list_corners, plan_points, refuse_bad_points
from rayfl.tuning.result import SweepResult, read_result, write_result
from rayfl.tuning.schema import Asha, Sweep, load_sweep, read_sweep
from rayfl.tuning.stopping import StopFile, SweepStop, stop_by_signals
from rayfl.tuning.trial import TrialActor
from rayfl.tuning.trial_sizes import TrialSizes
from rayfl.tuning.tune_setup import (
    draw_from_seed,
    keep_tune_quiet,
    make_scheduler,
    name_trial,
    space_of,
)
from rayfl.tuning.watch import Watch

log = logging.getLogger("rayfl")

KEPT = 4
PARENT_SECONDS = 30.0

Say = Callable[[str], object]


def sweep(
    settings: Sweep | Mapping[str, Any] | str | Path,
    *,
    resume: bool = False,
    address: str | None = None,
    say: Say | None = None,
) -> SweepResult:
    """Run a sweep.

    Parameters
    ----------
    settings : Sweep, mapping or path
        The sweep, its content, or its file.
    resume : bool
        Take up again a sweep of this name: what has ended is not run again.
    address : str or None
        A cluster; by default RAY_ADDRESS, or a Ray of our own.
    say : callable or None
        Given a line now and then; by default they are printed on a terminal and in a notebook.

    Returns
    -------
    SweepResult
        Its points in order, and the best of them.

    Raises
    ------
    LockHeldError
        Another process is running this sweep.
    """
    chosen = _read_settings(settings)
    if chosen.searcher == "optuna":
        suggest.require_optuna()
    refuse_bad_points(chosen, plan_points(chosen))
    _refuse_credentials(chosen)
    hold_bits([config_of(chosen, next(list_corners(chosen)), chosen.seeds[0]).bits])
    directory = Book.directory_of(chosen, resume)
    with take_lock(directory / "lock", f"the sweep {chosen.name} ({directory})"):
        book = Book.begun(chosen, resume)
        with stop_by_signals(book) as stop:
            return _run_sweep(book, address, say or _choose_say(), stop)


def _read_settings(settings: Sweep | Mapping[str, Any] | str | Path) -> Sweep:
    if isinstance(settings, (str, Path)):
        return load_sweep(Path(settings))
    return settings if isinstance(settings, Sweep) else read_sweep(settings, Path.cwd())


def _choose_say() -> Say:
    """Lines for whoever looks on."""
    return print if is_watched() else _say_nothing


def _refuse_credentials(sweep: Sweep) -> None:
    """A sweep's settings lie on the disk as they are: its trials, and --resume, read them there."""
    plain = sweep.model_dump(mode="json")
    if mask_secrets(plain) != plain:
        rule = "a sweep's settings, which its trials read from the disk, hold no credentials"
        remedy = "Set them in the environment: AWS_SECRET_ACCESS_KEY, MLFLOW_TRACKING_URI."
        raise ConfigError(broken(rule, sweep.name, remedy))


def _say_nothing(text: str) -> None:
    """Nobody listens."""


def _run_sweep(book: Book, address: str | None, say: Say, stop: SweepStop) -> SweepResult:
    chosen = book.sweep
    with ExitStack() as stack:
        if _count_left(book):
            with stop.later():
                stack.enter_context(connect_ray(address, is_stopping=stop.is_asked))
        base = config_of(chosen, next(list_corners(chosen)), chosen.seeds[0])
        tracker = Tracker(book.directory, tracking_uri(base), base.tracking.enabled)
        try:
            _announce_sweep(tracker, book, base, stop)
            _run_trials(book, tracker, say, stop)
            stop.heed()
            result = _conclude_sweep(book, tracker)
        except BaseException as error:
            stopped = stop.asked or isinstance(error, (Interrupted, KeyboardInterrupt))
            tracker.finish("KILLED" if stopped else "FAILED", patience=0.5)
            raise
        tracker.finish("FAILED" if result.failed else "FINISHED")
    return result


# -- trials --------------------------------------------------------------------------------------


def _run_trials(book: Book, tracker: Tracker, say: Say, stop: SweepStop) -> None:
    """All trials that are left, by Tune."""
    left = _count_left(book)
    if not left:
        say("every trial has ended already")
        return
    sweep, trials = book.sweep, book.trials()
    sizes = TrialSizes.of(book)
    asked = sweep.searcher == "optuna"
    watch = Watch(book, tracker, say, book.count, book.count - left)
    say(f"{sweep.name}: {book.count} trials, {left} to run, {sizes}")
    begun = sum(len(trial.lives) for trial in trials)
    search = tune.TuneConfig(
        search_alg=suggest.OverSeeds(book) if asked else None,
        num_samples=left if asked else 1,
        scheduler=make_scheduler(sweep, [trial.config for trial in trials]),
        # A population takes turns by itself; who is not there cannot be compared with.
        max_concurrent_trials=None if sweep.stretch else sizes.at_once,
        reuse_actors=True,
        trial_name_creator=name_trial,
        trial_dirname_creator=name_trial,
    )
    gcs = ray.get_runtime_context().gcs_address
    with keep_tune_quiet(), draw_from_seed(sweep.seed + begun), watch_nodes(book, stop, gcs):
        tune.Tuner(
            tune.with_resources(TrialActor, sizes),
            param_space=space_of(book, [] if asked else _list_trials(book, trials), tracker.uri),
            tune_config=search,
            run_config=_run_config(book, watch),
        ).fit()


def _list_trials(book: Book, trials: Sequence[Trial]) -> list[Trial]:
    """The trials that Tune is told of.

    A rung's cut depends on who reached it before: those that have ended report again, without being
    run."""
    if isinstance(book.sweep.scheduler, Asha):
        return sorted(trials, key=lambda trial: not trial.over)
    return [trial for trial in trials if not trial.over]


def _run_config(book: Book, watch: Watch) -> tune.RunConfig:
    kept = tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=KEPT, checkpoint_at_end=False)
    return tune.RunConfig(
        name=time.strftime("%Y%m%d-%H%M%S"),
        storage_path=str(book.directory / "tune"),
        failure_config=tune.FailureConfig(max_failures=book.sweep.retries),
        checkpoint_config=kept,
        callbacks=[watch],
        stop=StopFile(book),
        verbose=0,
    )


def _count_left(book: Book) -> int:
    """How many trials have not ended; of points that are still to be thought of, too."""
    return book.count - sum(trial.over for trial in book.trials())


# -- tracking ------------------------------------------------------------------------------------


def _announce_sweep(tracker: Tracker, book: Book, base: Config, stop: SweepStop) -> None:
    """The sweep's own run in MLflow, below which its trials are."""
    sweep = book.sweep
    params = {f"search/{path}": domain.text for path, domain in sweep.search.items()}
    params |= {
        key: value
        for key, value in sweep.decisive().items()
        if key not in ("search", "set", "base")
    }
    tags = {"kind": "sweep", "sweep": sweep.name, "mlflow.note.content": _describe_sweep(book)}
    tracker.start(base.tracking.experiment, sweep.name, tags, params)
    if not tracker.enabled:
        return
    started = time.monotonic()
    while tracker.run_id is None and time.monotonic() - started < PARENT_SECONDS:
        stop.heed()
        time.sleep(0.05)
    if tracker.run_id is None:
        log.warning(
            "tracking: the store does not answer; trials will not be nested below the sweep's run"
        )


def _describe_sweep(book: Book) -> str:
    """One sentence, and the command that goes on with it; MLflow reads it as Markdown."""
    sweep = book.sweep
    searched = ", ".join(sweep.search)
    goal = f"{'highest' if sweep.mode == 'max' else 'lowest'} {sweep.metric}"
    said = f"A {sweep.searcher} search of {searched} for the {goal}, {len(sweep.seeds)} seeds each."
    command = shlex.join(["rayfl", "sweep", str(book.directory / "sweep.yaml"), "--resume"])
    return f"{said}\n\n```\n{command}\n```"


def _conclude_sweep(book: Book, tracker: Tracker) -> SweepResult:
    """Table, figure and best point, on disk and in MLflow."""
    result = read_result(book)
    _close_books(result, tracker)
    for path in write_result(result):
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


def _close_books(result: SweepResult, tracker: Tracker) -> None:
    """No run of the sweep stays open in MLflow, whatever its trial died of."""
    for trial in result.trials:
        for number, directory in enumerate(trial.lives):
            journal = Journal(directory)
            journal.mend()
            statuses = [entry["status"] for entry in journal.entries() if entry["kind"] == "status"]
            begun = [entry["kind"] for entry in journal.entries()]
            if number + 1 < len(trial.lives):
                journal.append("tags", tags={"stopped_by": "pbt"})
            if "start" in begun and not _ends_closed(begun):
                journal.append("status", status="FAILED" if trial.status == "failed" else "KILLED")
            if tracker.enabled and (statuses or begun):
                with suppress(Exception):  # a store that is away gets it by `rayfl sync`
                    Carrier(journal, tracker.uri).carry()


def _ends_closed(kinds: list[str]) -> bool:
    """Whether the last thing that happened to a run's life cycle is its end."""
    cycle = [kind for kind in kinds if kind in ("start", "status")]
    return cycle[-1] == "status"
