"""The fleet on Ray: a pool of long-lived actors, each pinned to its processors; clients are logical and run on any.

One call carries a list of clients; models, states and updates move by reference, actor to actor. An actor that dies is
replaced, and whatever it had not finished, or still held, is computed again with the same streams: the same bits.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
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
from rayfl.fleet.places import Call, Place, in_a_tree
from rayfl.fleet.probe import footprint
from rayfl.fleet.seam import ClientId, Phase, Ref, Replies, Report, Vector
from rayfl.fleet.travel import Batch, Here, emptied, filled, sent, within_limit

log = logging.getLogger("rayfl")

DEATHS = (RayActorError, ActorDiedError, ActorUnavailableError, OutOfMemoryError)
LIVES_OF_A_TASK = 4
STILLBIRTHS = 10  # in a row, of one place; each that is put on a dying node is one
GREETING_SECONDS = 60
INLINE_BYTES = 64 << 10
MAX_ARGUMENT_BYTES = 256 << 20  # values pinned by one call; more clients than fit are split over several calls


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


class RayFleet(BaseFleet):
    """Runs phases on a pool of actors. `holdings_ref` lies in the object store, once a node."""

    def __init__(self, spec: Spec, holdings: Holdings, holdings_ref: Any, placement: Placement) -> None:
        super().__init__(spec, holdings)
        self.placement, self.holdings_ref = placement, holdings_ref
        self.shared_features: list[tuple[str, Any]] = []
        self.pool = [Place(self._hire()) for _ in range(placement.actors)]
        # An actor is given work once it has answered: until then there may be no room for it on the cluster.
        self.awaited = {place.actor.hello.remote(): number for number, place in enumerate(self.pool)}
        self.hellos: list[dict[str, Any]] = [{} for _ in self.pool]
        self.seconds_per_sample = 0.0
        self.where: dict[tuple[int, ClientId], tuple[int, int]] = {}
        self.errands: dict[Any, RayErrand] = {}
        self.expected = Expectation(self)
        self.early: dict[int, Early] = {}
        self._greet()

    def _hire(self) -> Any:
        remote = ray.remote(ClientActor).options(
            num_cpus=self.placement.cpus, num_gpus=self.placement.gpus, max_restarts=0, max_task_retries=0
        )
        actor = remote.remote(self.spec, self.placement, self.holdings_ref)
        for name, features in self.shared_features:
            actor.add_features.remote(name, features)
        return actor

    def _greet(self) -> None:
        """Give all actors some time; who finds no room by then joins when there is some."""
        ray.wait(list(self.awaited), num_returns=len(self.awaited), timeout=GREETING_SECONDS)
        self._present()
        if self.awaited:
            log.warning("%d of %d client actors wait for room on the cluster", len(self.awaited), len(self.pool))

    def _present(self) -> list[int]:
        """The places whose actors run; waits until there is one."""
        if self.awaited:
            for hello in ray.wait(list(self.awaited), num_returns=len(self.awaited), timeout=0)[0]:
                self._hear(hello)
        present = sorted(set(range(len(self.pool))) - set(self.awaited.values()))
        if not present:
            ray.wait(list(self.awaited), num_returns=1)
        return present or self._present()

    def _hear(self, hello: Any) -> None:
        """An actor's first answer; or that it died before, of itself or of the node that it was put on."""
        place = self.awaited.pop(hello)
        try:
            self.hellos[place] = ray.get(hello)
        except DEATHS as error:
            stillbirths = self.pool[place].stillbirths + 1
            if stillbirths == STILLBIRTHS or getattr(error, "actor_init_failed", False):
                raise ResourceError(f"a client actor could not start:\n{error}") from error
            self._replace(place, error, stillbirths)

    def close(self) -> None:
        for place in self.pool:
            ray.kill(place.actor)

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
        value = ref.handle.value if isinstance(ref.handle, Here) else ray.get(ref.handle)
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
        while plan or running:
            busy = {call.place for call in running.values()}
            for place in self._present():
                if place in busy or not plan:
                    continue
                batch, rest = within_limit(plan.next(), MAX_ARGUMENT_BYTES)
                if rest:
                    plan.put_back(rest)
                running[self._run(place, number, phase, batch, shared, early.expected)] = self._call(place, batch)
            finished = ray.wait([*self.errands, *running, *self.awaited], num_returns=1)[0][0]
            if finished in self.awaited:
                continue
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
        except ObjectLostError:
            raise  # what lay on a node that died is only in the last checkpoint
        except RayTaskError as error:
            who = ", ".join(str(task.client) for task in call.batch[:5])
            raise PhaseError(f"a call for client {who} failed in round {self.round}:\n{error}") from error

    def _replace(self, place: int, error: Exception, stillbirths: int = 0) -> None:
        log.warning("client actor %d died in round %d and is replaced (%s)", place, self.round, type(error).__name__)
        ray.kill(self.pool[place].actor)
        self.pool[place] = Place(self._hire(), self.pool[place].generation + 1, stillbirths)
        self.awaited = {hello: other for hello, other in self.awaited.items() if other != place}
        self.awaited[self.pool[place].actor.hello.remote()] = place

    def _plan(self, tasks: Mapping[ClientId, Task]) -> Plan[Task]:
        pace = max(self.seconds_per_sample, 1e-6)
        seconds = {client: max(self.size(client), 1) * pace for client in tasks}
        return Plan(list(tasks.values()), lambda task: seconds[task.client], len(self._present()))

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
        for place in self._present():
            try:
                ray.get(self.pool[place].actor.hello.remote())
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
        places = fleet._present()
        for start, place in enumerate(places[: len(tasks)]):
            self._send(fleet._call(place, tasks[start :: len(places)]))

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
            self._send(self.fleet._call(self.fleet._present()[0], call.batch))
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
