"""A sweep without a machine ends with a sentence, also while Tune waits."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from rayfl.errors import ResourceError
from rayfl.tuning import node_watch
from rayfl.tuning.book import Book
from rayfl.tuning.node_watch import PATIENCE_LOOKS, watch_nodes
from rayfl.tuning.schema import read_sweep
from rayfl.tuning.stopping import stop_by_signals


@pytest.fixture
def book(tmp_path: Path) -> Book:
    settings = {
        "name": "watched",
        "set": {"output": str(tmp_path)},
        "search": {"training.lr": {"grid": [0.1]}},
    }
    return Book.begun(read_sweep(settings, tmp_path), resume=False)


@pytest.fixture
def gcs() -> Iterator[str]:
    """An address where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "LOOK_SECONDS", 0.01)


def refuse_to_answer() -> list[dict[str, bool]]:
    raise ConnectionError("nobody keeps a list")


@pytest.mark.parametrize("look", [lambda: [{"Alive": False}] * 2, refuse_to_answer])
def test_where_nobody_is_alive_for_a_while_the_sweep_is_over(
    look: Callable[[], list[dict[str, bool]]],
    book: Book,
    gcs: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "nodes", look)
    told = pytest.raises(ResourceError, match=r"no node that is alive\. Go on with it: rayfl sweep")
    with told, stop_by_signals(book) as stop, watch_nodes(book, stop, gcs):
        time.sleep(60)
    assert stop.asked is None
    assert not book.stop_file.exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_cluster_may_be_without_a_node_for_a_moment(
    book: Book, gcs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [False] * (PATIENCE_LOOKS - 1) + [True]
    seen: list[bool] = []

    def look() -> list[dict[str, bool]]:
        seen.append(looks[len(seen) % len(looks)])
        return [{"Alive": seen[-1]}]

    monkeypatch.setattr(ray, "nodes", look)
    with stop_by_signals(book) as stop, watch_nodes(book, stop, gcs):
        while len(seen) < 3 * len(looks):
            time.sleep(0.01)
    assert stop.failure is None


def test_a_sweep_in_another_thread_leaves_the_program_alone(
    book: Book, gcs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal that wakes the main thread would end a program that has no handler for it."""
    looked: list[bool] = []

    def look() -> list[dict[str, bool]]:
        looked.append(True)
        return []

    monkeypatch.setattr(ray, "nodes", look)

    def sweep() -> None:
        with stop_by_signals(book) as stop, watch_nodes(book, stop, gcs):
            time.sleep(0.2)

    thread = threading.Thread(target=sweep)
    thread.start()
    thread.join()
    assert looked == []


DEAF_SCRIPT = """
import signal
import sys
import time
from pathlib import Path
from rayfl.tuning import node_watch
from rayfl.tuning.book import Book
from rayfl.tuning.schema import read_sweep
from rayfl.tuning.stopping import stop_by_signals
node_watch.LOOK_SECONDS, node_watch.FAREWELL_SECONDS = 0.01, 0.2
place = Path(sys.argv[1])
settings = {"name": "deaf", "set": {"output": str(place)}}
search = {"training.lr": {"grid": [0.1]}}
book = Book.begun(read_sweep({**settings, "search": search}, place), resume=False)
# As compiled code that waits: no handler of Python's is called.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with stop_by_signals(book) as stop, node_watch.watch_nodes(book, stop, sys.argv[2]):
    time.sleep(100)
"""


def test_a_main_thread_that_waits_for_a_dead_gcs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        nobody = f"127.0.0.1:{once.getsockname()[1]}"
    ended = subprocess.run(
        [sys.executable, "-c", DEAF_SCRIPT, str(tmp_path), nobody],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == ResourceError.exit_code, ended.stderr
    assert "got no node that is alive. Go on with it: rayfl sweep" in ended.stderr
