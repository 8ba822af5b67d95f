"""What a sweep has found: its points in order, the best of them, and how to run that one again."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import yaml

from rayfl.errors import ConfigError, RayflError, broken
from rayfl.run.loading import load
from rayfl.run.result import Result
from rayfl.secrets import mask_secrets
from rayfl.tracking.journal import read_note as tracking_note
from rayfl.tuning.book import Book, Trial, read_note
from rayfl.tuning.points import format_value, format_values, settings_of
from rayfl.tuning.schema import Sweep

if TYPE_CHECKING:
    import pandas

SHOWN = 12


@dataclass(frozen=True)
class Standing:
    """A point with all its trials."""

    number: int
    trials: Sequence[Trial]

    @property
    def values(self) -> Mapping[str, Any]:
        return self.trials[0].values

    @cached_property
    def scores(self) -> list[float]:
        return [trial.score for trial in self.trials if trial.score is not None]

    @property
    def score(self) -> float | None:
        """The mean over the seeds that have come to a score."""
        return fmean(self.scores) if self.scores else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds (n - 1)."""
        return stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def complete(self) -> bool:
        """Whether every seed was run to the end: only then is a score comparable."""
        return all(trial.status == "finished" for trial in self.trials)

    @property
    def rounds(self) -> int:
        return min(trial.rounds for trial in self.trials)

    @property
    def status(self) -> str:
        found = sorted({trial.status for trial in self.trials})
        return "finished" if found == ["finished"] else ", ".join(found)


@dataclass(frozen=True, repr=False)
class SweepResult:
    """A sweep as far as it has come."""

    sweep: Sweep
    directory: Path
    points: list[Standing]
    """The best first; points that were not run to the end come after those that were."""
    mlflow_run_id: str | None

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order of points and seeds."""
        return sorted(
            (trial for point in self.points for trial in point.trials), key=lambda trial: trial.id
        )

    @property
    def best(self) -> Standing | None:
        return next((point for point in self.points if point.score is not None), None)

    @property
    def best_config(self) -> dict[str, Any]:
        """The plain configuration of the best point, with the first seed; {} before any trial has a
        score."""
        best = self.best
        return (
            {}
            if best is None
            else dict(mask_secrets(settings_of(self.sweep, best.values, self.sweep.seeds[0])))
        )

    @property
    def failed(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.status == "failed"]

    def count(self, *statuses: str) -> int:
        return sum(trial.status in statuses for trial in self.trials)

    # -- as Ray Tune's ResultGrid ------------------------------------------------------------------

    @property
    def experiment_path(self) -> str:
        """Where the sweep keeps its own files."""
        return str(self.directory)

    @property
    def errors(self) -> list[RayflError]:
        """What each failed trial died of."""
        return [RayflError(trial.error) for trial in self.failed]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return len(self.failed)

    @property
    def num_terminated(self) -> int:
        """How many trials came to their end, or were stopped as hopeless."""
        return self.count("finished", "stopped")

    def get_best_result(self, metric: str | None = None, mode: str | None = None) -> Result:
        """The finished run of the best point, of its first seed that finished.

        Parameters
        ----------
        metric : str, optional
            By default the sweep's, and then points are ranked as the sweep ranks them: by the mean
            over seeds.
        mode : str, optional
            `max` or `min`; by default the sweep's.
        """
        trials = self._rank_trials(metric, mode)
        if not trials:
            rule = "a sweep has a best result when a trial has finished"
            raise ConfigError(broken(rule, f"{self.count('finished')} of {len(self.trials)}"))
        assert trials[0].directory is not None, "a finished trial has one"
        return load(trials[0].directory)

    def _rank_trials(self, metric: str | None, mode: str | None) -> list[Trial]:
        """Finished trials, the best first."""
        own = metric in (None, self.sweep.metric) and mode in (None, self.sweep.mode)
        if own:
            ranked = [trial for point in self.points for trial in point.trials]
            return [trial for trial in ranked if trial.status == "finished"]
        wanted = metric or self.sweep.metric
        sign = -1.0 if (mode or self.sweep.mode) == "max" else 1.0
        ended = [trial for trial in self.trials if trial.status == "finished"]
        measured = [trial for trial in ended if wanted in read_last(trial)]
        return sorted(measured, key=lambda trial: sign * read_last(trial)[wanted])

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pandas.DataFrame:
        """A line a trial: its settings as `config/...`, its score, its last metrics.

        Parameters
        ----------
        filter_metric : str, optional
            Show each trial's metrics of the round in which this one was best, not of its last.
        filter_mode : str, optional
            `max` or `min`; by default the sweep's.
        """
        import pandas

        rows = []
        for trial in self.trials:
            settings = {f"config/{path}": value for path, value in trial.values.items()}
            facts = {
                "trial_id": trial.id,
                "point": trial.point.number,
                "seed": trial.seed,
                "status": trial.status,
                "score": trial.score,
                "rounds": trial.rounds,
                "logdir": None if trial.directory is None else str(trial.directory),
            }
            chosen = _choose_round(trial, filter_metric, filter_mode or self.sweep.mode)
            rows.append({**facts, **settings, **chosen})
        return pandas.DataFrame(rows)

    def __len__(self) -> int:
        return len(self.trials)

    def __repr__(self) -> str:
        ended = self.num_terminated
        return f"<SweepResult of {self.sweep.name}: {ended} of {len(self)} trials ended>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the table of points, and the best of them."""
        return f"<pre>{escape(format_table(self))}\n\n{escape(describe_best(self))}</pre>"


