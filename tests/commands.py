"""Ray's commands and ports, for tests that start clusters of their own."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

BIN = Path(sys.executable).parent


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def environment() -> dict[str, str]:
    """For processes of a cluster that a test starts by hand: that cluster and no other; `python` is
    the one that runs the tests."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in {"RAY_ADDRESS", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_URI"}
    }
    return {
        **inherited,
        # Node, driver and submitter would have to be given one token: docs/cluster.md has its test.
        "RAY_AUTH_MODE": "disabled",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False
