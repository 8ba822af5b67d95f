"""Which way a call takes to its place, and which of all calls that are out is answered first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rayfl.fleet.on_ray.calls import Answer, Call
from rayfl.fleet.on_ray.ray_calls import RayAnswer, RayCalls, wait_for_ray
from rayfl.fleet.on_ray.socket_calls import (
    SHORT_CALLS,
    SocketAnswer,
    SocketCalls,
    wait_for_socket,
)
from rayfl.fleet.on_ray.transport import Collector, Pending, Transport

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.keepers.keeper_calls import KeeperCalls
    from rayfl.fleet.on_ray.pool import Place


class Routes:
    """The transports of one fleet."""

    def __init__(self, keepers: int) -> None:
        self.ray = RayCalls()
        self.sockets = SocketCalls()
        self.keepers: KeeperCalls | None = None
        if keepers:
            # Few fleets are so large: the others never learn that there are such processes.
            from rayfl.fleet.on_ray.keepers.keeper_calls import KeeperCalls

            self.keepers = KeeperCalls(keepers)

    def choose(self, place: Place, call: Call) -> Transport:
        """The transport for a call to a place."""
        quick = place.line is not None and place.short_calls >= SHORT_CALLS
        # Who waits for a line looks at nothing else, so it is for calls that are over in a moment.
        # What lies in the store does not go over it.
        if quick and not call.beside_rounds and not call.packed[1]:
            return self.sockets
        return self.keepers or self.ray

    @property
    def collector(self) -> Collector:
        """Who comes to own large states. Sockets carry no objects."""
        return self.keepers or self.ray

    def post(self, place: Place, call: Call) -> Pending[Answer]:
        return self.choose(place, call).post(place, call)

    def flush(self) -> None:
        """Keepers are sent several calls at a time: let go of those posted so far."""
        if self.keepers is not None:
            self.keepers.send()

    def wait_for_first(self, pending: Sequence[Pending[Any]]) -> Sequence[Pending[Any]]:
        """The next calls to take an answer from: one, or all that keepers have answered."""
        if self.keepers is not None:
            return self.keepers.wait_for_first(pending)
        return [wait_for_one(pending)]

    def rest(self) -> None:
        """Nothing of a map that is over is held on to."""
        if self.keepers is not None:
            self.keepers.rest()

    def close(self) -> None:
        if self.keepers is not None:
            self.keepers.dismiss()


def wait_for_one(pending: Sequence[Pending[Any]]) -> Pending[Any]:
    """The next call by socket or by Ray. Short ones first, which are the ones on sockets."""
    if spoken := [call for call in pending if isinstance(call, SocketAnswer)]:
        return wait_for_socket(spoken)
    return wait_for_ray([call for call in pending if isinstance(call, RayAnswer)])
