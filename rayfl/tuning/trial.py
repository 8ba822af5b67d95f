"""One trial as Ray Tune runs it: an actor that follows a run of rayfl and reports its rounds.

The run keeps its own checkpoints; what Tune stores is a pointer to them and the last round that it
was told of. Only for a population, whose members take over each other's state, does Tune's
checkpoint hold a copy: there a trial stops after every stretch of rounds, so that the copy is of
just the round that was compared."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from math import nan
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from ray import tune

from rayfl.config.files import put_setting
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, broken
from rayfl.run.checkpoint import CheckpointStore
from rayfl.run.engine import Record
from rayfl.run.experiment import Interrupted, Stop, run
from rayfl.run.progress import Silent
from rayfl.tracking.journal import Journal
from rayfl.tuning.book import (
    Book,
    Source,
    is_finished,
    read_history,
    read_note,
    score_values,
    split_rounds,
)
from rayfl.tuning.points import format_values, name_values, settings_of

COPY = "checkpoint"
SHOWN = ("test/", "labels/")
"""What Tune is told of a round, beside the metric that it goes by."""


class Asked(Stop):
    """Stops when the sweep is asked to: by a file, which any machine that shares the folder
    sees."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def heed(self) -> None:
        if self.file.exists():
            self.asked = signal.SIGTERM
        super().heed()


class Running(Silent):
    """One stretch of a run, in a thread of its own; its last round is handed on when its books are
    closed."""

    def __init__(self, config: Config, directory: Path, stop: Stop) -> None:
        self.rounds, self.stop = config.training.rounds, stop
        self.records: Queue[Record | None] = Queue(maxsize=1)
        self.error: BaseException | None = None
        self.last: Record | None = None
        self.thread = threading.Thread(
            target=self._run, args=(config, directory), name="run", daemon=True
        )
        self.thread.start()

    def _run(self, config: Config, directory: Path) -> None:
        try:
            run(config, directory=directory, stop=self.stop, progress=self)
            self.records.put(self.last)
        except BaseException as error:
            self.error = error
        self.records.put(None)

    def round(self, record: Any) -> None:
        self.last = record
        if record["round"] < self.rounds:
            self.records.put(record)
            self.stop.heed()

    def __iter__(self) -> Iterator[Record]:
        while (record := self.records.get()) is not None:
            yield record
        self.thread.join()
        if self.error is not None and not self.stopped:
            raise self.error

    @property
    def stopped(self) -> bool:
        """Whether it ended because it was asked to."""
        return isinstance(self.error, Interrupted)

    def end(self) -> None:
        """Stop where it is, with a checkpoint of its last whole round."""
        self.stop.asked = signal.SIGTERM
        while self.thread.is_alive():
            with suppress(Empty):
                self.records.get(timeout=0.05)


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """Follows one trial. `config` names the sweep's directory and the tracking store, and has the
    trial's values."""

    def setup(self, config: dict[str, Any]) -> None:
        for name in ("ray.train", "ray.tune"):  # a line for every checkpoint
            logging.getLogger(name).setLevel(logging.WARNING)
        # Tune enters a directory of its own; relative paths of a configuration were meant from
        # where Ray started.
        os.chdir(os.environ.get("TUNE_ORIG_WORKING_DIR", "."))
        self.book = Book.open(Path(config["sweep"]))
        self.values = dict(config["trial"]["values"])
        self.seed = config["trial"]["seed"]
        self.whole = validate_config(
            settings_of(self.book.sweep, self.values, self.seed), format_values(self.values)
        )
        self.directory: Path | None = None
        self.told = 0
        self.latest = 0
        self.running: Running | None = None
        self.results: Iterator[dict[str, Any]] | None = None

    def step(self) -> dict[str, Any]:
        if self.results is None:
            self.results = self._results()
        return next(self.results)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Serve another trial: a process that has imported everything starts it sooner."""
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """Stopped by whom, if the driver knows; then no actor of the run is left and its books are
        closed."""
        if self.running is None or not self.running.thread.is_alive():
            return
        noted = self.book.ended().get(self.trial_name, {})
        if "by" in noted and self.directory is not None:
            Journal(self.directory).append(
                "tags", tags={"stopped_by": noted["by"], "stopped_at": str(noted["round"])}
            )
        self.running.end()

    # -- results ----------------------------------------------------------------------------------

    def _results(self) -> Iterator[dict[str, Any]]:
        """What Tune is told: each round once, from the first that has the metric."""
        rounds, metric = self.whole.training.rounds, self.book.sweep.metric
        measured: list[float] = []
        seen: dict[str, float] = {}
        for record, heard in self._records():
            seen |= record["metrics"]
            self.latest = record["round"]
            measured += [record["metrics"][metric]] if metric in record["metrics"] else []
            if heard and measured:
                yield {
                    **{name: seen[name] for name in seen if name.startswith(SHOWN)},
                    metric: seen[metric],
                    "score": score_values(self.book.sweep, measured),
                    "round": self.latest,
                    "rounds": rounds,
                    "done": self.latest >= rounds,
                }
        last = {
            metric: seen.get(metric, nan),
            "score": score_values(self.book.sweep, measured or [nan]),
            "round": self.latest,
        }
        while self.running is not None and self.running.stopped:
            yield {**last, "rounds": rounds}
        if not measured:
            known = ", ".join(name for name in seen if name.startswith(SHOWN))
            raise ConfigError(
                broken("metric is one that the run measures", metric, f"Measured: {known}")
            )
        yield {**last, "rounds": rounds, "done": True}

    def _records(self) -> Iterator[tuple[Record, bool]]:
        """Every round, and whether Tune is to hear of it. What ended before is read, not run."""
        rounds, interval = self.whole.training.rounds, self.book.sweep.stretch
        directory = self.directory = self.directory or self._life(None)
        if is_finished(directory, rounds) or "how" in self._stopped():
            yield from ((record, True) for record in read_history(directory))
            return
        past = read_history(directory)
        known = max(self.told, past[-1]["round"]) if past else self.told
        for stretch in split_rounds(self._config(directory), interval):
            end = stretch.training.rounds
            if end < rounds and end <= known:
                continue
            self.running = Running(stretch, directory, Asked(self.book.stop_file))
            for record in self.running:
                # Of a run that goes on, Tune has heard the beginning before; but it must hear of
                # the end.
                news = record["round"] > min(self.told, rounds - 1)
                yield record, news and (not interval or record["round"] == end)

    def _stopped(self) -> dict[str, Any]:
        """How this trial was stopped in an earlier life of the sweep; a failed one is run again."""
        noted = self.book.ended().get(self.trial_name, {})
        return noted if noted.get("how") == "stopped" else {}

    def _config(self, directory: Path) -> Config:
        """The trial's configuration on the resources that Tune has given it."""
        settings = _adorn_settings(self.book, self.trial_name, self.values, self.seed, directory)
        tracked = settings["tracking"].get("enabled", True)
        settings["tracking"]["uri"] = self.config["tracking"] or (
            _find_own_uri() if tracked else None
        )
        bundles = [] if self.trial_resources is None else self.trial_resources.bundles
        if self.whole.fleet == "ray" and bundles:
            pinned: dict[str, Any] = {"actors": len(bundles), "cpus_per_client": bundles[0]["CPU"]}
            pinned["keepers"] = self.whole.resources.keepers
            settings = put_setting(
                settings, ["resources"], {**pinned, "gpus_per_client": bundles[0].get("GPU", 0)}
            )
        return validate_config(settings, format_values(self.values))

    # -- checkpoints ------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """A pointer; and for a population, between two stretches, the state itself."""
        directory = self.directory = self.directory or self._life(None)
        pointer = {"trial": self.trial_name, "run": directory.name, "round": self.latest}
        Path(checkpoint_dir, "pointer.json").write_text(json.dumps(pointer))
        if (
            self.book.sweep.stretch
            and self.running is not None
            and not self.running.thread.is_alive()
        ):
            CheckpointStore(_checkpoints_of(self._config(directory), directory)).hand_on(
                f"{checkpoint_dir}/{COPY}"
            )

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on with this trial's run; or begin another one with what another trial has reached."""
        pointer = json.loads(Path(checkpoint, "pointer.json").read_text())
        self.told = pointer["round"]
        if pointer["trial"] == self.trial_name and self._mine(pointer["run"]):
            self.directory = self.book.output / "runs" / pointer["run"]
            return
        origin = self.book.output / "runs" / pointer["run"]
        copy = Path(checkpoint, COPY)
        theirs = copy if copy.is_dir() else origin / "checkpoints"
        self.directory = self._life(Source(pointer["run"], pointer["round"]))
        if not (self.directory / "config.yaml").exists():
            own = _checkpoints_of(self._config(self.directory), self.directory)
            CheckpointStore(str(theirs)).hand_on(own, self.whole.digest)

    def _mine(self, run: str) -> bool:
        return bool(read_note(self.book.output / "runs" / run)["digest"] == self.whole.digest)

    def _life(self, source: Source | None) -> Path:
        """The run of these settings with this beginning; a new one if there is none."""
        for directory in reversed(self.book.lives(self.trial_name)):
            note = read_note(directory)
            begun = source is None or note["from"] == [source.run, source.round]
            if begun and note["digest"] == self.whole.digest:
                return directory
        return self.book.new_life(self.trial_name, self.values, self.whole.digest, source)


