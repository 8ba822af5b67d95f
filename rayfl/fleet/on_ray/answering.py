"""Whether anybody answers at a cluster's address, asked before Ray is: Ray itself waits for
minutes, in code that no signal reaches."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rayfl.errors import ResourceError, broken

PATIENCE = 10.0
"""Seconds for a cluster that is just being started."""
TRY_SECONDS = 2.0
PAUSE_SECONDS = 0.25
LOOPBACK = ("127.", "::1", "localhost")
LOOPBACK_OF_KERNEL = re.compile("(0{16}FFFF0000)?[0-9A-F]{6}7F|0{24}01000000")
"""Loopback as /proc/net has it: 127.*, also as an address of IPv6, and ::1."""
LISTENING = "0A"
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
    found = _find_ear(address)
    if found is None:
        return
    until = time.monotonic() + patience
    reason = "nobody there"
    while time.monotonic() < until and not is_over():
        try:
            if _greets_back(*found):
                return
            reason = "something else that listens there"
        except OSError as error:
            reason = (error.strerror or str(error) or "no answer").lower()
        time.sleep(PAUSE_SECONDS)
    rule = f"a Ray answers at {address}"
    remedy = "Start one there (`ray start --head`), or leave out --address for one of our own."
    raise ResourceError(broken(rule, reason, remedy))


def keeps_to_loopback(address: str) -> bool:
    """Whether the Ray at a loopback address listens there alone.

    Ray takes such an address for the machine's other one, and waits there in vain for a head that
    was told to listen to its own machine only. Known on Linux, where it is not Ray's default."""
    found = _find_ear(address)
    if found is None or not found[0].startswith(LOOPBACK):
        return False
    hosts = [host for host, port in _list_listeners() if port == found[1]]
    return bool(hosts) and all(map(LOOPBACK_OF_KERNEL.fullmatch, hosts))


def _list_listeners() -> list[tuple[str, int]]:
    """Hosts as the kernel writes them, and ports, of all that listens on this machine."""
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:]]
            ears = [row[1].partition(":") for row in rows if row[3] == LISTENING]
            found += [(host, int(port, 16)) for host, _, port in ears]
    return found


def _find_ear(address: str) -> tuple[str, int] | None:
    """Host and port that a greeting can be sent to; None where it would not be understood."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    encrypted = os.environ.get("RAY_USE_TLS", "0") not in ("", "0")
    return None if not colon or not port.isdigit() or encrypted else (host.strip("[]"), int(port))


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
