"""Connecting to a cluster, in time or ahead of time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from rayfl.errors import ConfigError, ResourceError
from rayfl.fleet.on_ray.connection import EarlyStart, ahead, connected


class Ray:
    """Stands in for Ray's own functions: what was done, and whether there is a connection; `gate`
    lets one begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import ray

        self.steps: list[Any] = []
        self.there, self.gate = False, threading.Event()
        self.refusal: Exception | None = None
        monkeypatch.setattr(ray, "is_initialized", lambda: self.there)
        monkeypatch.setattr(ray, "init", self.init)
        monkeypatch.setattr(ray, "shutdown", self.shutdown)

    def init(self, **settings: Any) -> None:
        assert self.gate.wait(10)
        if self.refusal is not None:
            raise self.refusal
        self.steps.append((settings.get("address", "own"), threading.current_thread().name))
        self.there = True

    def shutdown(self) -> None:
        self.steps.append(("shutdown", threading.current_thread().name))
        self.there = False


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Ray:
    return Ray(monkeypatch)


def test_what_was_begun_ahead_is_used_and_ended_by_the_thread_that_began_it(fake: Ray) -> None:
    with ahead({}, "10.0.0.1:6379"):
        assert fake.steps == []
        fake.gate.set()
        with connected("10.0.0.1:6379"):
            assert fake.there
        assert fake.there
    assert fake.steps == [("10.0.0.1:6379", "ray"), ("shutdown", "ray")]
    assert EarlyStart.under_way() is None


def test_wrong_settings_are_refused_without_waiting(fake: Ray) -> None:
    with pytest.raises(ConfigError, match="wrong"), ahead({}, None):
        raise ConfigError("wrong")
    early = EarlyStart.latest
    assert early is not None
    assert early.thread.is_alive()
    fake.gate.set()
    # Whoever comes next waits for its end.
    with connected(None):
        assert [step for step, _ in fake.steps] == ["own", "shutdown", "own"]
    assert not early.thread.is_alive()


def test_why_there_is_no_connection_is_told_where_it_is_wanted(fake: Ray) -> None:
    fake.refusal = ConnectionError("nobody there")
    fake.gate.set()
    told = pytest.raises(ResourceError, match="at somewhere: nobody there")
    with ahead({}, "somewhere"), told, connected("somewhere"):
        pass
    assert EarlyStart.under_way() is None


@pytest.mark.parametrize(("settings", "there"), [({"fleet": "inline"}, False), ({}, True)])
def test_nothing_is_begun_that_nobody_needs(
    settings: dict[str, Any], there: bool, fake: Ray
) -> None:
    fake.there = there
    with ahead(settings, None):
        assert EarlyStart.under_way() is None
    assert fake.steps == []


def test_one_within_another_is_the_same(fake: Ray) -> None:
    fake.gate.set()
    with ahead({}, None), ahead({}, None), connected(None):
        pass
    assert [step for step, _ in fake.steps] == ["own", "shutdown"]


SCRIPT = """
import signal, sys
from rayfl.fleet.on_ray.connection import ahead, connected
before = signal.getsignal(signal.SIGTERM)
with ahead({}, None), connected(None):
    import ray
    print(ray.get(ray.remote(lambda: 6 * 7).remote()), signal.getsignal(signal.SIGTERM) is before)
print(ray.is_initialized())
"""


@pytest.mark.slow
def test_a_real_ray_begun_ahead() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["42", "True", "False"]
    assert "SIGTERM" not in ended.stderr
