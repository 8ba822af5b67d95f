"""The fleet on Ray: a pool of long-lived actors, each pinned to its processors; clients are logical and run on any.

One call carries a list of clients; models, states and updates move by reference, actor to actor. An actor that dies is
replaced, and whatever it had not finished, or still held, is computed again with the same streams: the same bits.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from rayfl.errors import PhaseError, ResourceError
from rayfl.fleet.base import BaseFleet, Errand, Spec, Then, examined
from rayfl.fleet.exact import Grid, finish, merged
from rayfl.fleet.executor import Done, Executor, Holdings, Task, frozen, nbytes
from rayfl.fleet.expected import Answer, Early, Expectation, Expected
from rayfl.fleet.placement import Placement, Plan
from rayfl.fleet.probe import footprint
from rayfl.fleet.seam import ClientId, Phase, Ref, Replies, Report, Vector
from rayfl.fleet.travel import Batch, Here, emptied, filled, sent, within_limit

log = logging.getLogger("rayfl")

DEATHS = (RayActorError, ActorDiedError, ActorUnavailableError, OutOfMemoryError)
LIVES_OF_A_TASK = 4
INLINE_BYTES = 64 << 10
MAX_ARGUMENT_BYTES = 256 << 20  # values pinned by one call; more clients than fit are split over several calls
FAN_IN = 8  # partial sums that one actor adds up; with more actors than this, sums meet in a tree


class ClientActor:
    """One place on the cluster."""

    def __init__(self, spec: Spec, pinned: Placement, holdings: Holdings) -> None:
        self.become(spec, pinned, holdings)

    def become(self, spec: Spec, pinned: Placement, holdings: Holdings) -> None:
        """Serve this federation from now on, and nothing of an earlier one."""
        import torch

        torch.set_num_threads(spec.threads)
        if pinned.cuda and 0 < pinned.gpus < 1:
            # A fraction of a GPU is only admission control for Ray; this makes it a limit.
            torch.cuda.set_per_process_memory_fraction(pinned.gpus)
        self.executor = Executor(holdings, spec.make_learner(), spec.streams)

    def hello(self) -> dict[str, Any]:
        """Where this actor lives."""
        import torch

        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
            "threads": torch.get_num_threads(),
        }

    def run(
        self,
        number: int,
        phase: Phase,
        batch: Batch,
        shared: Mapping[str, Any],
        free: Sequence[int],
        expected: Expected | None,
        *values: Any,
    ) -> Answer:
        """Outcomes of all tasks. What state they leave is kept for `collect`."""
        for old in free:
            self.executor.free(old)
        results = list(self.executor.run(number, phase, batch.unpacked(values), filled(shared, values)))
        self.states = {done.client: dict(state) for done, state in results if state}
        done = [outcome for outcome, _ in results]
        if expected is None or not all("w" in outcome.peaks and outcome.finite for outcome in done):
            return Answer(done)
        return Answer(done, self.executor.partial(number, "w", expected.weights, expected.grid))

    def collect(self, clients: Sequence[ClientId]) -> Any:
        """The state that clients of the last run left, each an object of its own, which a neighbour may want alone."""
        states, self.states = self.states, {}
        return True, *(states[client] for client in clients)

    def examine(
        self, number: int, phase: Phase, clients: Sequence[ClientId], t: int, shared: Mapping[str, Any], *values: Any
    ) -> list[Done]:
        return self.executor.examine(number, phase, clients, t, filled(shared, values))

    def footprint(self) -> tuple[int, int]:
        """What one client takes of this actor's GPU, in bytes, and what there is."""
        return footprint(self.executor)

    def add_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        self.executor.add_features(name, features)

    def partial(self, number: int, key: str, weights: Mapping[ClientId, float], grid: Grid) -> NDArray[np.float64]:
        return self.executor.partial(number, key, weights, grid)

    def begin_sum(self, number: int, key: str, weights: Mapping[ClientId, float], grid: Grid) -> None:
        """Like `partial`, but the sum stays here, where `finish_sum` will want it."""
        self.sum = self.executor.partial(number, key, weights, grid)

    def finish_sum(self, total: float, *partials: NDArray[np.float64]) -> tuple[bool, Vector]:
        return True, finish([self.sum, *partials], total)

    def merge(self, *partials: NDArray[np.float64]) -> NDArray[np.float64]:
        return merged(partials)

    def single(self, number: int, key: str, client: ClientId) -> tuple[bool, Vector]:
        return True, self.executor.single(number, key, client)


@dataclass(frozen=True)
class Call:
    """A call that runs: first the tasks, then, once there is an answer, the collection of the states that they left."""

    place: int
    generation: int
    batch: list[Task]
    answer: Answer | None = None
    states: Mapping[ClientId, Any] = field(default_factory=dict)


