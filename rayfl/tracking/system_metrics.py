"""What the machine does while a run goes on, under the names that MLflow's UI looks for."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from rayfl.errors import StorageError
from rayfl.tracking.tracker import Tracker

log = logging.getLogger("rayfl")

SECONDS = 10.0
"""Between two samples."""
MEGA = 1e6


@contextmanager
def sample_system(tracker: Tracker, wanted: bool = True) -> Iterator[None]:
    """Sample processor, memory, disk and network of this machine now and then, and once at the
    end.

    Parameters
    ----------
    tracker : Tracker
        Where samples go; one that is not enabled gets none.
    wanted : bool
        Whether to sample at all.
    """
    if not wanted or not tracker.enabled:
        yield
        return
    try:
        import psutil
    except ImportError:
        log.warning("the machine is not watched: psutil is missing; pip install psutil")
        yield
        return
    sampler = _Sampler(tracker, psutil)
    sampler.thread.start()
    try:
        yield
    finally:
        sampler.end()


class _Sampler:
    """A thread that samples until it is told to end."""

    def __init__(self, tracker: Tracker, psutil: ModuleType) -> None:
        self.tracker = tracker
        self.psutil = psutil
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._work, name="system metrics", daemon=True)
        traffic = psutil.net_io_counters()
        self.before = (traffic.bytes_recv, traffic.bytes_sent)

    def end(self) -> None:
        """No more samples but the last."""
        self.over.set()
        self.thread.join()

    def _work(self) -> None:
        # A thread's first reading is of nothing; later ones are of the time since the one before.
        self.psutil.cpu_percent()
        step = 0
        while not self.over.wait(SECONDS):
            self._sample(step)
            step += 1
        self._sample(step)

    def _sample(self, step: int) -> None:
        try:
            self.tracker.values(step, self._measure())
        except (OSError, StorageError) as error:  # the run has more to say of a full disk
            log.debug("the machine could not be watched: %s", error)

    def _measure(self) -> dict[str, float]:
        memory = self.psutil.virtual_memory()
        disk = self.psutil.disk_usage(os.sep)
        traffic = self.psutil.net_io_counters()
        measured = {
            "cpu_utilization_percentage": self.psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MEGA,
            "system_memory_usage_percentage": 100 * memory.used / memory.total,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / MEGA,
            "disk_available_megabytes": disk.free / MEGA,
            "network_receive_megabytes": (traffic.bytes_recv - self.before[0]) / MEGA,
            "network_transmit_megabytes": (traffic.bytes_sent - self.before[1]) / MEGA,
        }
        return {f"system/{name}": float(value) for name, value in measured.items()}