def read_last(trial: Trial) -> dict[str, float]:
    """The last value of every metric of a trial."""
    last: dict[str, float] = {}
    for entry in trial.history:
        last |= entry["metrics"]
    return last


def _choose_round(trial: Trial, metric: str | None, mode: str) -> dict[str, float]:
    """The metrics of the round in which one was best; without one, the last of each."""
    if metric is None:
        return read_last(trial)
    better = max if mode == "max" else min
    measured = [entry["metrics"] for entry in trial.history if metric in entry["metrics"]]
    if not measured:
        return {}
    return dict(better(measured, key=lambda metrics: metrics[metric]))


def read_result(book: Book) -> SweepResult:
    """What the disk says."""
    trials: dict[int, list[Trial]] = {}
    for trial in book.trials():
        trials.setdefault(trial.point.number, []).append(trial)
    points = [Standing(number, own) for number, own in trials.items()]
    sign = -1.0 if book.sweep.mode == "max" else 1.0

    def rank(point: Standing) -> tuple[bool, bool, float, int]:
        return point.score is None, not point.complete, sign * (point.score or 0.0), point.number

    run_id = tracking_note(book.directory / "tracking.json").get("run_id")
    return SweepResult(book.sweep, book.directory, sorted(points, key=rank), run_id)


# -- for people ----------------------------------------------------------------------------------