@dataclass
class Place:
    """A position of the pool: its present actor, how many it has had, and the maps whose updates it may drop."""

    actor: Any
    generation: int = 0
    freed: list[int] = field(default_factory=list)


class RayFleet(BaseFleet):
    """Runs phases on a pool of actors. `holdings_ref` lies in the object store, once a node."""

    def __init__(self, spec: Spec, holdings: Holdings, holdings_ref: Any, placement: Placement) -> None:
        super().__init__(spec, holdings)
        self.placement, self.holdings_ref = placement, holdings_ref
        self.shared_features: list[tuple[str, Any]] = []
        self.pool = [Place(self._hire()) for _ in range(placement.actors)]
        self.seconds_per_sample = 0.0
        self.where: dict[tuple[int, ClientId], tuple[int, int]] = {}
        self.errands: dict[Any, RayErrand] = {}
        self.expected = Expectation(self)
        self.early: dict[int, Early] = {}
        self.hellos = self._greet()

    def _hire(self) -> Any:
        remote = ray.remote(ClientActor).options(
            num_cpus=self.placement.cpus, num_gpus=self.placement.gpus, max_restarts=0, max_task_retries=0
        )
        actor = remote.remote(self.spec, self.placement, self.holdings_ref)
        for name, features in self.shared_features:
            actor.add_features.remote(name, features)
        return actor

    def _greet(self) -> list[dict[str, Any]]:
        hellos = [place.actor.hello.remote() for place in self.pool]
        _, waiting = ray.wait(hellos, num_returns=len(hellos), timeout=60)
        if waiting:
            log.warning("%d of %d client actors still wait for resources of the cluster", len(waiting), len(hellos))
        try:
            return cast(list[dict[str, Any]], ray.get(hellos))
        except RayActorError as error:
            raise ResourceError(f"a client actor could not start:\n{error}") from error

    def close(self) -> None:
        for place in self.pool:
            ray.kill(place.actor)

    def share_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        stored = ray.put(dict(features))
        self.shared_features.append((name, stored))
        ray.get([place.actor.add_features.remote(name, stored) for place in self.pool])

    def lost(self, error: Exception) -> bool:
        return isinstance(error, RayError) and not isinstance(error, RayTaskError)

    def put(self, value: Any) -> Ref:
        return Ref(ray.put(value), nbytes=nbytes(value, scalars=False))

    def get(self, ref: Ref) -> Any:
        value = ref.handle.value if isinstance(ref.handle, Here) else ray.get(ref.handle)
        return value if ref.key is None else value[ref.key]

    # -- running -----------------------------------------------------------------------------------------------

    def execute(
        self, number: int, phase: Phase, tasks: Mapping[ClientId, Task], shared: Mapping[str, Any]
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        shared = self._stored(shared)
        plan = self._plan(tasks)
        idle, lives = list(range(len(self.pool))), dict.fromkeys(tasks, LIVES_OF_A_TASK)
        early = self.early[number] = Early(self.expected.of(tasks))
        running: dict[Any, Call] = {}
        done: dict[ClientId, Done] = {}
        stored: dict[ClientId, Any] = {}
        while plan or running:
            while plan and idle:
                place = idle.pop(0)
                batch, rest = within_limit(plan.next(), MAX_ARGUMENT_BYTES)
                if rest:
                    plan.put_back(rest)
                running[self._run(place, number, phase, batch, shared, early.expected)] = self._call(place, batch)
            finished = ray.wait([*self.errands, *running], num_returns=1)[0][0]
            if finished in self.errands:
                self.errands[finished].answered(finished)
                continue
            call = running.pop(finished)
            answer = self._answer(finished, call, lives)
            if answer is None:
                plan.put_back(call.batch)
            elif call.answer is None and (leaving := [done.client for done in answer.done if done.state_bytes]):
                # A state must outlive its actor: only what has been collected is done.
                first, *handles = self._collect(call.place, leaving)
                states = dict(zip(leaving, handles, strict=True))
                running[first] = replace(call, answer=answer, states=states)
                continue
            else:
                answer = call.answer or answer
                outcomes = answer.done
                early.answers.append(answer)
                done |= {outcome.client: outcome for outcome in outcomes}
                stored |= call.states
                lies = (call.place, call.generation)
                self.where |= {(number, outcome.client): lies for outcome in outcomes}
                if any(outcome.error for outcome in outcomes):
                    break
                self._learn_speed(outcomes, call.batch)
            idle.append(call.place)
        return {client: done[client] for client in sorted(done)}, stored

    def later(self, phase: Phase, each: Mapping[ClientId, Mapping[str, Any]], then: Then, **shared: Any) -> Errand:
        tasks = [self._task(client, each) for client in each]
        return RayErrand(self, next(self._numbers), phase, tasks, self._stored(shared), then)

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
    ) -> Any:
        values: dict[Any, int] = {}
        batch, common = Batch.packed(tasks, values), emptied(shared, values)
        freed, self.pool[place].freed = self.pool[place].freed, []
        part = None if expected is None else expected.part(batch.clients)
        return self.pool[place].actor.run.remote(number, phase, batch, common, freed, part, *sent(values))

    def _call(self, place: int, batch: list[Task]) -> Call:
        return Call(place, self.pool[place].generation, batch)

    def _collect(self, place: int, clients: list[ClientId]) -> list[Any]:
        method = self.pool[place].actor.collect.options(num_returns=1 + len(clients))
        return cast(list[Any], method.remote(clients))

    def _answer(self, finished: Any, call: Call, lives: dict[ClientId, int]) -> Answer | None:
        """What a call answered; None when its actor died (and has been replaced)."""
        try:
            return cast(Answer, ray.get(finished))
        except DEATHS as error:
            for task in call.batch:
                lives[task.client] -= 1
                if not lives[task.client]:
                    raise PhaseError(
                        f"client {task.client} was part of {LIVES_OF_A_TASK} calls in round {self.round} "
                        f"whose actors died:\n{error}"
                    ) from error
            if self.pool[call.place].generation == call.generation:
                self._replace(call.place, error)
            return None
        except RayTaskError as error:
            who = ", ".join(str(task.client) for task in call.batch[:5])
            raise PhaseError(f"a call for client {who} failed in round {self.round}:\n{error}") from error

    def _replace(self, place: int, error: Exception) -> None:
        log.warning("client actor %d died in round %d and is replaced (%s)", place, self.round, type(error).__name__)
        ray.kill(self.pool[place].actor)
        self.pool[place] = Place(self._hire(), self.pool[place].generation + 1)

    def _plan(self, tasks: Mapping[ClientId, Task]) -> Plan[Task]:
        pace = max(self.seconds_per_sample, 1e-6)
        seconds = {client: max(self.size(client), 1) * pace for client in tasks}
        return Plan(list(tasks.values()), lambda task: seconds[task.client], len(self.pool))

    def _learn_speed(self, outcomes: Sequence[Done], batch: Sequence[Task]) -> None:
        samples = sum(self.size(task.client) for task in batch)
        if not samples:  # the server's tasks say nothing about a client's
            return
        measured = sum(outcome.seconds for outcome in outcomes if outcome.client >= 0) / samples
        self.seconds_per_sample = (
            measured if not self.seconds_per_sample else 0.7 * self.seconds_per_sample + 0.3 * measured
        )

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

    def forget(self, number: int, clients: Sequence[ClientId]) -> None:
        for client in clients:
            self.where.pop((number, client), None)
        for place in self.pool:
            place.freed.append(number)

    def holders(self, number: int, clients: Sequence[ClientId]) -> dict[int, list[ClientId]] | list[ClientId]:
        """Which place holds whose update; or the clients whose update died with its actor."""
        lost = []
        groups: dict[int, list[ClientId]] = {}
        for client in clients:
            place, generation = self.where[number, client]
            if generation != self.pool[place].generation:
                lost.append(client)
            groups.setdefault(place, []).append(client)
        return lost or groups

    def bury_the_dead(self) -> None:
        """Replace every actor that no longer answers."""
        for place, held in enumerate(self.pool):
            try:
                ray.get(held.actor.hello.remote())
            except DEATHS as error:
                self._replace(place, error)


