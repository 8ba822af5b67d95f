"""What clients are held to: time, memory and norms."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rayfl.errors import ResourceError
from rayfl.fleet import safeguards
from rayfl.fleet.absurd import LARGEST, find_absurd
from rayfl.fleet.executor import Done
from rayfl.fleet.memory import MemoryLimit, is_out_of_memory, measure_own_memory
from rayfl.fleet.safeguards import LEAST_VISITS, Safeguards, Unfinished, VisitTimes
from rayfl.fleet.sums.peaks import find_peak
from rayfl.fleet.sums.updates import clip_vector
from rayfl.fleet.watch import Overdue, VisitWatch
from tests.fleet import phases

GB = 10**9


# -- time ------------------------------------------------------------------------------------------


def visits(*seconds: float, client: int = 0) -> list[Done]:
    return [Done(client, seconds=each) for each in seconds]


def test_a_multiple_is_of_the_median_of_the_same_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safeguards, "LEAST_SECONDS", 1.0)
    times = VisitTimes(Safeguards(visit_multiple=20.0))
    times.note(phases.update, visits(*[0.2] * (LEAST_VISITS - 1)))
    assert times.limit(phases.update) is None
    times.note(phases.update, visits(5.0))
    assert times.limit(phases.update) == pytest.approx(4.0)
    assert times.limit(phases.describe) is None
    times.note(phases.describe, visits(*[0.001] * LEAST_VISITS))
    assert times.limit(phases.describe) == 1.0


def test_only_visits_that_ended_say_how_long_one_takes() -> None:
    times = VisitTimes(Safeguards(visit_multiple=2.0))
    times.note(phases.update, visits(*[100.0] * 50, client=-1))
    late = Done(0, seconds=100.0, unfinished=Unfinished("late", ""))
    times.note(phases.update, [late] * 50)
    assert times.limit(phases.update) is None


@pytest.mark.parametrize("seconds", [None, 7.0])
def test_seconds_are_what_they_are(seconds: float | None) -> None:
    times = VisitTimes(Safeguards(visit_seconds=seconds))
    times.note(phases.update, visits(*[0.1] * 50))
    assert times.limit(phases.update) == seconds


def test_a_watch_tells_once_of_each_visit_that_is_overdue() -> None:
    told: list[Overdue] = []
    heard = threading.Semaphore(0)

    def hear(overdue: Overdue) -> None:
        told.append(overdue)
        heard.release()

    watch = VisitWatch(hear)
    for clients in ([3], [4, 5]):
        with watch.over([9], 1000.0):
            pass
        with watch.over(clients, 0.05):
            assert heard.acquire(timeout=60)
            time.sleep(0.2)
    assert [overdue.clients for overdue in told] == [[3], [4, 5]]
    # Not where the library waits that it is in.
    assert re.search(r"test_safeguards\.py:\d+, in test_a_watch_tells_once", told[0].where)
    assert not heard.acquire(timeout=0.1)


def test_a_visit_that_is_told_of_is_never_answered() -> None:
    """Though it ends before the process does: it would be in time for one, and late for another."""
    source = (
        "import os, threading, time; from rayfl.fleet.watch import VisitWatch\n"
        "told = threading.Event()\n"
        "def end(overdue): told.set(); time.sleep(0.3); os._exit(7)\n"
        "with VisitWatch(end, fatal=True).over([3], 0.05):\n"
        "    told.wait()\n"
        "print('answered', flush=True)"
    )
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (7, "")


def test_what_holds_pythons_lock_is_ended_all_the_same() -> None:
    source = (
        "import re; from rayfl.fleet import watch; watch.GRACE_SECONDS = 0.2\n"
        "with watch.VisitWatch(print, fatal=True).over([3], 0.2):\n"
        "    re.match('(a+)+$', 'a' * 60 + 'b')"
    )
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert ended.stdout == ""


# -- memory ----------------------------------------------------------------------------------------


def test_memory_is_limited_inside_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MemoryLimit(measure_own_memory() + GB)
    with pytest.raises(MemoryError) as caught, limit.hold():
        np.ones(30 * GB, np.uint8)
    assert is_out_of_memory(caught.value)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with limit.hold():
        np.ones(GB // 10, np.uint8)


def test_a_limit_below_what_a_process_has_is_refused() -> None:
    match = r"an actor takes \d\.\d\d GB before its first visit; got a limit of 0.01 GB\. Raise"
    with pytest.raises(ResourceError, match=match):
        MemoryLimit(GB // 100)


@pytest.mark.parametrize(
    ("platform", "match"),
    [("darwin", "needs Linux; got darwin"), ("linux", "needs a kernel that holds processes to")],
)
def test_systems_without_the_limit_are_refused(
    platform: str, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(ResourceError, match=match):
        MemoryLimit(measure_own_memory() + GB)


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_torch_says_it_in_its_own_way(error: Exception, known: bool) -> None:
    assert is_out_of_memory(error) == known


# -- norms -----------------------------------------------------------------------------------------


def outcomes(peaks: Sequence[float], first: int = 0) -> list[Done]:
    return [Done(first + at, peaks={"w": peak}) for at, peak in enumerate(peaks)]


@pytest.mark.parametrize(
    ("peaks", "absurd"),
    [
        ([], {}),
        ([1.0], {}),
        ([1e38], {}),
        ([1.0, 2.0, 3.0], {}),
        ([1.0, 2.0, 25.0], {2: 20.0}),
        ([1.0, 11.0], {1: 10.0}),
        ([0.0, 0.0, 5.0], {}),
        ([0.0, 0.0, 3e38], {2: LARGEST / 3}),
        ([2e38] * 3, dict.fromkeys(range(3), LARGEST / 3)),
        ([1e38, 1.0, 1.0, 1.0, 1.0, 1.0], {0: 10.0}),
    ],
)
def test_what_is_absurd_beside_a_cohort(peaks: list[float], absurd: dict[int, float]) -> None:
    found = find_absurd(outcomes(peaks), 10.0)
    assert found == {client: {"w": most} for client, most in absurd.items()}


def test_the_server_and_what_is_not_finite_are_not_compared() -> None:
    others = [Done(-1, peaks={"w": 1e30}), Done(7, peaks={"w": float("inf")}, finite=False)]
    assert find_absurd([*outcomes([1.0, 1.0]), *others], 10.0) == {}


def test_vectors_are_judged_name_by_name() -> None:
    done = [Done(k, peaks={"dw": 1.0, "dc": 1e6 if k == 2 else 1.0}) for k in range(4)]
    assert find_absurd(done, 10.0) == {2: {"dc": 10.0}}


@given(
    st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=20),
    st.floats(1e-6, 0.99),
)
def test_a_clipped_vector_is_as_large_as_told_and_points_where_it_did(
    values: list[float], share: float
) -> None:
    vector = np.array(values, np.float32)
    peak = find_peak(vector)
    if peak < 1e-20:
        return
    kept = vector.copy()
    clipped = clip_vector(vector, share * peak)
    assert clipped.dtype == np.float32
    assert find_peak(clipped) == pytest.approx(share * peak, rel=1e-6)
    assert np.array_equal(vector, kept)
    assert np.array_equal(np.signbit(clipped), np.signbit(vector))
