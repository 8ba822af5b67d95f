"""Whether somebody answers at an address, and what is told if nobody does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl.errors import ResourceError
from rayfl.fleet.on_ray import answering
from rayfl.fleet.on_ray.answering import keeps_to_loopback, refuse_silent_address
from tests.commands import free_ports

RAYFL = Path(sys.executable).with_name("rayfl")
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address where every connection gets the same answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(request.param)

    thread = threading.Thread(target=answer)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize("server", [SETTINGS], indirect=True)
@pytest.mark.parametrize("before", ["", "ray://"])
def test_a_server_of_grpc_answers(server: str, before: str) -> None:
    assert _is_admitted(before + server)


@pytest.mark.parametrize("server", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], indirect=True)
def test_something_else_does_not(server: str) -> None:
    rule = f"a Ray answers at {server}; got something else that listens there. Start one there"
    with pytest.raises(ResourceError, match=rule.replace("(", r"\(")):
        refuse_silent_address(server, patience=0.5)


def test_nobody_does_not() -> None:
    [port] = free_ports(1)
    with pytest.raises(ResourceError, match="got connection refused"):
        refuse_silent_address(f"127.0.0.1:{port}", patience=0.5)


@pytest.mark.parametrize("address", ["auto", "local", "somewhere"])
def test_what_is_no_place_is_left_to_ray(address: str) -> None:
    assert _is_admitted(address)


def _is_admitted(address: str) -> bool:
    try:
        refuse_silent_address(address, patience=5.0)
    except ResourceError:
        return False
    return True


def test_waiting_ends_where_nobody_waits_any_more() -> None:
    [port] = free_ports(1)
    with pytest.raises(ResourceError):
        refuse_silent_address(f"127.0.0.1:{port}", is_over=lambda: True, patience=1e6)


@pytest.mark.parametrize(
    ("host", "named"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"), ("::1", "[::1]")],
)
def test_a_head_that_listens_to_its_own_machine_alone(host: str, named: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert keeps_to_loopback(f"{named}:{port}")
        assert not keeps_to_loopback(f"10.0.0.1:{port}")
    assert not keeps_to_loopback(f"{named}:{port}")
    assert not keeps_to_loopback("auto")


def test_a_head_that_listens_to_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel's tables, for a test opens no port to others."""
    tables = [("00000000", 6379), ("0100007F", 6380), ("0" * 32, 6381)]
    # 127.0.0.1 as an address of IPv6; one of another machine's that ends as loopback does.
    tables += [("0000000000000000FFFF00000100007F", 6382), (f"B80D0120{'0' * 16}0100007F", 6383)]
    monkeypatch.setattr(answering, "_list_listeners", lambda: tables)
    alone = [port for _, port in tables if keeps_to_loopback(f"127.0.0.1:{port}")]
    assert alone == [6380, 6382]


@pytest.mark.slow
def test_a_run_on_a_cluster_that_is_not_there_is_refused_in_a_sentence(tmp_path: Path) -> None:
    [port] = free_ports(1)
    words = [str(RAYFL), "run", "quickstart", "--quiet", "--address", f"127.0.0.1:{port}"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 6
    assert done.stderr.startswith(f"error: a Ray answers at 127.0.0.1:{port}; got connection ref")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("outputs/runs/*"))


@pytest.mark.slow
def test_sigterm_ends_a_driver_whose_cluster_does_not_answer(tmp_path: Path) -> None:
    """Whoever listens there takes the connection, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        words = [str(RAYFL), "run", "quickstart", "--quiet", "--address", address]
        driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        connection, _ = listener.accept()
        time.sleep(0.2)
        driver.send_signal(signal.SIGTERM)
        _, said = driver.communicate()
        connection.close()
    assert driver.returncode == 128 + signal.SIGTERM
    assert said == "stopped by SIGTERM\n"
    assert not os.path.lexists(tmp_path / "mlflow.db")
