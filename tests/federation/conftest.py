"""What the tests of downloads and fetches share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.federation.server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()