class RayErrand(Errand):
    """Tasks dealt to all places at once, ahead of whatever the next round brings them; no actor waits for another."""

    def __init__(
        self, fleet: RayFleet, number: int, phase: Phase, tasks: list[Task], shared: Mapping[str, Any], then: Then
    ) -> None:
        self.fleet, self.number, self.phase, self.shared, self.then = fleet, number, phase, shared, then
        self.calls: dict[Any, Call] = {}
        self.done: dict[ClientId, Done] = {}
        self.lives = {task.client: LIVES_OF_A_TASK for task in tasks}
        places = len(fleet.pool)
        for place in range(min(places, len(tasks))):
            self._send(fleet._call(place, tasks[place::places]))

    def _send(self, call: Call) -> None:
        reference = self.fleet._run(call.place, self.number, self.phase, call.batch, self.shared)
        self.calls[reference] = call
        self.fleet.errands[reference] = self

    def answered(self, reference: Any) -> None:
        """Take what one call answered; the last one ends the errand."""
        call = self.calls.pop(reference)
        del self.fleet.errands[reference]
        answer = self.fleet._answer(reference, call, self.lives)
        if answer is None:
            self._send(self.fleet._call(call.place, call.batch))
            return
        self.done |= {outcome.client: outcome for outcome in answer.done}
        if not self.calls:
            self.fleet.tell(self.then, self.done.values())

    def wait(self) -> None:
        while self.calls:
            self.answered(ray.wait(list(self.calls), num_returns=1)[0][0])


