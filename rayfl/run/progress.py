"""What a person sees while a run goes on: a bar on a terminal and in a notebook, plain lines in a
log.

Before the first round there are notes: what runs, then what is being done while nothing moves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rayfl.tracking.tracker import Tracker

BAR = 16
"""Letters of a bar."""
FULL = ("\u2501", "\u2500")
PLAIN = ("#", "-")
"""What a bar is made of, where the terminal has letters beyond ASCII and where not."""


class Progress(Protocol):
    """Told of every finished round, and of work between rounds; the first note says what runs."""

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


# -- rates -----------------------------------------------------------------------------------------


class RoundView(NamedTuple):
    """How far a run is, and what there is to say of it."""

    done: int
    rounds: int
    facts: str
    """Accuracy, the best so far, loss, clients a second."""
    elapsed: float
    """Seconds since the first round began."""
    left: str
    """When it will be over."""

    @property
    def head(self) -> str:
        """`round  7/30`"""
        return f"round {self.done:{len(str(self.rounds))}d}/{self.rounds}"

    @property
    def line(self) -> str:
        """All of it."""
        parts = [self.head, self.facts, format_duration(self.elapsed), self.left]
        return "  ".join(filter(None, parts))


class RoundClock:
    """Rates and remaining time from the rounds seen so far.

    The first round that is seen takes imports and the start of actors along: once there is another
    one it does not count."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.started = time.monotonic()
        self.first: tuple[int, float] | None = None
        self.clients = 0.0
        self.best: float | None = None
        self.latest: dict[str, float] = {}

    def read(self, record: Mapping[str, Any]) -> RoundView:
        """What one more round says."""
        done = int(record["round"])
        metrics = record["metrics"]
        self.latest |= {name: metrics[name] for name in metrics if name.startswith("test/")}
        elapsed = self._measure_elapsed(record)
        if self.first is None:
            counted, seconds = done, elapsed
            self.first = (done, elapsed)
            clients = metrics.get("clients/participants", 0)
        else:
            counted, seconds = done - self.first[0], elapsed - self.first[1]
            self.clients += metrics.get("clients/participants", 0)
            clients = self.clients
        left = (self.rounds - done) * seconds / max(counted, 1)
        bound = "at most " if self.first[0] == done else ""
        rate = clients / max(seconds, 1e-9)
        return RoundView(
            done,
            self.rounds,
            self._tell_facts(rate),
            elapsed,
            f"{bound}{format_duration(left)} left" if done < self.rounds else "",
        )

    def _measure_elapsed(self, record: Mapping[str, Any]) -> float:
        # A run that is taken up again tells of its earlier rounds in no time; it knows itself what
        # they took.
        known = record["clock"].get("time/elapsed_s")
        return float(known or max(time.monotonic() - self.started, 1e-9))

    def _tell_facts(self, rate: float) -> str:
        """What was measured last, if anything was."""
        facts = []
        if "test/accuracy" in self.latest:
            accuracy = self.latest["test/accuracy"]
            self.best = accuracy if self.best is None else max(self.best, accuracy)
            facts.append(f"accuracy {accuracy:.4f} (best {self.best:.4f})")
        if "test/loss" in self.latest:
            facts.append(f"loss {self.latest['test/loss']:.4f}")
        return "  ".join([*facts, f"{rate:.1f} clients/s"])


# -- kinds -----------------------------------------------------------------------------------------


class Lines:
    """A plain line now and then: at least two seconds apart, and always for the last round."""

    def __init__(self, rounds: int, seconds: float = 2.0) -> None:
        self.clock = RoundClock(rounds)
        self.seconds = seconds
        self.said = -seconds

    def round(self, record: Mapping[str, Any]) -> None:
        sight = self.clock.read(record)
        if time.monotonic() - self.said >= self.seconds or record["round"] == self.clock.rounds:
            print(sight.line, flush=True)
            self.said = time.monotonic()

    def note(self, text: str) -> None:
        if time.monotonic() - self.said >= self.seconds:
            print(text, flush=True)
            self.said = time.monotonic()

    def close(self) -> None:
        """Nothing to close."""


