"""The fleet on Ray: a pool of long-lived actors, each pinned to its processors; clients are logical
and run on any.

One call carries a list of clients; models, states and updates move by reference, actor to actor. An
actor that dies is replaced, and whatever it had not finished, or still held, is computed again with
the same streams: the same bits."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from rayfl.errors import PhaseError, ResourceError
from rayfl.fleet.base import BaseFleet, Errand, Spec, Then
from rayfl.fleet.cores import current
from rayfl.fleet.executor import Done, Holdings, Task, nbytes
from rayfl.fleet.on_ray.call_values import INLINE_BYTES, Batch, Here, Sealed, emptied, within_limit
from rayfl.fleet.on_ray.hiring import Call, Hiring, Place
from rayfl.fleet.on_ray.keeper_calls import Keepers
from rayfl.fleet.on_ray.placement import Plan
from rayfl.fleet.on_ray.ray_replies import RayReplies
from rayfl.fleet.on_ray.socket_calls import (
    DEATHS,
    SHORT_CALLS,
    SHORT_SECONDS,
    Line,
    LineError,
    unwind,
)
from rayfl.fleet.sums.early_sums import Answer, Early, Expectation, Expected
from rayfl.fleet.sums.shared_memory import SUPPORTED, Page, Pages
from rayfl.protocol import ClientId, Phase, Ref, Replies

log = logging.getLogger("rayfl")

LIVES_OF_A_TASK = 4
STILLBIRTHS = 10  # in a row, of one place; each that is put on a dying node is one
GREETING_SECONDS = 60
MAX_ARGUMENT_BYTES = (
    256 << 20
)  # values pinned by one call; more clients than fit are split over several calls


class RayFleet(BaseFleet):
    """Runs phases on a pool of actors, of which some, or all, may have been hired already."""

    def __init__(
        self, spec: Spec, holdings: Holdings, hiring: Hiring, hired: Sequence[Any] = ()
    ) -> None:
        super().__init__(spec, holdings)
        self.hiring = hiring
        self.shared_features: list[tuple[str, Any]] = []
        self.pool = [Place(actor) for actor in hired]
        self.pool += [Place(self._hire()) for _ in range(hiring.placement.actors - len(hired))]
        # An actor is given work once it has answered: until then there may be no room for it on the
        # cluster.
        self.awaited = {
            place.actor.hello.remote(): number for number, place in enumerate(self.pool)
        }
        self.hellos: list[dict[str, Any]] = [{} for _ in self.pool]
        self.keepers = Keepers(hiring.placement.keepers)
        self.keepers.engage({number: place.actor for number, place in enumerate(self.pool)})
        self.seconds_per_sample = 0.0
        self.where: dict[int, dict[ClientId, tuple[int, int]]] = defaultdict(dict)
        self.errands: dict[Any, RayErrand] = {}
        self.expected = Expectation(self)
        self.node = ray.get_runtime_context().get_node_id()
        self.early: dict[int, Early] = {}
        self.on_pages: dict[int, dict[ClientId, Mapping[str, Page]]] = defaultdict(dict)
        self.pages, self.shares_memory = Pages(), SUPPORTED
        self._greet()

    def _hire(self) -> Any:
        actor = self.hiring.hire()
        for name, features in self.shared_features:
            actor.add_features.remote(name, features)
        return actor

    def _greet(self) -> None:
        """Give all actors some time; who finds no room by then joins when there is some."""
        ray.wait(list(self.awaited), num_returns=len(self.awaited), timeout=GREETING_SECONDS)
        self._present()
        if self.awaited:
            log.warning(
                "%d of %d client actors wait for room on the cluster",
                len(self.awaited),
                len(self.pool),
            )

    def _present(self) -> list[int]:
        """The places whose actors run; waits until there is one."""
        if self.awaited:
            for hello in ray.wait(list(self.awaited), num_returns=len(self.awaited), timeout=0)[0]:
                self._hear(hello)
        present = sorted(set(range(len(self.pool))) - set(self.awaited.values()))
        if not present:
            ray.wait(list(self.awaited), num_returns=1)
        return present or self._present()

    def _others_first(self, places: Sequence[int]) -> list[int]:
        """Whoever shares this thread's processor comes last: awake, it may take over, and the
        others would wait."""
        here = current()
        return sorted(places, key=lambda place: here in self.hellos[place]["cores"])

    def _hear(self, hello: Any) -> None:
        """An actor's first answer; or that it died before, of itself or of the node that it was put
        on."""
        place = self.awaited.pop(hello)
        try:
            self.hellos[place] = ray.get(hello)
        except DEATHS as error:
            stillbirths = self.pool[place].stillbirths + 1
            if stillbirths == STILLBIRTHS or getattr(error, "actor_init_failed", False):
                raise ResourceError(f"a client actor could not start:\n{error}") from error
            self._replace(place, error, stillbirths)

    def close(self) -> None:
        self.keepers.dismiss()
        for place in self.pool:
            place.dismiss()

    def share_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        stored = ray.put(dict(features))
        self.shared_features.append((name, stored))
        calls = [place.actor.add_features.remote(name, stored) for place in self.pool]
        ray.get([calls[place] for place in self._present()])

    def lost(self, error: Exception) -> bool:
        return isinstance(error, ObjectLostError) or (
            isinstance(error, RayError) and not isinstance(error, RayTaskError)
        )

    def put(self, value: Any) -> Ref:
        return Ref(ray.put(value), nbytes=nbytes(value, scalars=False))

    def get(self, ref: Ref) -> Any:
        value = ref.handle.value if isinstance(ref.handle, Here) else self.keepers.get(ref.handle)
        return value if ref.key is None else value[ref.key]

    # -- running -----------------------------------------------------------------------------------------------

    def execute(
        self, number: int, phase: Phase, tasks: Mapping[ClientId, Task], shared: Mapping[str, Any]
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        shared = self._stored(shared)
        plan = self._plan(tasks)
        lives = dict.fromkeys(tasks, LIVES_OF_A_TASK)
        early = self.early[number] = Early(self.expected.of(tasks))
        running: dict[Any, Call] = {}
        done: dict[ClientId, Done] = {}
        stored: dict[ClientId, Any] = {}
        raised = False
        while (plan or running) and not raised:
            self._hand_out(
                plan,
                running,
                lambda place, batch: (place, number, phase, batch, shared, early.expected),
            )
            if len(running) < len(self.pool):  # there is a processor with nothing to do
                self.draw_ahead()
            for finished in self.keepers.ready([*self.errands, *running, *self.awaited]):
                if finished in self.errands:
                    self.errands[finished].answered(finished)
                if finished not in running:
                    continue
                call = running.pop(finished)
                answer = self._answer(finished, call, lives)
                if answer is None:
                    plan.put_back(call.batch)
                elif call.answer is None and (leaving := answer.elsewhere):
                    # A state must outlive its actor: only what has been collected is done.
                    first, *handles = self._collect(call.place, number, leaving)
                    states = dict(zip(leaving, handles, strict=True))
                    running[first] = replace(call, answer=answer, states=states)
                else:
                    answer = call.answer or answer
                    early.answers.append(answer)
                    done |= {outcome.client: outcome for outcome in answer.done}
                    stored |= {**call.states, **answer.kept}
                    stored |= {client: Sealed(state) for client, state in answer.states.items()}
                    self._note_places(number, call, answer)
                    if any(outcome.error for outcome in answer.done):
                        # The others work on; what they answer is void, and read before their next
                        # call.
                        raised = True
                        break
                    self._learn_speed(answer.done, call)
        self.keepers.rest()
        return {client: done[client] for client in sorted(done)}, stored

    def _note_places(self, number: int, call: Call, answer: Answer) -> None:
        """Where the updates of an answer lie."""
        lies = (call.place, call.generation)
        self.where[number] |= dict.fromkeys([outcome.client for outcome in answer.done], lies)
        if answer.pages or number in self.on_pages:
            # All of them: one that is made again may lie elsewhere than before.
            news = {outcome.client: answer.pages.get(outcome.client, {}) for outcome in answer.done}
            self.on_pages[number] |= news

    def _hand_out(
        self, plan: Plan[Task], running: dict[Any, Call], call: Callable[[int, list[Task]], Any]
    ) -> None:
        """Give every actor that has nothing to do the next piece of a plan."""
        busy = {call.place for call in running.values()}
        for place in self._others_first(self._present()):
            if place in busy or not plan:
                continue
            batch, rest = within_limit(plan.next(), MAX_ARGUMENT_BYTES)
            if rest:
                plan.put_back(rest)
            with self.clock.running("broadcast"):
                sent_off = self._run(*call(place, batch))
            running[sent_off] = self._call(place, batch)
        with self.clock.running("broadcast"):
            self.keepers.send()

    def later(
        self, phase: Phase, each: Mapping[ClientId, Mapping[str, Any]], then: Then, **shared: Any
    ) -> Errand:
        tasks = self._tasks(list(each), each)
        return RayErrand(
            self, next(self._numbers), phase, list(tasks.values()), self._stored(shared), then
        )

    def _stored(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Large arrays among the inputs go to the object store once, not into every call."""
        large = {
            name: value
            for name, value in shared.items()
            if isinstance(value, np.ndarray) and value.nbytes > INLINE_BYTES
        }
        return {**shared, **{name: self.put(value) for name, value in large.items()}}

    def _run(
        self,
        place: int,
        number: int,
        phase: Phase,
        tasks: list[Task],
        shared: Mapping[str, Any],
        expected: Expected | None = None,
        errand: bool = False,
    ) -> Any:
        """Send tasks to a place; what to take the answer from."""
        held = self.pool[place]
        freed, held.freed = held.freed, []
        part = None if expected is None else expected.part([task.client for task in tasks])
        # Who waits for a line looks at nothing else: it is for calls that are over in a moment.
        line = held.line if held.short_calls >= SHORT_CALLS and not errand else None
        if self.keepers and line is None:
            return self.keepers.run(place, number, phase, tasks, shared, freed, part)
        values: dict[Any, int] = {}
        batch, common = Batch.packed(tasks, values), emptied(shared, values)
        arguments = (number, phase, batch, common, freed, part, *values)
        # What lies in the store does not go over a line.
        if line is not None and not values:
            return line.call(*arguments)
        if self.keepers:
            return self.keepers.run(place, number, phase, tasks, shared, freed, part)
        return held.actor.run.remote(*arguments)

    def _call(self, place: int, batch: list[Task]) -> Call:
        return Call(place, self.pool[place].generation, batch)

    def _collect(self, place: int, number: int, clients: list[ClientId]) -> list[Any]:
        if self.keepers:
            return self.keepers.collect(place, number, clients)
        method = self.pool[place].actor.collect.options(num_returns=1 + len(clients))
        return cast(list[Any], method.remote(number, clients))

    def _answer(self, finished: Any, call: Call, lives: dict[ClientId, int]) -> Answer | None:
        """What a call answered; None when its actor died (and has been replaced)."""
        try:
            return cast(Answer, self.keepers.taken(finished))
        except DEATHS as error:
            for task in call.batch:
                # A client whose visit kills its actor would have the pool replaced for ever.
                lives[task.client] -= 1
                if not lives[task.client]:
                    raise PhaseError(
                        f"client {task.client} was part of {LIVES_OF_A_TASK} calls in round {self.round} "
                        f"whose actors died:\n{error}"
                    ) from error
            # Of several calls to the dead, the first has had it replaced.
            if self.pool[call.place].generation == call.generation:
                self._replace(call.place, error)
            return None
        except ObjectLostError:
            raise  # what lay on a node that died is only in the last checkpoint
        except (RayTaskError, LineError) as error:
            who = ", ".join(str(task.client) for task in call.batch[:5])
            raise PhaseError(
                f"a call for client {who} failed in round {self.round}:\n{error}"
            ) from error

    def _replace(self, place: int, error: Exception, stillbirths: int = 0) -> None:
        unwind(error)
        log.warning(
            "client actor %d died in round %d and is replaced (%s)",
            place,
            self.round,
            type(error).__name__,
        )
        self.pool[place].dismiss()
        self.pool[place] = Place(self._hire(), self.pool[place].generation + 1, stillbirths)
        # The one before may have died without ever having answered.
        self.awaited = {hello: other for hello, other in self.awaited.items() if other != place}
        self.awaited[self.pool[place].actor.hello.remote()] = place
        self.keepers.engage({place: self.pool[place].actor})

    def _plan(self, tasks: Mapping[ClientId, Task]) -> Plan[Task]:
        # Before anything is measured the sizes alone tell long visits from short ones.
        pace, size = max(self.seconds_per_sample, 1e-6), self.size
        return Plan(
            list(tasks.values()), lambda task: (size(task.client) or 1) * pace, len(self._present())
        )

    def _learn_speed(self, outcomes: Sequence[Done], call: Call) -> None:
        samples = sum(self.size(task.client) for task in call.batch)
        if not samples:  # the server's tasks say nothing about a client's
            return
        seconds = sum(outcome.seconds for outcome in outcomes if outcome.client >= 0)
        measured = seconds / samples
        self.seconds_per_sample = (
            measured
            if not self.seconds_per_sample
            else 0.7 * self.seconds_per_sample + 0.3 * measured
        )
        place = self.pool[call.place]
        place.short_calls = place.short_calls + 1 if seconds < SHORT_SECONDS else 0
        if (
            place.line is None
            and place.short_calls >= SHORT_CALLS
            and self.hellos[call.place]["node"] == self.node
        ):
            self._lay_line(place)

    def _lay_line(self, place: Place) -> None:
        try:
            place.line = Line(place.actor)
        except DEATHS as error:
            unwind(error)
            log.debug("an actor died while a line was laid to it: its next call will tell")

    # -- updates -----------------------------------------------------------------------------------------------

    def replies(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        done: Mapping[ClientId, Done],
    ) -> Replies:
        return RayReplies(self, number, phase, tasks, shared, done)

    def forget(self, number: int) -> None:
        self.early.pop(number, None)
        self.where.pop(number, None)
        self.on_pages.pop(number, None)
        for place in self.pool:
            place.freed.append(number)

    def holders(
        self, number: int, clients: Sequence[ClientId]
    ) -> dict[int, list[ClientId]] | list[ClientId]:
        """Which place holds whose update; or the clients whose update died with its actor."""
        groups: dict[tuple[int, int], list[ClientId]] = defaultdict(list)
        where = self.where[number]
        for client in clients:
            groups[where[client]].append(client)
        # A place whose actor was replaced has nothing of what the one before it held.
        alive = {(place, self.pool[place].generation) for place, _ in groups}
        lost = [client for lies, held in groups.items() if lies not in alive for client in held]
        return sorted(lost) or {place: held for (place, _), held in groups.items()}

    def bury_the_dead(self) -> int:
        """Replace every actor that no longer answers; how many there were."""
        dead = 0
        for place in self._present():
            # An error does not say whose it is, so everybody is asked.
            try:
                ray.get(self.pool[place].actor.hello.remote())
            except DEATHS as error:
                self._replace(place, error)
                dead += 1
        return dead

    def in_one_memory(self, places: Iterable[int]) -> bool:
        """Whether these actors, and this process, see each other's pages."""
        return self.shares_memory and all(
            self.hellos[place]["node"] == self.node for place in places
        )

    def blind(self) -> None:
        """An actor could not see another's page: because that one died, or because they never
        will."""
        if not self.bury_the_dead():
            log.warning(
                "actors of this node do not see each other's memory: large updates are sent instead"
            )
            self.shares_memory = False


