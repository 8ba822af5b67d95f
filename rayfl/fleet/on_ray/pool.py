"""The actors of a fleet: one at each place, replaced when it dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import ray
from ray.actor import ActorHandle

from rayfl.errors import ResourceError
from rayfl.fleet.host import current_core
from rayfl.fleet.on_ray.ray_calls import DEATHS, RayAnswer, find_ready, gather_answers, wait_for_ray
from rayfl.fleet.on_ray.socket_calls import SHORT_CALLS, SHORT_SECONDS, SocketLine
from rayfl.fleet.on_ray.transport import Pending, PlaceDied, drop_traceback

log = logging.getLogger("rayfl")

STILLBIRTHS = 10  # in a row, of one place; each that is put on a dying node is one
GREETING_SECONDS = 60


class Greeting(TypedDict):
    """What an actor says of itself."""

    pid: int
    node: str
    gpus: list[str]
    threads: int
    cores: list[int]


@dataclass(eq=False)
class Place:
    """A position of the pool and its present actor. The next actor there gets a Place of its own:
    what lies at this one is gone with it."""

    number: int
    actor: ActorHandle
    generation: int = 0
    stillbirths: int = 0
    greeting: Greeting = field(
        default_factory=lambda: Greeting(pid=0, node="", gpus=[], threads=0, cores=[])
    )
    forgotten: list[int] = field(default_factory=list)
    """Maps whose updates the actor may drop: its next call says so."""
    short_calls: int = 0
    """How many were short, in a row, of late."""
    line: SocketLine | None = None

    def take_forgotten(self) -> list[int]:
        forgotten, self.forgotten = self.forgotten, []
        return forgotten

    def note_duration(self, seconds: float) -> bool:
        """Take note of how long a call worked; whether its calls are short by now."""
        self.short_calls = self.short_calls + 1 if seconds < SHORT_SECONDS else 0
        return self.short_calls >= SHORT_CALLS

    def ask(self, method: str, *arguments: object) -> Pending[Any]:
        """Call the actor for something small that takes a moment, by line if there is one."""
        if self.line is not None:
            return self.line.call([method, *arguments])
        return RayAnswer(getattr(self.actor, method).remote(*arguments))

    def dismiss(self) -> None:
        """The actor goes, wherever it is."""
        if self.line is not None:
            self.line.close()
        ray.kill(self.actor)


class ActorPool:
    """All places. An actor is given work once it has greeted: until then there may be no room for
    it on the cluster."""

    def __init__(
        self,
        hire: Callable[[], ActorHandle],
        hired: Sequence[ActorHandle],
        size: int,
        current_round: Callable[[], int],
    ) -> None:
        self._hire, self._current_round = hire, current_round
        actors = [*hired, *(hire() for _ in range(size - len(hired)))]
        self.places = [Place(number, actor) for number, actor in enumerate(actors)]
        self.awaited = {ask_for_greeting(place): place for place in self.places}
        self.node: str = ray.get_runtime_context().get_node_id()
        self._await_greetings()

    def __getitem__(self, number: int) -> Place:
        return self.places[number]

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def _await_greetings(self) -> None:
        """Give all actors some time; who finds no room by then joins when there is some."""
        find_ready(self.awaited, GREETING_SECONDS)
        self.present()
        if self.awaited:
            log.warning(
                "%d of %d client actors wait for room on the cluster",
                len(self.awaited),
                len(self.places),
            )

    def present(self) -> list[Place]:
        """The places whose actors run; waits until there is one."""
        if self.awaited:
            for hello in find_ready(self.awaited):
                self._hear(hello)
        absent = set(self.awaited.values())
        present = [place for place in self.places if place not in absent]
        if not present:
            wait_for_ray(self.awaited)
        return present or self.present()

    def _hear(self, hello: RayAnswer[Greeting]) -> None:
        """An actor's first answer; or that it died before, of itself or of the node that it was put
        on."""
        place = self.awaited.pop(hello)
        try:
            place.greeting = ray.get(hello.reference)
        except DEATHS as error:
            stillbirths = place.stillbirths + 1
            if stillbirths == STILLBIRTHS or getattr(error, "actor_init_failed", False):
                raise ResourceError(f"a client actor could not start:\n{error}") from error
            drop_traceback(error)
            self.replace(place, type(error).__name__, stillbirths)

    def others_first(self, places: Iterable[Place]) -> list[Place]:
        """Whoever shares this thread's processor comes last: awake, it may take over, and the
        others would wait."""
        here = current_core()
        return sorted(places, key=lambda place: here in place.greeting["cores"])

    def is_here(self, place: Place) -> bool:
        """Whether an actor is on this process's node."""
        return place.greeting["node"] == self.node

    def lives(self, place: Place) -> bool:
        """Whether the actor is still the one there, as far as is known."""
        return self.places[place.number] is place

    def replace(self, place: Place, why: str, stillbirths: int = 0) -> None:
        """Hire another actor for a place whose actor died. Of several calls to the dead, the first
        has it replaced."""
        if not self.lives(place):
            return
        log.warning(
            "client actor %d died in round %d and is replaced (%s)",
            place.number,
            self._current_round(),
            why,
        )
        place.dismiss()
        new = Place(place.number, self._hire(), place.generation + 1, stillbirths)
        self.places[place.number] = new
        # The one before may have died without ever having answered.
        self.awaited = {hello: who for hello, who in self.awaited.items() if who is not place}
        self.awaited[ask_for_greeting(new)] = new

    def bury_the_dead(self) -> int:
        """Replace every actor that no longer answers; how many there were."""
        dead = 0
        for place in self.present():
            # An error does not say whose it is, so everybody is asked.
            try:
                gather_answers([place.actor.hello.remote()])
            except PlaceDied as error:
                self.replace(place, error.sign)
                dead += 1
        return dead

    def forget(self, number: int) -> None:
        """Have the updates of a map dropped."""
        for place in self.places:
            place.forgotten.append(number)

    def dismiss(self) -> None:
        for place in self.places:
            place.dismiss()


def ask_for_greeting(place: Place) -> RayAnswer[Greeting]:
    return RayAnswer(place.actor.hello.remote())
