"""What is known of a sweep, on disk: enough to go on after anything, and to find the best point
without Ray.

output/sweeps/NAME/sweep.yaml      the sweep, complete in itself
output/sweeps/NAME/begun.json      when it began, which names its runs
output/sweeps/NAME/points.jsonl    every point that was ever handed out
output/sweeps/NAME/ended.jsonl     trials that were stopped early, or failed for good
output/sweeps/NAME/table.csv ...   what a finished sweep leaves
output/sweeps/NAME/lock            who is running it
output/runs/STAMP-NAME-003-s0/     the run of point 3 with seed 0; -1, -2 ... where a population
                                   made it begin anew
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from rayfl.config.schema import Config
from rayfl.durable import write_file
from rayfl.errors import ConfigError, broken
from rayfl.run import store
from rayfl.tracking.journal import Journal
from rayfl.tuning.points import Point, config_of, plan_points
from rayfl.tuning.schema import Sweep, read_sweep


@dataclass(frozen=True)
class Source:
    """The checkpoint that a life of a trial began with: another trial's."""

    run: str
    round: int


class Book:
    """One sweep's directory."""

    def __init__(self, directory: Path, sweep: Sweep, stamp: str) -> None:
        self.directory, self.sweep, self.stamp = directory, sweep, stamp

    @classmethod
    def directory_of(cls, sweep: Sweep, resume: bool) -> Path:
        """Where a sweep is, or will be; one that is to be taken up again must be there."""
        directory = locate_sweep(sweep)
        if resume and not (directory / "begun.json").is_file():
            known = ", ".join(sorted(path.name for path in directory.parent.glob("*"))) or "none"
            rule = "--resume takes up a sweep that was begun"
            raise ConfigError(broken(rule, directory, f"Known there: {known}"))
        return directory

    @classmethod
    def begun(cls, sweep: Sweep, resume: bool) -> Book:
        """The book of a new sweep, or of the same one that is to be taken up again."""
        directory = cls.directory_of(sweep, resume)
        if (directory / "begun.json").is_file():
            return cls._again(directory, sweep, resume)
        directory.mkdir(parents=True, exist_ok=True)
        book = cls(directory, sweep, time.strftime("%Y%m%d-%H%M%S"))
        # A sweep that died while it was being written has no begun.json, and begins afresh.
        (directory / "points.jsonl").unlink(missing_ok=True)
        settings = yaml.safe_dump(sweep.model_dump(mode="json"), sort_keys=False)
        write_file(directory / "sweep.yaml", settings)
        for point in plan_points(sweep):
            book.add_point(point.values)
        write_file(directory / "begun.json", json.dumps({"stamp": book.stamp}))
        return book

    @classmethod
    def _again(cls, directory: Path, sweep: Sweep, resume: bool) -> Book:
        if not resume:
            remedy = "Go on with it by --resume, or give this one another name: name=..."
            raise ConfigError(
                broken(
                    "a sweep has a name of its own", f"{directory}, which is there already", remedy
                )
            )
        book = cls.open(directory)
        mine, theirs = sweep.decisive(), book.sweep.decisive()
        other = [key for key in mine if mine[key] != theirs[key]]
        if other:
            rule = f"a sweep is resumed with the {other[0]} that it began with ({theirs[other[0]]})"
            raise ConfigError(
                broken(
                    rule, mine[other[0]], f"See {directory / 'sweep.yaml'}, or set another name."
                )
            )
        again = cls(directory, sweep, book.stamp)
        again.stop_file.unlink(missing_ok=True)
        return again

    @classmethod
    def open(cls, directory: Path) -> Book:
        """A sweep that was begun before."""
        try:
            settings = yaml.safe_load((directory / "sweep.yaml").read_text())
            stamp = json.loads((directory / "begun.json").read_text())["stamp"]
        except (OSError, ValueError) as error:
            raise ConfigError(
                broken("a sweep's directory has a sweep.yaml and a begun.json", directory)
            ) from error
        return cls(directory, read_sweep(settings, directory, str(directory / "sweep.yaml")), stamp)

    # -- points and trials ------------------------------------------------------------------------

    @property
    def output(self) -> Path:
        return self.directory.parent.parent

    @property
    def stop_file(self) -> Path:
        """Its presence asks everything that belongs to the sweep to stop, wherever it runs."""
        return self.directory / "stop"

    def points(self) -> list[Point]:
        return [
            Point(number, values)
            for number, values in enumerate(read_lines(self.directory / "points.jsonl"))
        ]

    def add_point(self, values: Mapping[str, Any]) -> Point:
        """Note a point before it is tried."""
        number = len(self.points())
        append_line(self.directory / "points.jsonl", dict(values))
        return Point(number, dict(values))

    @property
    def count(self) -> int:
        """How many trials there will be."""
        points = self.sweep.samples if self.sweep.searcher == "optuna" else len(self.points())
        return points * len(self.sweep.seeds)

    def trials(self) -> list[Trial]:
        """All trials of the points that are known."""
        ended = self.ended()
        return [
            Trial(self, point, seed, ended.get(trial_id(point.number, seed), {}))
            for point in self.points()
            for seed in self.sweep.seeds
        ]

    def end(self, trial: str, how: str, **facts: Any) -> None:
        """Note how a trial ended that has not finished."""
        append_line(self.directory / "ended.jsonl", {"trial": trial, "how": how, **facts})

    def ended(self) -> dict[str, dict[str, Any]]:
        """The last that was noted of each trial that did not finish."""
        return {entry["trial"]: entry for entry in read_lines(self.directory / "ended.jsonl")}

    # -- lives ------------------------------------------------------------------------------------

    def lives(self, trial: str) -> list[Path]:
        """The runs of a trial, in order: one, unless a population made it begin anew with another's
        state."""
        stem = f"{self.stamp}-{self.sweep.name}-{trial}"
        numbered = {
            count_lives(path.parent.name, stem): path.parent
            for path in self.output.glob(f"runs/{stem}*/trial.json")
        }
        return [path for number, path in sorted(numbered.items()) if number >= 0]

    def new_life(
        self, trial: str, values: Mapping[str, Any], digest: str, source: Source | None = None
    ) -> Path:
        """The directory of a run that is to begin; what it is of is noted in it."""
        number = len(self.lives(trial))
        name = f"{self.stamp}-{self.sweep.name}-{trial}" + (f"-{number}" if number else "")
        directory = self.output / "runs" / name
        directory.mkdir(parents=True, exist_ok=True)
        begun = None if source is None else [source.run, source.round]
        note = {
            "sweep": self.sweep.name,
            "trial": trial,
            "values": dict(values),
            "digest": digest,
            "from": begun,
        }
        write_file(directory / "trial.json", json.dumps(note))
        return directory