def format_table(result: SweepResult, shown: int = SHOWN) -> str:
    """The best points, a line each."""
    sweep = result.sweep
    rows = [["", sweep.metric, "std", "seeds", "rounds", "", "settings"]]
    for place, point in enumerate(result.points[:shown], 1):
        numbers = [
            _format_score(point.score),
            _format_score(point.spread),
            f"{len(point.scores)}/{len(sweep.seeds)}",
        ]
        rows.append(
            [f"{place}.", *numbers, f"{point.rounds}", point.status, format_values(point.values)]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    hidden = len(result.points) - shown
    return "\n".join(
        [*text, *([f"... and {hidden} more points, in table.csv"] if hidden > 0 else [])]
    )


def _format_score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def describe_best(result: SweepResult) -> str:
    """The best point, what it changes, and the command that runs it again."""
    best = result.best
    if best is None:
        return "no trial has come to a score yet"
    spread = "" if best.spread is None else f" +- {best.spread:.4f}"
    measured = _describe_measure(result.sweep, len(best.scores))
    whole = "" if best.complete else " (not run to its end)"
    born = _describe_lineage(best.trials[0])
    last = " (with its last settings from the first round)" if born else ""
    lines = [
        f"best point       {best.number}, of {len(result.points)}{whole}",
        f"score            {_format_score(best.score)}{spread}  ({measured})",
        *(f"setting          {path}={format_value(value)}" for path, value in best.values.items()),
        *born,
        f"overrides        {_quote_overrides(best.values)}",
        *(f"seed {t.seed:<11} {_format_score(t.score)}  {_run_name(t)}" for t in best.trials),
        f"run it again     {_command_of(result)}{last}",
    ]
    return "\n".join(lines)


def _run_name(trial: Trial) -> str:
    return trial.directory.name if trial.directory else "none"


def _describe_measure(sweep: Sweep, seeds: int) -> str:
    """What a score is the mean of."""
    over = {
        "last": f"mean of the last {sweep.window} values",
        "best": "best value",
        "final": "final value",
    }[sweep.over]
    return f"{sweep.metric}, {over}, {seeds} seed{'' if seeds == 1 else 's'}"


def _describe_lineage(trial: Trial) -> list[str]:
    """How the settings of a population's member came to be, where they changed on the way."""
    steps = [read_note(directory) for directory in trial.lives[1:]]
    begun = [(*note["from"], note["values"]) for note in steps if note["from"]]
    return [
        f"from round {round_:<5} with the state of {origin}: {format_values(values)}"
        for origin, round_, values in begun
    ]


def _quote_overrides(values: Mapping[str, Any]) -> str:
    """The point's values as a shell takes them, exactly."""
    pairs = [
        (path, repr(value) if isinstance(value, float) else format_value(value))
        for path, value in values.items()
    ]
    return " ".join(shlex.quote(f"{path}={text}") for path, text in pairs)


def _command_of(result: SweepResult) -> str:
    """What runs the best point again, with the first seed; its configuration is written beside the
    sweep."""
    (result.directory / "best.yaml").write_text(yaml.safe_dump(result.best_config, sort_keys=False))
    return f"rayfl run {shlex.quote(str(result.directory / 'best.yaml'))}"


# -- for files -----------------------------------------------------------------------------------


def list_rows(result: SweepResult) -> list[dict[str, Any]]:
    """The table as plain values, best point first."""
    return [
        {
            "place": place,
            "point": point.number,
            "score": point.score,
            "std": point.spread,
            "seeds": len(point.scores),
            "rounds": point.rounds,
            "status": point.status,
            **{path: point.values[path] for path in result.sweep.search},
        }
        for place, point in enumerate(result.points, 1)
    ]


def list_trials(result: SweepResult) -> list[dict[str, Any]]:
    """Every trial as plain values."""
    return [
        {
            "trial": trial.id,
            "point": trial.point.number,
            "seed": trial.seed,
            "status": trial.status,
            "score": trial.score,
            "rounds": trial.rounds,
            "run": None if trial.directory is None else trial.directory.name,
            "mlflow_run_id": trial.mlflow_run_id,
            "error": trial.error,
        }
        for trial in result.trials
    ]


def write_result(result: SweepResult) -> list[Path]:
    """`table.csv`, `table.json`, `best.yaml` and the figure; their paths."""
    from rayfl.tuning.figure import draw_coordinates

    folder, table_rows = result.directory, list_rows(result)
    trials = list_trials(result)
    (folder / "table.json").write_text(
        json.dumps({"points": table_rows, "trials": trials}, indent=1)
    )
    (folder / "table.csv").write_text(format_csv(table_rows))
    _command_of(result)
    draw_coordinates(result).savefig(folder / "coordinates.png", dpi=130)
    return [
        folder / name
        for name in ("sweep.yaml", "table.csv", "table.json", "best.yaml", "coordinates.png")
    ]


def format_csv(table_rows: Sequence[Mapping[str, Any]]) -> str:
    """Components as YAML in one line, what is missing left empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(list(table_rows[0]) if table_rows else [])
    for row in table_rows:
        plain = [
            format_value(value) if isinstance(value, (dict, list)) else value
            for value in row.values()
        ]
        writer.writerow(["" if value is None else value for value in plain])
    return stream.getvalue()
