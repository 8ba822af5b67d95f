"""How a run is told to stop: SIGINT, SIGTERM, or a caller's word."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayfl.errors import Stopped

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Stopped):
    """The driver was told to stop; `directory` is where the run can be taken up again."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.directory: Path | None = None


class Stop:
    """What SIGINT and SIGTERM do: interrupt at once, or, while Ray's own code runs, at the next
    `heed`.

    Attributes
    ----------
    asked : int or None
        The signal that came; a caller whose thread gets no signals sets it.
    directory : Path or None
        The run that is under way, for whoever reads how to go on.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.patient = False
        self.directory: Path | None = None

    def __call__(self, number: int, _: object) -> None:
        # A second one must not disturb the checkpoint that the first one asked for.
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)
        # In the moment between Ray's taking SIGTERM and its being taken back, Ray's own handler
        # was first, and has set an alarm that would abort.
        if signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None):
            signal.alarm(0)
        self.asked = number
        if not self.patient:
            self.heed()

    def heed(self) -> None:
        """Raise what was asked for."""
        if self.asked is not None:
            raise Interrupted(self.asked)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Exceptions must not be thrown into the middle of Ray's compiled code, which would mangle
        them."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False


_outermost: Stop | None = None


@contextmanager
def stop_on_signals(stop: Stop | None = None) -> Iterator[Stop]:
    """SIGINT and SIGTERM end what is inside in good order, where this is the main thread and so may
    handle them.

    One within another is the same one, unless it is told of a `Stop` of its own."""
    global _outermost
    if threading.current_thread() is not threading.main_thread():
        yield stop or Stop()
        return
    if _outermost is not None and stop is None:
        yield _outermost
        return
    chosen = stop or Stop()
    above, _outermost = _outermost, chosen
    before = {number: signal.signal(number, chosen) for number in STOPPING}
    try:
        yield chosen
    except Interrupted as interruption:
        interruption.directory = interruption.directory or chosen.directory
        raise
    finally:
        _outermost = above
        # Asked to stop, the process is on its way out, and is not to be asked again before it is.
        if chosen.asked is None or above is None:
            for number, handler in before.items():
                signal.signal(number, handler)


__all__ = ["Interrupted", "Stop", "stop_on_signals"]
