"""Who listens to whom: the sockets of a process tree, read from /proc; nothing is connected to."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from tests.reliability.drills import descendants, title_of

LISTENING = "0A"
TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}


class Listener(NamedTuple):
    """A socket that waits for others, and whose it is."""

    title: str
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        address = ip_address(self.host)
        inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (inner or address).is_loopback


def listeners_of(root: int) -> set[Listener]:
    """The listening sockets of a process and of all below it."""
    places = _listening_places()
    found = set()
    for pid in [root, *descendants(root)]:
        title = title_of(pid)
        for inode in _sockets_of(pid):
            if inode in places:
                found.add(Listener(title, *places[inode]))
    return found


def user_environment(home: Path) -> dict[str, str]:
    """What a shell has that knows nothing of Ray: no variable of its, and a home of its own."""
    kept = ("PATH", "PYTHONPATH", "LANG", "TMPDIR", "PYTHONDONTWRITEBYTECODE")
    # How a machine wants LAPACK to compute decides bits: all commands of a test have it alike.
    alike = [name for name in os.environ if name in kept or name.startswith("OPENBLAS_")]
    return {"HOME": str(home), **{name: os.environ[name] for name in alike}}


def _listening_places() -> dict[str, tuple[str, int]]:
    """Address and port of every listening socket of this network, by its inode."""
    places = {}
    for family, table in TABLES.items():
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                places[fields[9]] = _read_place(family, fields[1])
    return places


def _read_place(family: socket.AddressFamily, text: str) -> tuple[str, int]:
    """The kernel writes an address as hexadecimal words in the machine's own order."""
    host, _, port = text.partition(":")
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(family, packed), int(port, 16)


def _sockets_of(pid: int) -> Iterator[str]:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it is gone meanwhile
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]
