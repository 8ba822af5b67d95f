"""What one client is told of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from rayfl.protocol import ClientId

T = TypeVar("T")


def leave_out(client: ClientId, entries: Mapping[ClientId, T]) -> dict[ClientId, T]:
    """All entries but a client's own.

    Parameters
    ----------
    client
        Whose is left out, where it has one.
    entries
        By client.
    """
    return {other: entry for other, entry in entries.items() if other != client}
