"""Whether anybody answers at a cluster's address, asked before Ray is: Ray itself waits for
minutes, in code that no signal reaches."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from rayfl.errors import ResourceError, broken

PATIENCE = 10.0
"""Seconds for a cluster that is just being started."""
TRY_SECONDS = 2.0
PAUSE_SECONDS = 0.25
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""With this, and empty settings, a client of HTTP/2 begins; Ray speaks gRPC, which is HTTP/2."""
SETTINGS_FRAME = 4
FRAME_HEAD = 9


def refuse_silent_address(
    address: str, is_over: Callable[[], bool] = lambda: False, patience: float = PATIENCE
) -> None:
    """Refuse an address where nothing is, or something that is no Ray.

    Parameters
    ----------
    address
        `host:port`, also with `ray://` before it; any other (`auto`) is left to Ray.
    is_over
        Asked between tries whether to give up.
    patience
        Seconds until it is refused.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    # Behind TLS a greeting is not understood.
    if not colon or not port.isdigit() or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    until = time.monotonic() + patience
    reason = "nobody there"
    while time.monotonic() < until and not is_over():
        try:
            if _greets_back(host.strip("[]"), int(port)):
                return
            reason = "something else that listens there"
        except OSError as error:
            reason = (error.strerror or str(error) or "no answer").lower()
        time.sleep(PAUSE_SECONDS)
    rule = f"a Ray answers at {address}"
    remedy = "Start one there (`ray start --head`), or leave out --address for one of our own."
    raise ResourceError(broken(rule, reason, remedy))


def _greets_back(host: str, port: int) -> bool:
    """Whether there is a server that answers in HTTP/2."""
    with socket.create_connection((host, port), timeout=TRY_SECONDS) as connection:
        connection.sendall(GREETING)
        head = b""
        while len(head) < FRAME_HEAD:
            try:
                received = connection.recv(FRAME_HEAD - len(head))
            except ConnectionResetError:
                return False
            if not received:
                return False
            head += received
    return head[3] == SETTINGS_FRAME
