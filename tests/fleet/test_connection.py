"""Connecting to a cluster, in time or ahead of time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayError

from rayfl.errors import ConfigError, ResourceError
from rayfl.fleet.on_ray import connection, own_ray
from rayfl.fleet.on_ray.connection import EarlyStart, connect_ahead, connect_ray
from rayfl.fleet.on_ray.own_ray import is_own, own_settings
from tests.reliability.drills import ROOT
from tests.sockets import user_environment


class Ray:
    """Stands in for Ray's own functions: what was done, and whether there is a connection; `gate`
    lets one begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import ray

        self.steps: list[Any] = []
        self.there, self.gate = False, threading.Event()
        self.refusal: Exception | None = None
        self.host = "127.0.0.1"
        monkeypatch.setattr(ray, "is_initialized", lambda: self.there)
        monkeypatch.setattr(ray, "init", self.init)
        monkeypatch.setattr(ray, "shutdown", self.shutdown)
        monkeypatch.setattr(
            ray, "nodes", lambda: [{"Alive": True, "NodeManagerAddress": self.host}]
        )
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: self.host)
        # Nobody beyond this machine is asked whether there is a Ray.
        monkeypatch.setattr(connection, "refuse_silent_address", lambda *_: None)

    def init(self, address: str | None, **settings: Any) -> None:
        assert self.gate.wait(10)
        if self.refusal is not None:
            raise self.refusal
        self.steps.append((address, threading.current_thread().name))
        self.there = True

    def shutdown(self) -> None:
        self.steps.append(("shutdown", threading.current_thread().name))
        self.there = False


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Ray:
    return Ray(monkeypatch)


def test_what_was_begun_ahead_is_used_and_ended_by_the_thread_that_began_it(fake: Ray) -> None:
    with connect_ahead({}, "10.0.0.1:6379"):
        assert fake.steps == []
        fake.gate.set()
        with connect_ray("10.0.0.1:6379"):
            assert fake.there
        assert fake.there
    assert fake.steps == [("10.0.0.1:6379", "ray"), ("shutdown", "ray")]
    assert EarlyStart.under_way() is None


def test_wrong_settings_are_refused_without_waiting(fake: Ray) -> None:
    with pytest.raises(ConfigError, match="wrong"), connect_ahead({}, None):
        raise ConfigError("wrong")
    early = EarlyStart.latest
    assert early is not None
    assert early.thread.is_alive()
    fake.gate.set()
    # Whoever comes next waits for its end.
    with connect_ray(None):
        assert [step for step, _ in fake.steps] == ["local", "shutdown", "local"]
    assert not early.thread.is_alive()


@pytest.mark.parametrize(
    "refusal",
    [ConnectionError("nobody there"), RayError("nobody there"), Exception("nobody there")],
)
def test_why_there_is_no_connection_is_told_where_it_is_wanted(
    fake: Ray, refusal: Exception
) -> None:
    """Ray has errors of many kinds for it: that there is no token is a RayError, that a process
    died while it was started a plain one."""
    fake.refusal = refusal
    fake.gate.set()
    told = pytest.raises(ResourceError, match="at somewhere: nobody there")
    with connect_ahead({}, "somewhere"), told, connect_ray("somewhere"):
        pass
    assert EarlyStart.under_way() is None


@pytest.mark.parametrize(("settings", "there"), [({"fleet": "inline"}, False), ({}, True)])
def test_nothing_is_begun_that_nobody_needs(
    settings: dict[str, Any], there: bool, fake: Ray
) -> None:
    fake.there = there
    with connect_ahead(settings, None):
        assert EarlyStart.under_way() is None
    assert fake.steps == []


def test_one_within_another_is_the_same(fake: Ray) -> None:
    fake.gate.set()
    with connect_ahead({}, None), connect_ahead({}, None), connect_ray(None):
        pass
    assert [step for step, _ in fake.steps] == ["local", "shutdown"]


# -- a Ray of our own ----------------------------------------------------------------------------


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A shell that knows nothing of Ray."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # This process may be connected to the Ray that other tests share, whose token Ray would forget.
    monkeypatch.setattr(own_ray, "_read_environment_again", lambda: None)
    return monkeypatch


@pytest.mark.parametrize(
    ("address", "shells", "own"),
    [
        (None, None, True),
        (None, "", True),
        (None, "local", True),
        ("local", "10.0.0.1:6379", True),
        ("auto", None, False),
        ("10.0.0.1:6379", None, False),
        (None, "10.0.0.1:6379", False),
    ],
)
def test_whose_ray_it_is(
    shell: pytest.MonkeyPatch, address: str | None, shells: str | None, own: bool
) -> None:
    if shells is not None:
        shell.setenv("RAY_ADDRESS", shells)
    assert is_own(address) is own


def test_a_cluster_that_runs_on_this_machine_is_not_joined_unasked(
    fake: Ray, shell: pytest.MonkeyPatch
) -> None:
    """Ray itself takes any that it finds for the one that was meant."""
    fake.gate.set()
    with connect_ray(None):
        assert fake.steps == [("local", "MainThread")]