class Live:
    """One line that is redrawn in place, with what runs above it."""

    def __init__(self, rounds: int, console: Console | None = None) -> None:
        from rich.live import Live as RichLive
        from rich.spinner import Spinner

        self.clock = RoundClock(rounds)
        self.spinner = Spinner("dots")
        self.about: str | None = None
        self.phase = ""
        self.since = time.monotonic()
        self.sight: RoundView | None = None
        self.live = RichLive(get_renderable=self._draw, console=console, refresh_per_second=8)
        self.live.start()

    def round(self, record: Mapping[str, Any]) -> None:
        self.sight = self.clock.read(record)
        self.phase = ""
        self.since = time.monotonic()

    def note(self, text: str) -> None:
        if self.about is None:
            self.about = text
            self.live.console.print(text, highlight=False)
            return
        self.phase = text
        self.since = time.monotonic()

    def close(self) -> None:
        # What was done before a round that never came is of no interest any more.
        self.phase = ""
        self.live.stop()

    def _draw(self) -> RenderableType:
        """What is being done, or how far it is."""
        waited = time.monotonic() - self.since
        if self.phase:
            self.spinner.update(text=f"{self.phase}  {format_duration(waited)}")
            return self.spinner
        return "" if self.sight is None else self._draw_bar(self.sight, waited)

    def _draw_bar(self, sight: RoundView, waited: float) -> RenderableType:
        from rich.text import Text

        # A round that is over does not go on.
        ticking = 0.0 if sight.done >= sight.rounds else waited
        elapsed = format_duration(sight.elapsed + ticking)
        times = ", ".join(filter(None, [elapsed, sight.left]))
        full, empty = FULL if self.live.console.encoding.startswith("utf") else PLAIN
        done = BAR * sight.done // max(sight.rounds, 1)
        # Where there is no room for all, the facts at the end are cut.
        return Text.assemble(
            f"{sight.head}  ",
            (full * done, "green"),
            (empty * (BAR - done), "bright_black"),
            f"  {times}  {sight.facts}",
            no_wrap=True,
            overflow="ellipsis",
        )


class InNotebook:
    """A bar that is redrawn in the output of a notebook's cell."""

    def __init__(self, rounds: int) -> None:
        from IPython.display import HTML, display

        self.clock = RoundClock(rounds)
        self.html = HTML
        self.about: str | None = None
        self.sight: RoundView | None = None
        self.drawn = 0.0
        self.handle = display(HTML(""), display_id=True)

    def round(self, record: Mapping[str, Any]) -> None:
        self.sight = self.clock.read(record)
        # Thousands of short rounds would keep the browser from anything else.
        if time.monotonic() - self.drawn >= 0.1:
            self._draw(self.sight.line)

    def note(self, text: str) -> None:
        if self.about is None:
            self.about = text
        else:
            self._draw(text)

    def close(self) -> None:
        self._draw("" if self.sight is None else self.sight.line)

    def _draw(self, text: str) -> None:
        self.drawn = time.monotonic()
        done = 0 if self.sight is None else self.sight.done
        bar = f'<progress value="{done}" max="{self.clock.rounds}"></progress> '
        about = f"<div>{escape(self.about or '')}</div>"
        shown = f'{about}{bar}<span style="font-family: monospace">{escape(text)}</span>'
        self.handle.update(self.html(shown))


def progress_for(rounds: int, quiet: bool) -> Progress:
    """The kind that fits where the output goes.

    Parameters
    ----------
    rounds : int
        Of the whole run.
    quiet : bool
        Say nothing at all.
    """
    if quiet:
        return Silent()
    if is_notebook():
        return InNotebook(rounds)
    return Live(rounds) if sys.stdout.isatty() else Lines(rounds)


def choose_progress(wanted: Progress | bool | None, rounds: int) -> Progress:
    """What a caller from Python gets.

    Parameters
    ----------
    wanted : Progress or bool or None
        One's own; True or False; or None for what fits: something where a person looks on, nothing
        in a script whose output goes into a file.
    rounds : int
        Of the whole run.
    """
    if wanted is None:
        wanted = is_watched()
    return progress_for(rounds, not wanted) if isinstance(wanted, bool) else wanted


Doing = Callable[[str], AbstractContextManager[object]]
"""Says what is being done for as long as it lasts."""


def choose_doing(wanted: Progress | bool | None) -> Doing:
    """How work before there is a run is told: on a terminal by a line that goes when it is done,
    and elsewhere not.

    Parameters
    ----------
    wanted : Progress or bool or None
        As for `choose_progress`; who brings one of his own is told of the run alone.
    """
    told = wanted is None or wanted is True
    return _show_status if told and sys.stdout.isatty() else _keep_still


def _keep_still(_: str) -> AbstractContextManager[object]:
    return nullcontext()


def _show_status(text: str) -> AbstractContextManager[object]:
    from rich.console import Console

    return Console().status(text)


def is_watched() -> bool:
    """Whether a person looks on: at a terminal, or at a notebook."""
    return is_notebook() or sys.stdout.isatty()


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


def format_duration(seconds: float) -> str:
    """`1h02m`, `3m04s` or `5s`."""
    whole = int(max(seconds, 0) + 0.5)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
