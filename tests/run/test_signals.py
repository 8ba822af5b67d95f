"""What SIGINT and SIGTERM do, in one stoppable block and in one within another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rayfl.errors import StorageError
from rayfl.run.signals import STOPPING, Interrupted, Stop, stop_on_signals

PATIENCE = 60.0


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOPPING]


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_ends_the_block_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = handlers()
    stop = Stop()
    stop.directory = Path("here")
    with pytest.raises(Interrupted, match=number.name) as ended, stop_on_signals(stop):
        os.kill(os.getpid(), number)
    assert (ended.value.number, ended.value.directory) == (number, Path("here"))
    assert handlers() == before


def test_a_second_signal_does_not_disturb_what_the_first_one_asked_for() -> None:
    def block() -> None:
        with stop_on_signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                for number in STOPPING:
                    os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="SIGTERM"):
        block()


def test_a_patient_one_waits_for_its_moment() -> None:
    def block() -> None:
        with stop_on_signals() as stop:
            with stop.later():
                os.kill(os.getpid(), signal.SIGTERM)
                assert stop.asked == signal.SIGTERM
            stop.heed()

    with pytest.raises(Interrupted, match="SIGTERM"):
        block()


def test_who_asks_in_the_last_moment_of_patience_is_heeded() -> None:
    def block() -> None:
        with stop_on_signals() as stop, stop.later():
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM"):
        block()


def test_what_goes_wrong_after_a_signal_is_no_news() -> None:
    """Ray's processes get a signal of the terminal's, too, and Ray complains of their death."""

    def block() -> None:
        with stop_on_signals() as stop, stop.later():
            os.kill(os.getpid(), signal.SIGTERM)
            raise OSError("the node timed out")

    with pytest.raises(Interrupted, match="SIGTERM"):
        block()


class Mortal:
    """Is told to stop in its finaliser, where Python drops what is raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)


def test_a_stop_that_is_lost_in_a_finaliser_is_asked_for_again() -> None:
    before, hook = handlers(), sys.unraisablehook

    def block() -> None:
        with stop_on_signals():
            Mortal()
            time.sleep(PATIENCE)
            raise AssertionError("the stop was lost")

    with pytest.raises(Interrupted, match="SIGTERM"):
        block()
    assert (handlers(), sys.unraisablehook) == (before, hook)


def test_what_else_is_lost_is_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(str(lost.exc_value)))

    class Clumsy:
        def __del__(self) -> None:
            raise ValueError("dropped")

    with stop_on_signals():
        Clumsy()
    assert told == ["dropped"]


LEAVING = """
import atexit, os, signal, sys
from rayfl.run.signals import stop_on_signals

def tell():
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)

atexit.register(tell)
with stop_on_signals(to_the_end=True):
    pass
tell()
sys.exit(3)
"""


def test_a_process_that_leaves_keeps_its_code() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")


def test_one_within_another_is_the_same_and_says_where_to_go_on() -> None:
    before = handlers()

    def command() -> None:
        with stop_on_signals():
            with stop_on_signals() as inner:
                inner.directory = Path("run")
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="SIGINT") as ended:
        command()
    assert ended.value.directory == Path("run")
    assert handlers() == before


def test_after_an_inner_one_that_was_asked_the_outer_one_is_not_asked_again() -> None:
    before = handlers()

    def command() -> None:
        with stop_on_signals():
            try:
                with stop_on_signals(Stop()):
                    os.kill(os.getpid(), signal.SIGTERM)
            finally:
                for number in STOPPING:
                    os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="SIGTERM"):
        command()
    assert handlers() == before


def test_another_thread_gets_no_signals_but_may_be_told() -> None:
    ended: list[BaseException] = []

    def work() -> None:
        stop = Stop()
        stop.asked = signal.SIGTERM
        try:
            with stop_on_signals(stop) as same:
                same.heed()
        except Interrupted as interruption:
            ended.append(interruption)

    before = handlers()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [str(error) for error in ended] == ["SIGTERM"]
    assert handlers() == before


ALARM = """
import os, signal, time
from rayfl.run.signals import Interrupted, stop_on_signals

try:
    with stop_on_signals():
        signal.alarm(1)  # as Ray's own handler sets one, to abort, before it calls the next
        os.kill(os.getpid(), signal.SIGTERM)
except Interrupted:
    time.sleep(1.5)
    print("alive")
"""


def test_an_alarm_that_would_abort_is_put_off() -> None:
    done = subprocess.run([sys.executable, "-c", ALARM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_the_alarm_of_somebody_who_handles_it_is_left_alone() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        left = signal.setitimer(signal.ITIMER_REAL, 1000)
        with pytest.raises(Interrupted, match="SIGTERM"), stop_on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.setitimer(signal.ITIMER_REAL, *left)[0] > 0
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_stop_that_comes_out_as_another_error_is_a_stop() -> None:
    """So it does where it is raised into compiled code, or in the middle of an import."""

    def import_something() -> None:
        with stop_on_signals(Stop()) as stop:
            stop.directory = Path("somewhere")
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(10)
            except Interrupted as interruption:
                raise ImportError("cannot import name 'torch'") from interruption

    with pytest.raises(Interrupted, match="SIGTERM") as told:
        import_something()
    assert told.value.directory == Path("somewhere")


def test_what_a_person_is_to_mend_is_said_though_a_stop_was_asked_for() -> None:
    def write_last_checkpoint() -> None:
        with stop_on_signals(Stop()):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(10)
            except Interrupted as interruption:
                raise StorageError("the disk is full") from interruption

    with pytest.raises(StorageError, match="the disk is full"):
        write_last_checkpoint()


def test_an_error_without_a_stop_is_one() -> None:
    with pytest.raises(ImportError), stop_on_signals(Stop()):
        raise ImportError("nobody asked for a stop")