def test_the_environment_is_as_it_was_when_our_ray_has_ended(shell: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    with own_settings():
        assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
        assert (os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"])) == ("token", 64)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "wanted",
    [
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "mine"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/my/token"},
        {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"},
    ],
)
def test_what_a_user_has_set_stays(shell: pytest.MonkeyPatch, wanted: dict[str, str]) -> None:
    for name, value in wanted.items():
        shell.setenv(name, value)
    with own_settings():
        assert {name: os.environ[name] for name in wanted} == wanted
        tokens = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
        assert tokens == set(wanted) & tokens or "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" in wanted


def test_a_token_of_the_user_s_own_is_used(shell: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("mine")
    with own_settings():
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_ray_of_our_own_that_listens_to_others_is_refused(
    fake: Ray, shell: pytest.MonkeyPatch
) -> None:
    fake.host = "10.1.2.3"
    fake.gate.set()
    told = pytest.raises(ResourceError, match="listens to this machine alone; got one at 10")
    with told, connect_ray(None):
        pass
    assert not fake.there
    shell.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    with connect_ray(None):
        assert fake.there


@pytest.mark.parametrize(
    ("host", "mode", "told"),
    [
        ("10.0.0.1", "disabled", True),
        ("10.0.0.1", "token", False),
        ("127.0.0.1", "disabled", False),
    ],
)
def test_a_cluster_whose_doors_are_open_is_said_to_be(
    fake: Ray,
    shell: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    host: str,
    mode: str,
    told: bool,
) -> None:
    shell.setattr(own_ray, "asks_for_token", lambda: mode == "token")
    fake.host = host
    fake.gate.set()
    with connect_ray("10.0.0.1:6379"):
        pass
    assert ("10.0.0.1:6379 asks nobody for a token" in caplog.text) is told


@pytest.mark.parametrize(("mode", "told"), [(None, True), ("token", True), ("disabled", False)])
def test_a_version_of_ray_without_tokens_is_said_to_be_one(
    fake: Ray,
    shell: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str | None,
    told: bool,
) -> None:
    if mode is not None:
        shell.setenv("RAY_AUTH_MODE", mode)
    shell.setattr(own_ray, "asks_for_token", lambda: False)
    fake.gate.set()
    with connect_ray(None):
        pass
    assert ("knows no tokens (2.52 and newer do)" in caplog.text) is told


SCRIPT = """
import ray  # a program of a user's may have done so before
import os, signal
from rayfl.fleet.on_ray.connection import connect_ahead, connect_ray
from rayfl.fleet.on_ray.own_ray import asks_for_token
from tests.reliability.drills import descendants
from tests.sockets import listeners_of
before = signal.getsignal(signal.SIGTERM)
with connect_ahead({}, None), connect_ray(None):
    print(ray.get(ray.remote(lambda: 6 * 7).remote()), signal.getsignal(signal.SIGTERM) is before)
    print(asks_for_token())
    print([each for each in listeners_of(os.getpid()) if not each.loopback])
    # What a terminal or `timeout` sends to the group is for the driver alone.
    print([pid for pid in descendants(os.getpid()) if os.getpgid(pid) == os.getpgrp()])
print(ray.is_initialized(), [name for name in os.environ if "AUTH" in name or "OSX" in name])
"""


def run_script(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    """A program in a shell that knows nothing of Ray; it ends well."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
        env=user_environment(home),
    )
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.slow
def test_a_real_ray_begun_ahead(tmp_path: Path) -> None:
    ended = run_script(SCRIPT, tmp_path)
    assert ended.stdout.splitlines() == ["42 True", "True", "[]", "[]", "False []"]
    assert "SIGTERM" not in ended.stderr
    assert not (tmp_path / ".ray").exists()


STOPPING_SCRIPT = """
import sys
import time
import ray
from rayfl.fleet.on_ray.connection import connect_ray
stopping, asked, heard = False, [], []
def is_stopping():
    asked.append(stopping)
    return stopping
class Listening:
    # Ray asks for pieces of its own processes, too, which it then does not show.
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        heard.append(text)
        return self.stream.write(text)
    def __getattr__(self, name):
        return getattr(self.stream, name)
sys.stdout = Listening(sys.stdout)
@ray.remote
class Talker:
    def talk(self, word):
        print(word, flush=True)
def wait_until(seen):
    while not seen():
        time.sleep(0.01)
with connect_ray(None, is_stopping=is_stopping):
    talker = Talker.remote()
    ray.get(talker.talk.remote("before"))
    wait_until(lambda: "before" in "".join(heard))
    stopping = True
    ray.get(talker.talk.remote("after"))
    wait_until(lambda: True in asked)
print(asked)
"""


@pytest.mark.slow
def test_after_a_stop_ray_s_processes_are_not_heard_any_more(tmp_path: Path) -> None:
    """An actor that was being created as its raylet ended prints a C++ stack."""
    ended = run_script(STOPPING_SCRIPT, tmp_path)
    said = ended.stdout + ended.stderr
    assert "before" in said
    assert "after" not in said
    assert ended.stdout.splitlines()[-1].endswith("True]")
