"""What a person sees while a run goes on: one live line on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rayfl.tracking.tracker import Tracker


class Progress(Protocol):
    """Told of every finished round, and of work between rounds."""

    def round(self, record: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Says nothing."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Nothing to say."""

    def note(self, text: str) -> None:
        """Nothing to say."""

    def close(self) -> None:
        """Nothing to close."""


class Teller:
    """Hands the records of a run on to its tracking and to whoever watches, each round once."""

    def __init__(self, tracker: Tracker, progress: Progress) -> None:
        self.tracker = tracker
        self.progress = progress
        self.reached = 0

    def __call__(self, record: Mapping[str, Any]) -> int:
        """Take one record; the last round that is known.

        A run that goes on from a checkpoint tells its history again."""
        if "note" in record:
            self.progress.note(record["note"])
        elif record["round"] > self.reached:
            self.reached = record["round"]
            self.tracker.metrics(self.reached, {**record["metrics"], **record["clock"]})
            self.progress.round(record)
        return self.reached

    def __enter__(self) -> Teller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.progress.close()


class RoundClock:
    """Rates and remaining time from the rounds seen so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.started = time.monotonic()
        self.first: int | None = None
        self.clients = 0.0
        self.latest: dict[str, float] = {}

    def line(self, record: Mapping[str, Any]) -> str:
        """Round, accuracy, loss, clients a second, and when it will be over."""
        done = int(record["round"])
        if self.first is None:
            self.first = done
        metrics = record["metrics"]
        self.latest |= {name: metrics[name] for name in metrics if name.startswith("test/")}
        self.clients += metrics.get("clients/participants", 0)
        elapsed, counted = self._elapsed(record, done)
        left = (self.rounds - done) * elapsed / max(counted, 1)
        accuracy = self.latest.get("test/accuracy", float("nan"))
        loss = self.latest.get("test/loss", float("nan"))
        width = len(str(self.rounds))
        return (
            f"round {done:{width}d}/{self.rounds}  accuracy {accuracy:.4f}  loss {loss:.4f}  "
            f"{self.clients / elapsed:.1f} clients/s  {format_duration(left)} left"
        )

    def _elapsed(self, record: Mapping[str, Any], done: int) -> tuple[float, int]:
        """Seconds, and how many rounds they were taken for."""
        # A run that is taken up again tells of its earlier rounds in no time; it knows itself what
        # they took.
        known = record["clock"].get("time/elapsed_s")
        if known:
            return known, done
        assert self.first is not None
        return max(time.monotonic() - self.started, 1e-9), done - self.first + 1


class Lines:
    """A plain line now and then: at least two seconds apart, and always for the last round."""

    def __init__(self, rounds: int, seconds: float = 2.0) -> None:
        self.clock = RoundClock(rounds)
        self.seconds = seconds
        self.said = -seconds

    def round(self, record: Mapping[str, Any]) -> None:
        line = self.clock.line(record)
        if time.monotonic() - self.said >= self.seconds or record["round"] == self.clock.rounds:
            print(line, flush=True)
            self.said = time.monotonic()

    def note(self, text: str) -> None:
        if time.monotonic() - self.said >= self.seconds:
            print(text, flush=True)
            self.said = time.monotonic()

    def close(self) -> None:
        """Nothing to close."""


class Live:
    """One line that is redrawn in place."""

    def __init__(self, rounds: int) -> None:
        from rich.live import Live as RichLive

        self.clock = RoundClock(rounds)
        self.live = RichLive("", refresh_per_second=8)
        self.live.start()

    def round(self, record: Mapping[str, Any]) -> None:
        self.live.update(self.clock.line(record))

    def note(self, text: str) -> None:
        self.live.update(text)

    def close(self) -> None:
        self.live.stop()


def progress_for(rounds: int, quiet: bool) -> Progress:
    """The kind that fits where the output goes."""
    if quiet:
        return Silent()
    return Live(rounds) if sys.stdout.isatty() else Lines(rounds)


def format_duration(seconds: float) -> str:
    """`1h02m`, `3m04s` or `5s`."""
    whole = int(max(seconds, 0) + 0.5)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
