"""Where actors leave word of visits that are over their time, before they end with them.

There is one where a run has a time limit: an actor whose phase does not return answers no call, so
whoever looks after it needs another place to read who it was."""

from __future__ import annotations

from collections.abc import Sequence

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.watch import Overdue
from rayfl.protocol import ClientId

READ_SECONDS = 10.0


class NoticeBoard:
    """The process: what each actor that ended itself has left, by its node and process."""

    def __init__(self) -> None:
        self.left: dict[tuple[str, int], Overdue] = {}

    def leave(
        self, node: str, pid: int, clients: Sequence[ClientId], limit: float, where: str
    ) -> None:
        """An actor's last word."""
        self.left[node, pid] = Overdue(clients, limit, where)

    def take(self, node: str, pid: int) -> Overdue | None:
        """What an actor left, if it ended of itself."""
        return self.left.pop((node, pid), None)


def put_up_board() -> ActorHandle:
    """Start one; it takes no processor of its own."""
    return ray.remote(NoticeBoard).options(num_cpus=0, max_restarts=0).remote()


def read_notice(board: ActorHandle, place: Place) -> Overdue | None:
    """Whose visit the actor of a place ended itself for; None where it died otherwise, or the
    board did too."""
    asked = board.take.remote(place.greeting["node"], place.greeting["pid"])
    try:
        found: Overdue | None = ray.get(asked, timeout=READ_SECONDS)
    except RayError:
        return None
    return found
