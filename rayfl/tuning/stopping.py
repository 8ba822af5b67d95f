"""How a sweep is told to stop, and how it tells its trials."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ray import tune

from rayfl.errors import RayflError
from rayfl.run.signals import Interrupted, signal_main_thread
from rayfl.tuning.book import Book

FAREWELL_SECONDS = 1.2
"""How long trials have for their last checkpoints after SIGTERM. `ray job stop` gives three seconds
in all, and Tune, which would say goodbye to each of its actors, takes more than its share."""
STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopFile(tune.Stopper):  # type: ignore[misc]
    """Ends Tune's search when the sweep's stop file is there."""

    def __init__(self, book: Book) -> None:
        self.file = book.stop_file

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.file.exists()


class SweepStop:
    """What SIGINT and SIGTERM do to a sweep: the first asks all trials to stop, a second one does
    not wait for them. After SIGTERM nobody waits for long.

    Attributes
    ----------
    asked : int or None
        The signal that came first.
    failure : RayflError or None
        What has made the sweep impossible, where another thread has found that out.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self.asked: int | None = None
        self.failure: RayflError | None = None
        self._over = False
        self._patient = False
        self._timer: threading.Timer | None = None

    def __call__(self, number: int, _: object) -> None:
        if self._over:
            return
        if self.failure is not None:
            raise self.failure
        if self.asked is not None:
            if not self._patient:
                raise self.interruption()
            return
        self.asked = number
        _end_alarm_of_ray()
        with suppress(OSError):  # on a full disk trials end with their actors
            self.book.stop_file.touch()
        if number == signal.SIGTERM:
            self._timer = threading.Timer(FAREWELL_SECONDS, signal_main_thread, [number])
            self._timer.daemon = True
            self._timer.start()

    def fail(self, failure: RayflError) -> None:
        """End the sweep from another thread, wherever the main one waits."""
        self.failure = failure
        signal_main_thread(signal.SIGTERM)

    @contextmanager
    def later(self) -> Iterator[None]:
        """While Ray connects, no exception may be thrown into it; what it says of processes that
        got the same signal is no news."""
        self._patient = True
        try:
            yield
        except Exception:
            self.heed()
            raise
        finally:
            self._patient = False
        self.heed()

    def is_asked(self) -> bool:
        """Whether anything was asked for."""
        return self.asked is not None

    def heed(self) -> None:
        """Raise what was asked for."""
        if self.asked is not None:
            raise self.interruption()

    def interruption(self) -> Interrupted:
        """What the command line makes an exit code of. Nothing disturbs the way out: for a moment
        while Ray disconnects, a signal would end the process where it stands."""
        self.end()
        stopped = Interrupted(self.asked or signal.SIGTERM)
        stopped.directory = self.book.directory
        return stopped

    def end(self) -> None:
        """From here on nothing is raised any more."""
        self._over = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()


@contextmanager
def stop_by_signals(book: Book) -> Iterator[SweepStop]:
    """SIGINT and SIGTERM end the sweep in good order, where this is the main thread and so may
    handle them."""
    stop = SweepStop(book)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield stop
    except Exception as error:
        # Ray's compiled code makes another error of what is raised while it waits.
        if stop.failure is not None:
            raise stop.failure from error
        if stop.asked is None:
            raise
        raise stop.interruption() from error
    finally:
        stop.end()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_alarm_of_ray() -> None:
    """In the moment between Ray's taking SIGTERM and its being taken back, Ray's own handler was
    first, and has set an alarm that would abort. An alarm with a handler is somebody else's."""
    if signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None):
        signal.alarm(0)
