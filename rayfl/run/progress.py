"""What a person sees while a run goes on: one live line on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol


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


class Clock:
    """Rates and remaining time from the rounds seen so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.started = rounds, time.monotonic()
        self.first: int | None = None
        self.clients = 0.0
        self.latest: dict[str, float] = {}

    def line(self, record: Mapping[str, Any]) -> str:
        """Round, accuracy, loss, clients a second, and when it will be over."""
        done = int(record["round"])
        if self.first is None:
            self.first = done
        self.latest |= {
            name: value for name, value in record["metrics"].items() if name.startswith("test/")
        }
        self.clients += record["metrics"].get("clients/participants", 0)
        elapsed = max(time.monotonic() - self.started, 1e-9)
        left = (self.rounds - done) * elapsed / max(done - self.first + 1, 1)
        accuracy, loss = (
            self.latest.get(f"test/{name}", float("nan")) for name in ("accuracy", "loss")
        )
        width = len(str(self.rounds))
        return (
            f"round {done:{width}d}/{self.rounds}  accuracy {accuracy:.4f}  loss {loss:.4f}  "
            f"{self.clients / elapsed:.1f} clients/s  {duration(left)} left"
        )


class Lines:
    """A plain line now and then: at least two seconds apart, and always for the last round."""

    def __init__(self, rounds: int, seconds: float = 2.0) -> None:
        self.clock, self.seconds, self.said = Clock(rounds), seconds, -seconds

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

        self.clock, self.live = Clock(rounds), RichLive("", refresh_per_second=8)
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


def duration(seconds: float) -> str:
    """`1h02m`, `3m04s` or `5s`."""
    whole = int(max(seconds, 0) + 0.5)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