@dataclass(frozen=True)
class Trial:
    """One run of a point, as the disk shows it."""

    book: Book
    point: Point
    seed: int
    noted: Mapping[str, Any]

    @property
    def id(self) -> str:
        return trial_id(self.point.number, self.seed)

    @cached_property
    def lives(self) -> list[Path]:
        return self.book.lives(self.id)

    @property
    def directory(self) -> Path | None:
        return self.lives[-1] if self.lives else None

    @property
    def values(self) -> Mapping[str, Any]:
        """The point's own, or what a population has made of them."""
        return read_note(self.lives[-1])["values"] if self.lives else self.point.values

    @cached_property
    def config(self) -> Config:
        return config_of(self.book.sweep, self.values, self.seed)

    @cached_property
    def status(self) -> str:
        """`finished`, `stopped`, `failed`, `begun` or `waiting`."""
        if self.directory is None:
            return str(self.noted.get("how", "waiting"))
        # A run may be all right while the trial failed: when it does not measure what the sweep is
        # about.
        lacking = self.noted.get("how") == "failed" and self.score is None
        if not lacking and is_finished(self.directory, self.config.training.rounds):
            return "finished"
        return str(self.noted.get("how", "begun"))

    @property
    def over(self) -> bool:
        """Whether it needs no more running; one that failed is tried again by a resumed sweep."""
        return self.status in ("finished", "stopped")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        return [] if self.directory is None else read_history(self.directory)

    @property
    def rounds(self) -> int:
        """The last round whose metrics are known."""
        return int(self.history[-1]["round"]) if self.history else 0

    @property
    def score(self) -> float | None:
        measured = [
            entry["metrics"][self.book.sweep.metric]
            for entry in self.history
            if self._measures(entry)
        ]
        return score_values(self.book.sweep, measured) if measured else None

    def _measures(self, entry: Mapping[str, Any]) -> bool:
        return self.book.sweep.metric in entry["metrics"]

    @property
    def mlflow_run_id(self) -> str | None:
        return None if self.directory is None else Journal(self.directory).noted().get("run_id")

    @property
    def error(self) -> str:
        return str(self.noted.get("error", ""))


def locate_sweep(sweep: Sweep) -> Path:
    """Where a sweep is kept: below the output folder of its runs."""
    values = {path: domain.corners()[0] for path, domain in sweep.search.items()}
    return config_of(sweep, values, sweep.seeds[0]).output / "sweeps" / sweep.name


def trial_id(point: int, seed: int) -> str:
    return f"{point:03d}-s{seed}"


def count_lives(name: str, stem: str) -> int:
    """The number of a trial's life, from its directory's name; below zero for another trial's."""
    rest = name.removeprefix(stem)
    if rest == "":
        return 0
    return int(rest[1:]) if rest[:1] == "-" and rest[1:].isdigit() else -1


def read_note(directory: Path) -> dict[str, Any]:
    """Which trial a run is of."""
    return dict(json.loads((directory / "trial.json").read_text()))


def is_finished(directory: Path, rounds: int) -> bool:
    """Whether a run has reached its last round and closed its books."""
    record = store.read_record(directory)
    if record is None or record.rounds < rounds:
        return False
    statuses = [
        entry["status"] for entry in Journal(directory).entries() if entry["kind"] == "status"
    ]
    return bool(statuses) and statuses[-1] == "FINISHED"


def read_history(directory: Path) -> list[dict[str, Any]]:
    """Every round's metrics, of a run that is over or is not."""
    record = store.read_record(directory)
    if record is not None:
        return record.history
    entries = Journal(directory).entries() if (directory / "journal.jsonl").exists() else ()
    return [
        {"round": entry["step"], "metrics": entry["values"]}
        for entry in entries
        if entry["kind"] == "metrics"
    ]


def score_values(sweep: Sweep, values: list[float]) -> float:
    """One number for the rounds of a trial."""
    if sweep.over == "best":
        return max(values) if sweep.mode == "max" else min(values)
    chosen = values[-sweep.window :] if sweep.over == "last" else values[-1:]
    return sum(chosen) / len(chosen)


def split_rounds(config: Config, interval: int | None) -> list[Config]:
    """A run in pieces, each with its last round: one piece, unless a scheduler wants a word in
    between."""
    rounds = config.training.rounds
    ends = [*range(interval, rounds, interval), rounds] if interval else [rounds]
    training = [config.training.model_copy(update={"rounds": end}) for end in ends]
    return [config.model_copy(update={"training": part}) for part in training]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; a last one that was cut short is not one."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if line.endswith("\n"))


def append_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line, after cutting off what a crash left of one."""
    path.touch()
    whole = path.read_bytes().rfind(b"\n") + 1
    os.truncate(path, whole)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())
