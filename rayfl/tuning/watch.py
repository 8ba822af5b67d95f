"""What the driver sees of its trials: a line when one begins, ends or fails, and one now and then
in between."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from rayfl.run.progress import format_duration
from rayfl.tracking.tracker import Tracker
from rayfl.tuning.book import Book
from rayfl.tuning.points import format_values
from rayfl.tuning.schema import Asha

SECONDS = 10.0


class Watch(tune.Callback):  # type: ignore[misc]
    """Follows all trials of one start of a sweep."""

    def __init__(
        self, book: Book, tracker: Tracker, tell: Callable[[str], object], count: int, ended: int
    ) -> None:
        self.book = book
        self.tracker = tracker
        self.tell = tell
        self.count = count
        self.ended = ended
        self.began_with = ended
        self.past = {trial.id for trial in book.trials() if trial.over}
        self.running: dict[str, str] = {}
        self.best: float | None = None
        self.started = time.monotonic()
        self.said = self.started

    def __getstate__(self) -> dict[str, Any]:
        """Tune keeps a pickle of its callbacks, of which nothing is ever read."""
        return {}

    # -- what Tune calls --------------------------------------------------------------------------

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = str(trial)
        if name not in self.running and name not in self.past:
            told = trial.config["trial"]
            self.tell(f"{name}  begins  {format_values(told['values'])} seed={told['seed']}")
        self.running[name] = ""

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        metric = result[self.book.sweep.metric]
        self.running[str(trial)] = f"{trial} round {result['round']} {metric:.4f}"
        if time.monotonic() - self.said >= SECONDS:
            self.said = time.monotonic()
            now = ", ".join(text for text in self.running.values() if text)
            self.tell(f"{self.ended}/{self.count} trials ended, {self.left()} left; {now}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = str(trial)
        result = trial.last_result
        self.running.pop(name, None)
        if name in self.past:
            return
        early = result["round"] < result.get("rounds", 0)
        if early:
            by = "asha" if isinstance(self.book.sweep.scheduler, Asha) else "scheduler"
            self.book.end(name, "stopped", by=by, round=result["round"])
        self.note_best(result["score"])
        how = f"stopped after round {result['round']}" if early else "finished"
        scored = f"{self.book.sweep.metric} {result['score']:.4f}"
        self.tell(f"{name}  {how}  {scored}  ({self.ended}/{self.count})")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        again = f"{trial.run_metadata.num_failures} of {self.book.sweep.retries}"
        self.tell(f"{trial}  failed and is taken up again ({again}): {_find_reason(trial)}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.running.pop(str(trial), None)
        if self.book.stop_file.exists():
            return
        self.book.end(str(trial), "failed", error=_find_reason(trial))
        self.ended += 1
        self.tell(f"{trial}  failed  {_find_reason(trial)}  ({self.ended}/{self.count})")

    # -- sums -------------------------------------------------------------------------------------

    def note_best(self, score: float) -> None:
        """The best trial so far, over the number of trials that have ended."""
        better = max if self.book.sweep.mode == "max" else min
        self.ended += 1
        self.best = score if self.best is None else better(self.best, score)
        self.tracker.metrics(self.ended, {"sweep/best_trial": self.best})

    def left(self) -> str:
        """The time that is left, at the pace so far."""
        done = self.ended - self.began_with
        passed = time.monotonic() - self.started
        if not done:
            return "unknown time"
        each = passed / done
        return format_duration(each * (self.count - self.ended))


def _find_reason(trial: Any) -> str:
    """The line of a traceback that says what was wrong."""
    path = trial.error_file
    text = ""
    if path and Path(path).exists():
        text = Path(path).read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rayfl.errors.")]
    named = [line for line in lines if re.match(r"^[\w.]*(Error|Exception)\b.*: ", line)]
    telling = ours or named or lines or ["unknown"]
    return telling[-1].removeprefix("rayfl.errors.")[:160]