class RayReplies(Replies):
    """Updates that lie at the actors, and the recipe to make a lost one again."""

    def __init__(
        self,
        fleet: RayFleet,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        done: Mapping[ClientId, Done],
    ) -> None:
        super().__init__({client: outcome.report for client, outcome in done.items()})
        self._fleet, self._number, self._phase, self._tasks, self._shared = fleet, number, phase, tasks, shared
        self._peaks = {client: outcome.peaks for client, outcome in done.items()}
        self._bytes = {client: outcome.update_bytes for client, outcome in done.items()}
        self._early = fleet.early.pop(number)
        weakref.finalize(self, fleet.forget, number, list(tasks))

    def mean(self, weights: Mapping[ClientId, float], key: str = "w") -> Ref:
        chosen = self.checked_weights(weights)
        size = self._bytes[next(iter(chosen))][key]
        while True:
            groups = self._held(list(chosen))
            try:
                return Ref(self._mean(groups, chosen, key, small=size <= INLINE_BYTES), nbytes=size)
            except DEATHS:
                self._fleet.bury_the_dead()

    def _mean(self, groups: dict[int, list[ClientId]], weights: Mapping[ClientId, float], key: str, small: bool) -> Any:
        """The handle of the mean. Small sums are added up here, large ones where the first of them lies."""
        actors = {place: self._fleet.pool[place].actor for place in groups}
        first, *others = groups
        if len(weights) == 1:
            return settled(actors[first].single, self._number, key, next(iter(weights)))
        grid = Grid.bounded(sum(w * self._peaks[c][key] for c, w in weights.items()), len(weights))
        if small and key == "w":
            self._fleet.expected.learn(weights, grid)
            if (sums := self._early.sums(weights, grid)) is not None:
                return Here(frozen(finish(sums, sum(weights.values()))))
        parts = {place: {client: weights[client] for client in clients} for place, clients in groups.items()}
        total = sum(weights.values())
        if small:
            asked = [actors[place].partial.remote(self._number, key, part, grid) for place, part in parts.items()]
            return Here(frozen(finish(ray.get(asked), total)))
        begun = actors[first].begin_sum.remote(self._number, key, parts[first], grid)
        partials = [actors[place].partial.remote(self._number, key, parts[place], grid) for place in others]
        ray.get(begun)
        return settled(actors[first].finish_sum, total, *in_a_tree([actors[place] for place in others], partials))

    def examine(self, phase: Phase, **inputs: Any) -> dict[ClientId, Report]:
        values: dict[Any, int] = {}
        shared = emptied(inputs, values)
        while True:
            groups = self._held(list(self))
            calls = [
                self._fleet.pool[place].actor.examine.remote(
                    self._number, phase, clients, self._fleet.round, shared, *sent(values)
                )
                for place, clients in groups.items()
            ]
            try:
                done = [outcome for part in ray.get(calls) for outcome in part]
            except DEATHS:
                self._fleet.bury_the_dead()
                continue
            return examined(self._fleet, done)

    def _held(self, clients: list[ClientId]) -> dict[int, list[ClientId]]:
        """Which place holds whose update, after making the lost ones again."""
        while True:
            found = self._fleet.holders(self._number, clients)
            if isinstance(found, dict):
                return found
            lost = {client: self._tasks[client] for client in found}
            done, _ = self._fleet.execute(self._number, self._phase, lost, self._shared)
            del self._fleet.early[self._number]
            self._fleet.refuse_errors(done.values())


def settled(method: Any, *arguments: Any) -> Any:
    """The handle of a vector that an actor makes, once it is certain that the actor lived to make it."""
    answered, vector = method.options(num_returns=2).remote(*arguments)
    ray.get(answered)
    return vector


def in_a_tree(actors: Sequence[Any], partials: list[Any]) -> list[Any]:
    """At most FAN_IN partial sums that stand for all; exact sums may meet in any grouping."""
    while len(partials) > FAN_IN:
        groups = [slice(start, start + FAN_IN) for start in range(0, len(partials), FAN_IN)]
        partials = [actors[group.start].merge.remote(*partials[group]) for group in groups]
    return partials
