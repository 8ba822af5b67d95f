"""Calls of actors through Ray: the way for large inputs, long visits and other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic

import ray
from ray import ObjectRef
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)

from rayfl.fleet.on_ray.calls import Answer, Call
from rayfl.fleet.on_ray.transport import (
    CallFailed,
    Found,
    Pending,
    PlaceDied,
    PlaceLost,
    drop_traceback,
)
from rayfl.fleet.on_ray.values import Handle, Stored
from rayfl.protocol import ClientId

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.pool import Place

DEATHS = (RayActorError, ActorDiedError, ActorUnavailableError, OutOfMemoryError)
"""How Ray says that an actor is gone."""


class RayAnswer(Pending[Found], Generic[Found]):
    """What a call of Ray's will have answered."""

    def __init__(self, reference: ObjectRef) -> None:
        self.reference = reference

    def take(self) -> Found:
        found: Found = gather_answers([self.reference])[0]
        return found


class RayCalls:
    """A transport that has nothing to remember: Ray does."""

    def post(self, place: Place, call: Call) -> RayAnswer[Answer]:
        packed, remote = call.packed
        references = [handle.reference for handle in remote]
        return RayAnswer(place.actor.run.remote(packed, *references))

    def collect(
        self, place: Place, number: int, clients: Sequence[ClientId]
    ) -> tuple[RayAnswer[object], dict[ClientId, Handle]]:
        """Make an object of each state that a call left at its actor. The objects belong to this
        process, which outlives the actor."""
        method = place.actor.collect.options(num_returns=1 + len(clients))
        collected, *states = method.remote(number, clients)
        handles: dict[ClientId, Handle] = dict(zip(clients, map(Stored, states), strict=True))
        return RayAnswer(collected), handles


def gather_answers(references: Sequence[ObjectRef]) -> list[Any]:
    """What all of these calls answered. Raises PlaceDied, PlaceLost or CallFailed."""
    try:
        return list(ray.get(list(references)))
    except DEATHS as error:
        drop_traceback(error)
        raise PlaceDied.shown_by(error) from None
    except ObjectLostError as error:
        raise PlaceLost(str(error)) from error
    except RayTaskError as error:
        raise CallFailed(str(error)) from error


def find_ready(answers: Iterable[RayAnswer[Found]], seconds: float = 0) -> list[RayAnswer[Found]]:
    """Those that are there by now, or when all are, or in so many seconds."""
    waiting = {answer.reference: answer for answer in answers}
    ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=seconds)
    return [waiting[reference] for reference in ready]


def wait_for_ray(answers: Iterable[RayAnswer[Found]]) -> RayAnswer[Found]:
    """The next one that is there."""
    waiting = {answer.reference: answer for answer in answers}
    (first,), _ = ray.wait(list(waiting), num_returns=1)
    return waiting[first]
