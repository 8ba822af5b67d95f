"""The connection to a cluster: one that is there already, or a Ray of our own on this machine that
ends with us."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from rayfl.errors import ResourceError
from rayfl.fleet.on_ray.kept_signals import keep_signal_handlers

OWN_RAY = {
    # It listens on loopback alone; its own default on Linux is every interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Its first try to reach the store, which it has just started, comes too early; the second one,
    # in a second.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
}


class EarlyStart:
    """Ray, started in a thread of its own, which stays: Ray's processes end with the thread that
    started them."""

    latest: ClassVar[EarlyStart | None] = None

    def __init__(self, connect: Callable[[], object]) -> None:
        self.tried, self.over = threading.Event(), threading.Event()
        self.refusal: Exception | None = None
        self.thread = threading.Thread(target=self._keep, args=(connect,), name="ray")
        self.thread.start()

    @classmethod
    def under_way(cls) -> EarlyStart | None:
        """The one that others may use, after waiting for the end of an earlier one."""
        if cls.latest is not None and cls.latest.over.is_set():
            cls.latest.thread.join()
            cls.latest = None
        return cls.latest

    def _keep(self, connect: Callable[[], object]) -> None:
        import ray

        try:
            connect()
        except Exception as refusal:
            self.refusal = refusal
        finally:
            self.tried.set()
        self.over.wait()
        with keep_signal_handlers():
            ray.shutdown()

    def wait(self) -> None:
        """Until there is a connection; or the reason why there is none."""
        self.tried.wait()
        if self.refusal is not None:
            raise self.refusal


@contextmanager
def ahead(settings: Mapping[str, Any], address: str | None) -> Iterator[None]:
    """Connect while the configuration is being validated, for which torch is imported.

    Settings that turn out to be wrong are refused at once; whatever was being started ends
    afterwards."""
    import ray

    if settings.get("fleet", "ray") != "ray" or EarlyStart.under_way() or ray.is_initialized():
        yield
        return
    EarlyStart.latest = early = EarlyStart(lambda: connect(address))
    try:
        yield
    finally:
        early.over.set()
    early.thread.join()


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to the cluster that is there, or a Ray of our own on this machine that ends with
    us."""
    import ray

    if (early := EarlyStart.under_way()) is not None:
        early.wait()
    if ray.is_initialized():
        yield
        return
    connect(address)
    try:
        yield
    finally:
        # Only our own connection ends, and with it a Ray that it started; a cluster stays.
        with keep_signal_handlers():
            ray.shutdown()


def connect(address: str | None) -> None:
    """Connect, or say in a sentence why it cannot be done."""
    own = address is None and "RAY_ADDRESS" not in os.environ
    if own:
        for name, value in OWN_RAY.items():
            os.environ.setdefault(name, value)
    import ray

    where: dict[str, Any] = {"include_dashboard": False} if own else {"address": address}
    try:
        with keep_signal_handlers():
            ray.init(**where, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = address or os.environ.get("RAY_ADDRESS", "this machine")
        raise ResourceError(f"no Ray could be reached or started at {place}: {error}") from error
