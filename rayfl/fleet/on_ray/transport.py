"""What every way to an actor has in common: a call is posted, and its answer waits to be taken.

There are three ways: Ray's own calls, sockets for short calls on this node, and keepers where there
are hundreds of actors. Which one a call takes changes nothing but time. Taking an answer can fail
in three ways, and in no other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ray.exceptions import ObjectLostError

from rayfl.fleet.on_ray.calls import Answer, Call
from rayfl.fleet.on_ray.values import Handle
from rayfl.protocol import ClientId

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.pool import Place

Found = TypeVar("Found", covariant=True)


class PlaceDied(Exception):
    """The actor is gone, with all that it held; what it was asked for can be computed again."""

    def __init__(self, sign: str, why: str = "") -> None:
        super().__init__(sign, why)
        self.sign = sign
        """The kind of error by which it showed."""

    @classmethod
    def shown_by(cls, error: BaseException) -> PlaceDied:
        return cls(type(error).__name__, str(error))

    def __str__(self) -> str:
        return ": ".join(self.args)

    @property
    def brief(self) -> str:
        """The first line of it, without its full stop."""
        return str(self).partition("\n")[0].rstrip(".: ")


class PlaceLost(ObjectLostError):  # type: ignore[misc]
    """What is gone with a node (or a keeper) can not be computed again: it is only in the last
    checkpoint."""

    def __init__(self, why: str = "") -> None:
        # Ray's own constructor wants the id of one object.
        Exception.__init__(self, why)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type[PlaceLost], tuple[object, ...]]:
        return type(self), self.args


class CallFailed(Exception):
    """What the actor's method raised, as text."""


class Pending(ABC, Generic[Found]):
    """A call that waits to be answered."""

    @abstractmethod
    def take(self) -> Found:
        """The answer. Raises PlaceDied, PlaceLost or CallFailed."""


class Transport(Protocol):
    """A way to actors."""

    def post(self, place: Place, call: Call) -> Pending[Answer]:
        """Send a call off."""


class Collector(Protocol):
    """A way to bring large states from the actor that made them to where they outlive it."""

    def collect(
        self, place: Place, number: int, clients: Sequence[ClientId]
    ) -> tuple[Pending[object], dict[ClientId, Handle]]:
        """What tells that the states of a map's clients are safe, and their handles."""


def drop_traceback(error: BaseException) -> None:
    """Let go of the calls that an error came through, once it is dealt with.

    A call of Ray's still refers to the error that it raised, and so the two of them, the round
    around them, and all updates of that round, would stay until Python looks for garbage."""
    error.__traceback__ = None
