"""The fleet on Ray: a pool of long-lived actors, each pinned to its processors; clients are logical
and run on any.

One call carries a list of clients; models, states and updates move by reference, actor to actor. An
actor that dies is replaced, and whatever it had not finished, or still held, is computed again with
the same streams: the same bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from rayfl.errors import PhaseError
from rayfl.fleet.absurd import Norms
from rayfl.fleet.base import BaseFleet, Errand, Spec, WhenDone
from rayfl.fleet.executor import Done, Holdings, Task, count_bytes
from rayfl.fleet.on_ray.calls import Call, Inputs
from rayfl.fleet.on_ray.hiring import Hiring
from rayfl.fleet.on_ray.map_in_flight import CallInFlight, MapInFlight, Stage
from rayfl.fleet.on_ray.notice_board import put_up_board, read_notice
from rayfl.fleet.on_ray.placement import HandOutPlan
from rayfl.fleet.on_ray.pool import ActorPool, Place
from rayfl.fleet.on_ray.ray_calls import gather_answers
from rayfl.fleet.on_ray.reduction import PlacedMean, Reduction
from rayfl.fleet.on_ray.routes import Routes
from rayfl.fleet.on_ray.suspects import LIVES_OF_A_TASK
from rayfl.fleet.on_ray.transport import CallFailed, Pending, PlaceDied
from rayfl.fleet.on_ray.values import (
    INLINE_BYTES,
    Handle,
    fetch_value,
    handle_of,
    pick_entry,
    store_large_arrays,
    store_value,
)
from rayfl.fleet.replies import FinishedMap, Mean
from rayfl.fleet.safeguards import name_visit
from rayfl.fleet.sums.early_sums import MeanExpectation
from rayfl.fleet.sums.exact_sums import Partial
from rayfl.fleet.sums.shared_memory import LEAST_BYTES, Page
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import ClientId, Phase, Ref, Vector

Wanted = TypeVar("Wanted")
NO_MAP = -1


class RayFleet(BaseFleet):
    """Runs phases on a pool of actors, of which some, or all, may have been hired already."""

    def __init__(
        self, spec: Spec, holdings: Holdings, hiring: Hiring, hired: Sequence[ActorHandle] = ()
    ) -> None:
        super().__init__(spec, holdings)
        self.hiring = hiring
        self.shared_features: list[tuple[str, ObjectRef]] = []
        self.routes = Routes(hiring.placement.keepers)
        limited = spec.safeguards.visit_seconds or spec.safeguards.visit_multiple
        self.board = put_up_board() if limited else None
        for actor in hired:
            self._introduce(actor)
        self.pool = ActorPool(self._hire, hired, hiring.placement.actors, lambda: self.round)
        self.flights: dict[int, MapInFlight] = {}
        self.errands: list[RayErrand] = []
        self.seconds_per_sample = 0.0
        self.expectation = MeanExpectation(self)
        self.reduction = Reduction(self.pool)

    def _hire(self) -> ActorHandle:
        actor = self.hiring.hire()
        self._introduce(actor)
        for name, features in self.shared_features:
            actor.add_features.remote(name, features)
        return actor

    def _introduce(self, actor: ActorHandle) -> None:
        """Tell an actor, before its first call, where to leave word."""
        if self.board is not None:
            actor.take_board.remote([self.board])

    def close(self) -> None:
        self.routes.close()
        self.pool.dismiss()
        if self.board is not None:
            ray.kill(self.board)

    def share_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        stored = ray.put(dict(features))
        self.shared_features.append((name, stored))
        calls = {place: place.actor.add_features.remote(name, stored) for place in self.pool}
        ray.get([calls[place] for place in self.pool.present()])

    def lost(self, error: Exception) -> bool:
        return isinstance(error, ObjectLostError) or (
            isinstance(error, RayError) and not isinstance(error, RayTaskError)
        )

    def put(self, value: object) -> Ref:
        return Ref(store_value(value), nbytes=count_bytes(value, scalars=False))

    def get(self, ref: Ref) -> Any:
        return pick_entry(fetch_value(handle_of(ref)), ref.key)

    # -- running -----------------------------------------------------------------------------------

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Inputs,
        chain: bool = False,
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Handle]]:
        flight = self.flights.get(number)
        # What is made again was there in time before.
        lenient = flight is None and self.spec.safeguards.leave_out
        if flight is None:
            expected = {} if chain else self.expectation.expect(tasks)
            limit = self.times.limit(phase)
            flight = MapInFlight(number, phase, expected, chain, limit=limit)
            self.flights[number] = flight
        flight.start(self._plan(tasks, chain), store_large_arrays(shared), lenient)
        while flight.open:
            self._hand_out(flight)
            if len(flight.out) < len(self.pool):  # there is a processor with nothing to do
                self.draw_ahead()
            self._take_first(flight)
        self.routes.rest()
        return flight.finish()

    def start_errand(
        self,
        phase: Phase,
        each: Mapping[ClientId, Inputs],
        when_done: WhenDone,
        **shared: Any,
    ) -> Errand:
        tasks = list(self._make_errand_tasks(each).values())
        flight = MapInFlight(next(self._numbers), phase, beside_rounds=True)
        # Equals are dealt like cards, to all places at once.
        plan = HandOutPlan(tasks, lambda _: 0.0, len(self.pool.present()))
        flight.start(plan, store_large_arrays(shared))
        errand = RayErrand(self, flight, when_done)
        self.errands.append(errand)
        self._hand_out(flight)
        return errand

    def _plan(self, tasks: Mapping[ClientId, Task], chain: bool) -> HandOutPlan[Task]:
        if chain:
            return HandOutPlan(list(tasks.values()), lambda _: 0.0, 1)
        # Before anything is measured the sizes alone tell long visits from short ones.
        pace, size = max(self.seconds_per_sample, 1e-6), self.size
        places = len(self.pool.present())
        return HandOutPlan(
            list(tasks.values()), lambda task: (size(task.client) or 1) * pace, places
        )

    def _hand_out(self, flight: MapInFlight) -> None:
        """Give every actor that has nothing to do the next piece of a map's plan."""
        busy = flight.busy
        for place in self.pool.others_first(self.pool.present()):
            if place in busy or not flight.plan:
                continue
            with self.clock.running("broadcast"):
                call = flight.next_call(place)
                flight.note_sent(self.routes.post(place, call), place, call.tasks)
        with self.clock.running("broadcast"):
            self.routes.flush()

    def _take_first(self, flight: MapInFlight) -> None:
        """Wait for the next answer, of this map or of an errand beside it, and take it."""
        flights = [*(errand.flight for errand in self.errands), flight]
        owners = {pending: owner for owner in flights for pending in owner.out}
        # A greeting ends the wait, too: there is somebody to hand out to.
        for pending in self.routes.wait_for_first([*owners, *self.pool.awaited]):
            if pending in owners:
                self._take(pending, owners[pending])
            if not flight.open:
                break
        for errand in list(self.errands):
            errand.go_on()

    def _take(self, pending: Pending[Any], flight: MapInFlight) -> None:
        """Take one answer; where there is none, see to it that the tasks are done again."""
        call = flight.out.pop(pending)
        try:
            answer = pending.take()
        except PlaceDied as error:
            self._note_death(flight, call, error)
            return
        except CallFailed as error:
            who = ", ".join(str(task.client) for task in call.tasks[:5])
            raise PhaseError(
                f"a call for client {who} failed in round {self.round}:\n{error}"
            ) from error
        if call.stage is Stage.VISITING and (left := answer.left_at_actor):
            collecting, handles = self.routes.collector.collect(call.place, flight.number, left)
            flight.note_collecting(collecting, call, answer, handles)
            return
        flight.note_answer(call, call.answer or answer)
        if not flight.raised:
            self._learn_speed(call, (call.answer or answer).done)

    def _note_death(self, flight: MapInFlight, call: CallInFlight, error: PlaceDied) -> None:
        """See to it that what a dead actor was to do is done, and find out why it died."""
        overdue = None if self.board is None else read_notice(self.board, call.place)
        # Of those that are trained together nobody knows whose doing it was.
        if overdue is not None and len(overdue.clients) == 1:
            flight.note_overdue(call, overdue)
        else:
            flight.note_death(call, error)
        why = error.sign if overdue is None else "a visit was over its time"
        self.pool.replace(call.place, why)

    def _learn_speed(self, call: CallInFlight, outcomes: Sequence[Done]) -> None:
        samples = sum(self.size(task.client) for task in call.tasks)
        if not samples:  # the server's tasks say nothing about a client's
            return
        seconds = sum(outcome.seconds for outcome in outcomes if outcome.client >= 0)
        measured = seconds / samples
        before = self.seconds_per_sample
        self.seconds_per_sample = 0.7 * before + 0.3 * measured if before else measured
        place = call.place
        short = place.note_duration(seconds)
        if short and place.line is None and self.pool.is_here(place):
            self.routes.sockets.lay_line(place)

    # -- updates -----------------------------------------------------------------------------------

    def forget(self, number: int) -> None:
        self.flights.pop(number, None)
        self.pool.forget(number)

    def reduce(self, mean: Mean) -> Ref:
        while True:
            early = self._match_expectation(mean)
            arrived = self._find_arrived(mean)
            # What is here already outlives the actors that made it.
            away = early is None and arrived is None
            parts = self._locate(mean.weights, mean.maps) if away else {}
            try:
                with self.clock.running("reduce"):
                    pages = self._find_pages(mean) if mean.nbytes >= LEAST_BYTES else {}
                    handle = self.reduction.run(PlacedMean(mean, parts, early, pages, arrived))
                    return Ref(handle, nbytes=mean.nbytes)
            except PlaceDied:
                self.pool.bury_the_dead()

    def clip(self, number: int, limits: Mapping[ClientId, Norms]) -> None:
        flight = self.flights[number]
        flight.forget_sums(limits)
        parts: dict[Place, dict[ClientId, Norms]] = defaultdict(dict)
        for client, most in limits.items():
            parts[flight.where[client]][client] = most
        alive = {place: part for place, part in parts.items() if self.pool.lives(place)}
        try:
            gather_answers([place.actor.clip.remote(number, part) for place, part in alive.items()])
        except PlaceDied:
            # What is lost is made again when it is wanted, and clipped then.
            self.pool.bury_the_dead()

    def _find_pages(self, mean: Mean) -> dict[UpdateId, Page]:
        """Of the updates that were made on one."""
        pages: dict[UpdateId, Page] = {}
        for update in mean.weights:
            known = self.flights[update.number].pages.get(update.client, {})
            if mean.key in known:
                pages[update] = known[mean.key]
        return pages

    def _match_expectation(self, mean: Mean) -> list[Partial] | None:
        """Sums that were made early, if they are this mean's; and a new expectation."""
        if mean.lone or mean.map_number is None or mean.nbytes > INLINE_BYTES:
            return None
        weights = {update.client: weight for update, weight in mean.weights.items()}
        self.expectation.learn(mean.key, weights, mean.grid)
        return self.flights[mean.map_number].early.find(mean.key, weights, mean.grid)

    def _find_arrived(self, mean: Mean) -> Vector | None:
        """The one update that this mean is of, where it came with its call's answer."""
        if mean.lone is None:
            return None
        number, client = mean.lone
        return self.flights[number].arrived.get(client, {}).get(mean.key)

    def examine(
        self,
        phase: Phase,
        tasks: Mapping[UpdateId, Task],
        shared: Inputs,
        maps: Mapping[int, FinishedMap],
    ) -> list[Done]:
        try:
            return self._examine_at_once(phase, tasks, shared, maps)
        except PlaceDied:
            self.pool.bury_the_dead()
        # One by one: whoever's update has an examination end its actor is known then.
        found = []
        for update, task in tasks.items():
            found += self._examine_alone(phase, update, task, shared, maps)
        return found

    def _examine_at_once(
        self,
        phase: Phase,
        tasks: Mapping[UpdateId, Task],
        shared: Inputs,
        maps: Mapping[int, FinishedMap],
    ) -> list[Done]:
        calls = [
            self._ask_to_examine(place, phase, part, shared)
            for place, part in self._locate(tasks, maps).items()
        ]
        answers: list[list[Done]] = gather_answers(calls)
        return [outcome for part in answers for outcome in part]

    def _examine_alone(
        self,
        phase: Phase,
        update: UpdateId,
        task: Task,
        shared: Inputs,
        maps: Mapping[int, FinishedMap],
    ) -> list[Done]:
        for left in reversed(range(LIVES_OF_A_TASK)):
            try:
                return self._examine_at_once(phase, {update: task}, shared, maps)
            except PlaceDied as error:
                self.pool.bury_the_dead()
                if not left:
                    what = f"{name_visit(phase, task)}, which examines the update of client"
                    tries = f"ended its actor in each of {LIVES_OF_A_TASK} tries, alone"
                    raise PhaseError(f"{what} {update.client}, {tries} ({error.brief})") from None
        raise AssertionError

    def _ask_to_examine(
        self, place: Place, phase: Phase, tasks: Mapping[UpdateId, Task], shared: Inputs
    ) -> ObjectRef:
        packed, remote = Call(NO_MAP, phase, list(tasks.values()), shared).packed
        references = [handle.reference for handle in remote]
        return place.actor.examine.remote(packed, list(tasks), *references)

    def _locate(
        self, wanted: Mapping[UpdateId, Wanted], maps: Mapping[int, FinishedMap]
    ) -> dict[Place, dict[UpdateId, Wanted]]:
        """What is wanted of updates, by where these lie, after making the lost ones again."""
        while True:
            groups: dict[Place, dict[UpdateId, Wanted]] = defaultdict(dict)
            for update, what in wanted.items():
                groups[self.flights[update.number].where[update.client]][update] = what
            lost = [place for place in groups if not self.pool.lives(place)]
            if not lost:
                return groups
            # One map at a time: what is lost of another one shows in the next turn.
            number = next(iter(groups[lost[0]])).number
            gone = [one.client for place in lost for one in groups[place] if one.number == number]
            self._make_again(maps[number], gone)

    def _make_again(self, made: FinishedMap, clients: Sequence[ClientId]) -> None:
        """Compute updates once more whose actor is gone."""
        chain = self.flights[made.number].chain
        # A link of a chain is made of those before it.
        tasks = made.tasks if chain else {client: made.tasks[client] for client in sorted(clients)}
        done, _ = self.execute(made.number, made.phase, tasks, made.shared, chain)
        self.refuse_errors(done.values())
        clips = {client: most for client, most in made.clips.items() if client in done}
        if clips:
            self.clip(made.number, clips)


class RayErrand(Errand):
    """Tasks dealt to all places ahead of whatever the next round brings them; no actor waits for
    another."""

    def __init__(self, fleet: RayFleet, flight: MapInFlight, when_done: WhenDone) -> None:
        self.fleet, self.flight, self.when_done = fleet, flight, when_done

    def go_on(self) -> None:
        """Hand out what a dead actor left undone; the last answer ends the errand."""
        if self.flight.plan:
            self.fleet._hand_out(self.flight)
        if not self.flight.open:
            self.fleet.errands.remove(self)
            self.fleet.end_errand(self.when_done, self.flight.done.values())

    def wait(self) -> None:
        while self in self.fleet.errands:
            self.fleet._hand_out(self.flight)
            self.fleet._take_first(self.flight)