class RayErrand(Errand):
    """Tasks dealt to all places at once, ahead of whatever the next round brings them; no actor
    waits for another."""

    def __init__(
        self,
        fleet: RayFleet,
        number: int,
        phase: Phase,
        tasks: list[Task],
        shared: Mapping[str, Any],
        then: Then,
    ) -> None:
        self.fleet, self.number, self.phase, self.shared, self.then = (
            fleet,
            number,
            phase,
            shared,
            then,
        )
        self.calls: dict[Any, Call] = {}
        self.done: dict[ClientId, Done] = {}
        self.lives = {task.client: LIVES_OF_A_TASK for task in tasks}
        places = fleet._present()
        for start, place in enumerate(places[: len(tasks)]):
            self._send(fleet._call(place, tasks[start :: len(places)]))

    def _send(self, call: Call) -> None:
        reference = self.fleet._run(
            call.place, self.number, self.phase, call.batch, self.shared, errand=True
        )
        self.calls[reference] = call
        self.fleet.errands[reference] = self
        self.fleet.keepers.send()

    def answered(self, reference: Any) -> None:
        """Take what one call answered; the last one ends the errand."""
        call = self.calls.pop(reference)
        del self.fleet.errands[reference]
        answer = self.fleet._answer(reference, call, self.lives)
        if answer is None:
            self._send(self.fleet._call(self.fleet._present()[0], call.batch))
            return
        self.done |= {outcome.client: outcome for outcome in answer.done}
        if not self.calls:
            self.fleet.tell(self.then, self.done.values())

    def wait(self) -> None:
        while self.calls:
            self.answered(self.fleet.keepers.ready(list(self.calls))[0])