def _checkpoints_of(config: Config, directory: Path) -> str:
    """Where a run keeps its checkpoints."""
    return config.checkpoint.uri or str(directory / "checkpoints")


def _find_own_uri() -> str:
    """A store whose URI has credentials, which a sweep writes nowhere: from this node's
    environment. Without it a trial would track into a file of its own, where nobody looks."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None:
        rule = "a trial's node has MLFLOW_TRACKING_URI in its environment, as the sweep has"
        remedy = "Export it there before `ray start`; or take a server without a password."
        raise ConfigError(broken(rule, "a node without it", remedy))
    return uri


def _adorn_settings(
    book: Book, trial: str, values: dict[str, Any], seed: int, directory: Path
) -> dict[str, Any]:
    """A trial's settings with a name in MLflow, below the sweep's own run; and a place of its own
    for checkpoints."""
    settings = settings_of(book.sweep, values, seed)
    tracking = dict(settings.get("tracking") or {})
    checkpoint = dict(settings.get("checkpoint") or {})
    searched = {f"search/{path}": str(value) for path, value in values.items()}
    tags = {
        "sweep": book.sweep.name,
        "trial": trial,
        "point": str(int(trial.partition("-")[0])),
        **searched,
    }
    begun = read_note(directory)["from"]
    tags |= {"begun_from": f"{begun[0]} round {begun[1]}"} if begun else {}
    parent = Journal(book.directory).noted()
    tags |= {"mlflow.parentRunId": parent["run_id"]} if "run_id" in parent else {}
    short = directory.name.removeprefix(f"{book.stamp}-")
    tracking |= {"run_name": f"{name_values(values)} s{seed} {short}"}
    tracking |= {"tags": {**(tracking.get("tags") or {}), **tags}}
    if checkpoint.get("uri"):
        checkpoint["uri"] = f"{checkpoint['uri'].rstrip('/')}/{directory.name}"
    return {**settings, "output": str(book.output), "tracking": tracking, "checkpoint": checkpoint}
