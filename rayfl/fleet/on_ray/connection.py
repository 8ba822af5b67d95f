"""The connection to a cluster: one that is there already, or a Ray of our own on this machine that
ends with us."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

from rayfl.bits import PORTABLE, is_portable
from rayfl.errors import ResourceError
from rayfl.fleet.on_ray.answering import refuse_silent_address
from rayfl.fleet.on_ray.kept_signals import keep_signal_handlers
from rayfl.fleet.on_ray.own_ray import (
    cluster_settings,
    hide_command_line,
    is_own,
    own_settings,
    refuse_other_machines,
    warn_of_old_ray,
    warn_of_open_door,
)
from rayfl.fleet.on_ray.worker_words import drop_worker_words

HEED_SECONDS = 0.1


class EarlyStart:
    """Ray, started in a thread of its own, which stays: Ray's processes end with the thread that
    started them."""

    latest: ClassVar[EarlyStart | None] = None

    def __init__(self, address: str | None) -> None:
        self.tried, self.over = threading.Event(), threading.Event()
        self.refusal: Exception | None = None
        connection = _open_connection(address, self.over.is_set)
        # A Ray of our own is ended by the thread that started it, whatever becomes of the others. A
        # cluster that has stopped answering must not keep a process from ending.
        self.thread = threading.Thread(
            target=self._keep, args=(connection,), name="ray", daemon=not is_own(address)
        )
        self.thread.start()

    @classmethod
    def under_way(cls) -> EarlyStart | None:
        """The one that others may use, after waiting for the end of an earlier one."""
        if cls.latest is not None and cls.latest.over.is_set():
            cls.latest.thread.join()
            cls.latest = None
        return cls.latest

    def _keep(self, connection: AbstractContextManager[None]) -> None:
        try:
            with connection:
                self.tried.set()
                self.over.wait()
        except Exception as refusal:
            self.refusal = refusal
        finally:
            self.tried.set()

    def wait(self, heed: Callable[[], object]) -> None:
        """Until there is a connection; or the reason why there is none.

        Parameters
        ----------
        heed
            Called meanwhile, again and again; what it raises ends the wait."""
        while not self.tried.wait(HEED_SECONDS):
            heed()
        if self.refusal is not None:
            raise self.refusal


@contextmanager
def connect_ahead(settings: Mapping[str, Any], address: str | None) -> Iterator[None]:
    """Connect while the configuration is being validated, for which torch is imported.

    Settings that turn out to be wrong are refused at once; whatever was being started ends
    afterwards.

    Parameters
    ----------
    settings : Mapping
        The plain values of a configuration; nothing is started for `fleet: inline`.
    address : str or None
        A cluster; by default RAY_ADDRESS, or a Ray of our own.
    """
    if settings.get("fleet", "ray") != "ray" or EarlyStart.under_way():
        yield
        return
    import ray

    if ray.is_initialized():
        yield
        return
    EarlyStart.latest = early = EarlyStart(address)
    try:
        yield
    finally:
        early.over.set()
    early.thread.join()


@contextmanager
def connect_ray(
    address: str | None,
    heed: Callable[[], object] = lambda: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """A connection to the cluster that is there, or a Ray of our own on this machine that ends with
    us.

    Parameters
    ----------
    address : str or None
        A cluster; by default RAY_ADDRESS, or a Ray of our own.
    heed : callable
        Called while another thread connects; what it raises ends the wait.
    is_stopping : callable
        As soon as it is so, what Ray's processes print is not shown any more.
    """
    import ray

    if (early := EarlyStart.under_way()) is not None:
        early.wait(heed)
    shared = ray.is_initialized()
    connection = nullcontext() if shared else _open_connection(address)
    with connection, drop_worker_words(wanted=lambda: not is_stopping()):
        yield


@contextmanager
def _open_connection(
    address: str | None, is_over: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Only our own connection ends, and with it a Ray that it started; a cluster stays."""
    if is_own(address):
        with own_settings(), _ray_session("local", "this machine", include_dashboard=False):
            refuse_other_machines()
            warn_of_old_ray()
            yield
        return
    place = address or os.environ["RAY_ADDRESS"]
    refuse_silent_address(place, is_over)
    # Its processes inherit nothing from this one.
    portable = {"runtime_env": {"env_vars": dict(PORTABLE)}} if is_portable() else {}
    with cluster_settings(place), _ray_session(address, place, **portable):
        warn_of_open_door(place)
        yield


@contextmanager
def _ray_session(address: str | None, place: str, **settings: Any) -> Iterator[None]:
    """From `ray.init` to `ray.shutdown`; or a sentence why there is none."""
    import ray

    hide_command_line()
    try:
        with keep_signal_handlers(connecting=True):
            ray.init(address, logging_level=logging.WARNING, **settings)
    except Exception as error:  # of many kinds: nobody there, no token, a process that has died
        raise ResourceError(f"no Ray could be reached or started at {place}: {error}") from error
    try:
        yield
    finally:
        with keep_signal_handlers(), drop_worker_words():
            ray.shutdown()
