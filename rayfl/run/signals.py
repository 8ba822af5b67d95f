"""How a run is told to stop: SIGINT, SIGTERM, or a caller's word."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

from rayfl.errors import RayflError, Stopped

STOPPING = (signal.SIGINT, signal.SIGTERM)
AGAIN_SECONDS = 0.05
"""After how long a stop that was lost on its way is asked for again."""


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
        self._timer: threading.Timer | None = None

    def __call__(self, number: int, _: object) -> None:
        # A second one must not disturb the checkpoint that the first one asked for.
        for each in STOPPING:
            signal.signal(each, _let_pass)
        # In the moment between Ray's taking SIGTERM and its being taken back, Ray's own handler
        # was first, and has set an alarm that would abort.
        if signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None):
            signal.alarm(0)
        self.asked = number
        if not self.patient:
            self.heed()

    def is_asked(self) -> bool:
        """Whether anything was asked for."""
        return self.asked is not None

    def heed(self) -> None:
        """Raise what was asked for."""
        if self.asked is not None:
            raise Interrupted(self.asked)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Exceptions must not be thrown into the middle of Ray's compiled code, which would mangle
        them. Whoever asked in the last moment of the block is heeded at its end."""
        self.patient = True
        try:
            yield
        except Exception:
            # Ray's processes may have got the same signal: what is said of them is no news.
            self.heed()
            raise
        finally:
            self.patient = False
        self.heed()

    @contextmanager
    def never_lost(self) -> Iterator[None]:
        """Python drops what is raised in a finaliser, or in a callback of compiled code, and says
        so: a stop that is lost in this way is asked for again, at another place."""
        before = sys.unraisablehook

        def ask_again(lost: UnraisableHookArgs) -> None:
            in_main_thread = threading.current_thread() is threading.main_thread()
            if not (in_main_thread and isinstance(lost.exc_value, Interrupted)):
                before(lost)
                return
            for each in STOPPING:
                signal.signal(each, self)
            again = [lost.exc_value.number]
            self._timer = threading.Timer(AGAIN_SECONDS, signal_main_thread, again)
            self._timer.daemon = True
            self._timer.start()

        sys.unraisablehook = ask_again
        try:
            yield
        finally:
            sys.unraisablehook = before
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
                timer.join()


def _let_pass(number: int, _: object) -> None:
    """Unlike SIG_IGN it is not inherited by programs that are started on the way out."""


def signal_main_thread(number: int) -> None:
    """Wake the main thread wherever it waits. An alarm would do so too, but belongs to the program
    that a run may be a part of."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, number)


_outermost: Stop | None = None


@contextmanager
def stop_on_signals(stop: Stop | None = None, to_the_end: bool = False) -> Iterator[Stop]:
    """SIGINT and SIGTERM end what is inside in good order, where this is the main thread and so may
    handle them.

    One within another is the same one, unless it is told of a `Stop` of its own.

    Parameters
    ----------
    stop : Stop, optional
        What the signals do.
    to_the_end : bool
        The process ends with the block: on its way out, with the exit code that it has, it is not
        disturbed any more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop or Stop()
        return
    if _outermost is not None and stop is None:
        yield _outermost
        return
    with _handling_signals(stop or Stop(), to_the_end) as chosen, chosen.never_lost():
        try:
            yield chosen
        except Interrupted as interruption:
            interruption.directory = interruption.directory or chosen.directory
            raise
        except Exception as error:
            # What a person is to mend, a full disk say, is news all the same.
            if chosen.asked is None or isinstance(error, RayflError):
                raise
            # What is raised into an import or into compiled code may come out as another error.
            stopped = Interrupted(chosen.asked)
            stopped.directory = chosen.directory
            raise stopped from error


@contextmanager
def _handling_signals(chosen: Stop, to_the_end: bool) -> Iterator[Stop]:
    global _outermost
    above, _outermost = _outermost, chosen
    before = {number: signal.signal(number, chosen) for number in STOPPING}
    try:
        yield chosen
    finally:
        _outermost = above
        for number, handler in before.items():
            if to_the_end:
                signal.signal(number, signal.SIG_IGN)
            # Asked to stop, the process is on its way out, and is not to be asked again before it
            # is.
            elif chosen.asked is None or above is None:
                signal.signal(number, handler)


__all__ = ["Interrupted", "Stop", "stop_on_signals"]
