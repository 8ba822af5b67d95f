"""Signals reach Python's handlers while Ray is there and after it, whichever thread connects."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

from rayfl.fleet.on_ray.kept_signals import (
    _is_no_complaint,
    _read_action,
    _write_action,
    keep_signal_handlers,
)

PATIENCE = 60.0


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """Numbers of the signals that a handler of this process was called with."""
    numbers: list[int] = []
    interrupt = signal.getsignal(signal.SIGINT)
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)
    signal.signal(signal.SIGINT, interrupt)


def take_signal_below_python() -> None:
    """What Ray does: the kernel is told of another handler, and Python is not."""
    _write_action(signal.SIGTERM, bytes(1024))  # the default action


def handler_of(number: int) -> bytes:
    """The address of the kernel's handler; of the mask behind it, some bytes mean nothing."""
    return _read_action(number)[:8]


def in_thread(work: threading.Thread) -> None:
    work.start()
    work.join()


def keep_and_take() -> None:
    with keep_signal_handlers():
        take_signal_below_python()


@pytest.mark.parametrize("place", ["main", "another"])
def test_a_handler_below_python_is_put_away(place: str, caught: list[int]) -> None:
    before = handler_of(signal.SIGTERM)
    in_thread(threading.Thread(target=keep_and_take)) if place == "another" else keep_and_take()
    assert handler_of(signal.SIGTERM) == before
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught == [signal.SIGTERM]


def test_a_handler_of_python_is_put_away_too(caught: list[int]) -> None:
    with keep_signal_handlers():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught == [signal.SIGTERM]


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_that_the_main_thread_sets_meanwhile_stays(
    ignored: signal.Handlers, caught: list[int]
) -> None:
    """The order of a run in a notebook: Ray begins to connect, then the run takes its signals."""
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, ignored)
    # As a shell does to what it puts in the background: Python has no handler anywhere.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begun, go_on = threading.Event(), threading.Event()

    def connect() -> None:
        with keep_signal_handlers():
            begun.set()
            go_on.wait()
            take_signal_below_python()

    thread = threading.Thread(target=connect)
    thread.start()
    begun.wait()
    signal.signal(signal.SIGTERM, ours)
    go_on.set()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught == [signal.SIGTERM]


@pytest.mark.parametrize("place", ["main", "another"])
def test_it_is_put_away_while_ray_is_still_connecting(place: str, caught: list[int]) -> None:
    """That takes Ray seconds, in which a signal may come."""
    before = handler_of(signal.SIGTERM)
    found: list[bytes] = []

    def connect() -> None:
        with keep_signal_handlers():
            take_signal_below_python()
            waited = time.monotonic() + PATIENCE
            while handler_of(signal.SIGTERM) != before and time.monotonic() < waited:
                time.sleep(0.001)
            found.append(handler_of(signal.SIGTERM))

    in_thread(threading.Thread(target=connect)) if place == "another" else connect()
    assert found == [before]


def test_what_the_main_thread_ignores_meanwhile_stays_ignored(caught: list[int]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def connect() -> None:
        with keep_signal_handlers():
            begun.set()
            go_on.wait()
            take_signal_below_python()

    thread = threading.Thread(target=connect)
    thread.start()
    begun.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ignored = handler_of(signal.SIGTERM)
    go_on.set()
    thread.join()
    assert handler_of(signal.SIGTERM) == ignored
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught == []


def test_ray_sets_no_handler_of_python_s_meanwhile(caught: list[int]) -> None:
    """Its own ends the process with the code 15."""
    from ray._private import utils

    ours, theirs = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    with keep_signal_handlers():
        utils.set_sigterm_handler(lambda *_: None)
        assert signal.getsignal(signal.SIGTERM) is ours
    assert utils.set_sigterm_handler is theirs


def test_only_what_ray_says_of_signals_is_kept_quiet() -> None:
    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("ray", logging.WARNING, "", 0, text, (), None)

    complaint = "SIGTERM handler is not set because current thread is not the main thread."
    assert not _is_no_complaint(record(complaint))
    assert _is_no_complaint(record("The object store is small"))


SCRIPT = """
import os, signal, sys, threading, time
from rayfl.fleet.on_ray.connection import connect_ahead, connect_ray
from rayfl.fleet.on_ray.kept_signals import _read_action

signal.signal(signal.SIGTERM, lambda number, _: print("caught", number, flush=True))
seen, over = set(), threading.Event()

def watch():
    while not over.wait(0.0002):
        seen.add(_read_action(signal.SIGTERM)[:8])

watching = threading.Thread(target=watch)
watching.start()
ours = [_read_action(number)[:8] for number in (signal.SIGTERM, signal.SIGINT)]

def say(moment):
    now = [_read_action(n)[:8] for n in (signal.SIGTERM, signal.SIGINT)]
    print(moment, now == ours, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

for early in (True, False):
    with connect_ahead({"fleet": "ray" if early else "inline"}, None):
        with connect_ray(None):
            say("connected")
            time.sleep(3.5)  # in three seconds Ray's handler would abort
    say("disconnected")
over.set()
watching.join()
print("never another", len(seen) == 1)
"""


@pytest.mark.long
def test_a_real_ray_leaves_signals_alone() -> None:
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    said = ["connected True", "caught 15", "disconnected True", "caught 15"]
    assert ended.stdout.splitlines() == [*said * 2, "never another True"]
    assert "SIGTERM" not in ended.stderr
