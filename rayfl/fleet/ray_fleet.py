"""The fleet on Ray: a pool of long-lived actors, each pinned to its processors; clients are logical and run on any.

One call carries a list of clients; models, states and updates move by reference, actor to actor. An actor that dies is
replaced, and whatever it had not finished, or still held, is computed again with the same streams: the same bits.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from rayfl.fleet.base import BaseFleet, Spec, examined
from rayfl.fleet.exact import Grid, finish
from rayfl.fleet.executor import Done, Executor, Holdings, Task, nbytes, walked
from rayfl.fleet.placement import Placement, Plan
from rayfl.fleet.seam import ClientId, DataRef, Phase, Ref, Replies, Report, Vector

log = logging.getLogger("rayfl")

DEATHS = (RayActorError, ActorDiedError, ActorUnavailableError, OutOfMemoryError)
LIVES_OF_A_TASK = 4
INLINE_BYTES = 64 << 10
MAX_ARGUMENT_BYTES = 256 << 20  # values pinned by one call; more clients than fit are split over several calls


@dataclass(frozen=True)
class Slot:
    """Stands in a call's inputs for the i-th value that travels beside them."""

    i: int
    key: str | None


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
        tasks: Sequence[Task],
        shared: Mapping[str, Any],
        free: Sequence[int],
        *values: Any,
    ) -> Any:
        """Outcomes of all tasks, then the state that each leaves, as separate objects."""
        for old in free:
            self.executor.free(old)
        ready = [Task(task.client, task.t, filled(task.inputs, values), filled(task.state, values)) for task in tasks]
        results = list(self.executor.run(number, phase, ready, filled(shared, values)))
        states: list[Mapping[str, Any]] = [dict(state) for _, state in results]
        states += [{}] * (len(tasks) - len(states))
        return [done for done, _ in results], *states

    def examine(
        self, number: int, phase: Phase, clients: Sequence[ClientId], t: int, shared: Mapping[str, Any], *values: Any
    ) -> list[Done]:
        return self.executor.examine(number, phase, clients, t, filled(shared, values))

    def add_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        self.executor.add_features(name, features)

    def partial(self, number: int, key: str, weights: Mapping[ClientId, float], grid: Grid) -> NDArray[np.float64]:
        return self.executor.partial(number, key, weights, grid)

    def whole(self, number: int, key: str, weights: Mapping[ClientId, float], grid: Grid) -> tuple[bool, Vector]:
        return True, self.executor.whole(number, key, weights, grid)

    def single(self, number: int, key: str, client: ClientId) -> tuple[bool, Vector]:
        return True, self.executor.single(number, key, client)

    def combine(self, total: float, *partials: NDArray[np.float64]) -> tuple[bool, Vector]:
        return True, finish(list(partials), total)


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
        value = ray.get(ref.handle)
        return value if ref.key is None else value[ref.key]

    # -- running -----------------------------------------------------------------------------------------------

    def execute(
        self, number: int, phase: Phase, tasks: Mapping[ClientId, Task], shared: Mapping[str, Any]
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        shared = self._stored(shared)
        plan = Plan(list(tasks.values()), self._predicted, len(self.pool))
        idle, lives = list(range(len(self.pool))), dict.fromkeys(tasks, LIVES_OF_A_TASK)
        running: dict[Any, tuple[int, list[Task], list[Any]]] = {}
        done: dict[ClientId, Done] = {}
        stored: dict[ClientId, Any] = {}
        while plan or running:
            while plan and idle:
                place = idle.pop(0)
                batch, rest = within_limit(plan.next(), MAX_ARGUMENT_BYTES)
                if rest:
                    plan.put_back(rest)
                first, *states = self._call(place, number, phase, batch, shared)
                running[first] = (place, batch, states)
            finished = ray.wait(list(running), num_returns=1)[0][0]
            place, batch, states = running.pop(finished)
            idle.append(place)
            outcomes = self._outcomes(finished, place, batch, lives)
            if outcomes is None:
                plan.put_back(batch)
                continue
            for outcome, task, handle in zip(outcomes, batch, states, strict=False):
                done[task.client], stored[task.client] = outcome, handle
                self.where[number, task.client] = (place, self.pool[place].generation)
            if any(outcome.error for outcome in outcomes):
                break
            self._learn_speed(outcomes, batch)
        return {client: done[client] for client in sorted(done)}, stored

    def _stored(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Large arrays among the inputs go to the object store once, not into every call."""
        large = {
            name: value
            for name, value in shared.items()
            if isinstance(value, np.ndarray) and value.nbytes > INLINE_BYTES
        }
        return {**shared, **{name: self.put(value) for name, value in large.items()}}

    def _call(self, place: int, number: int, phase: Phase, batch: list[Task], shared: Mapping[str, Any]) -> list[Any]:
        values: dict[Any, int] = {}
        sent = [Task(task.client, task.t, emptied(task.inputs, values), emptied(task.state, values)) for task in batch]
        common = emptied(shared, values)
        freed, self.pool[place].freed = self.pool[place].freed, []
        method = self.pool[place].actor.run.options(num_returns=1 + len(batch))
        return cast(list[Any], method.remote(number, phase, sent, common, freed, *values))

    def _outcomes(self, finished: Any, place: int, batch: list[Task], lives: dict[ClientId, int]) -> list[Done] | None:
        """What a call answered; None when its actor died (and has been replaced)."""
        try:
            return cast(list[Done], ray.get(finished))
        except DEATHS as error:
            for task in batch:
                lives[task.client] -= 1
                if not lives[task.client]:
                    raise PhaseError(
                        f"client {task.client} was part of {LIVES_OF_A_TASK} calls in round {self.round} "
                        f"whose actors died:\n{error}"
                    ) from error
            self._replace(place, error)
            return None
        except RayTaskError as error:
            who = ", ".join(str(task.client) for task in batch[:5])
            raise PhaseError(f"a call for client {who} failed in round {self.round}:\n{error}") from error

    def _replace(self, place: int, error: Exception) -> None:
        log.warning("client actor %d died in round %d and is replaced (%s)", place, self.round, type(error).__name__)
        ray.kill(self.pool[place].actor)
        self.pool[place] = Place(self._hire(), self.pool[place].generation + 1)

    def _predicted(self, task: Task) -> float:
        return max(self.size(task.client), 1) * max(self.seconds_per_sample, 1e-6)

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
        weakref.finalize(self, fleet.forget, number, list(tasks))

    def mean(self, weights: Mapping[ClientId, float], key: str = "w") -> Ref:
        chosen = self.checked_weights(weights)
        while True:
            groups = self._held(list(chosen))
            try:
                answered, vector = self._mean(groups, chosen, key)
                ray.get(answered)
            except DEATHS:
                self._fleet.bury_the_dead()
                continue
            return Ref(vector, nbytes=self._bytes[next(iter(chosen))][key])

    def _mean(self, groups: dict[int, list[ClientId]], weights: Mapping[ClientId, float], key: str) -> Any:
        pool, number = self._fleet.pool, self._number
        if len(weights) == 1:
            (place, (client,)) = next(iter(groups.items()))
            return pool[place].actor.single.options(num_returns=2).remote(number, key, client)
        grid = Grid.bounded(sum(w * self._peaks[c][key] for c, w in weights.items()), len(weights))
        parts = {place: {client: weights[client] for client in clients} for place, clients in groups.items()}
        first = next(iter(parts))
        if len(parts) == 1:
            return pool[first].actor.whole.options(num_returns=2).remote(number, key, weights, grid)
        partials = [pool[place].actor.partial.remote(number, key, part, grid) for place, part in parts.items()]
        total = sum(weights.values())
        return pool[first].actor.combine.options(num_returns=2).remote(total, *partials)

    def examine(self, phase: Phase, **inputs: Any) -> dict[ClientId, Report]:
        values: dict[Any, int] = {}
        shared = emptied(inputs, values)
        while True:
            groups = self._held(list(self))
            calls = [
                self._fleet.pool[place].actor.examine.remote(
                    self._number, phase, clients, self._fleet.round, shared, *values
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
            self._fleet.refuse_errors(done.values())


def within_limit(batch: list[Task], limit: int) -> tuple[list[Task], list[Task]]:
    """The first tasks of a batch whose arguments stay under a size (at least one), and the others."""
    total = 0
    for position, task in enumerate(batch):
        total += nbytes(task.inputs, scalars=False) + nbytes(task.state, scalars=False)
        if position and total > limit:
            return batch[:position], batch[position:]
    return batch, []


def emptied(value: Any, values: dict[Any, int]) -> Any:
    """Inputs with every reference replaced by a Slot; `values` collects the object references, each once."""

    def slot(leaf: Any) -> Any:
        if not isinstance(leaf, Ref) or isinstance(leaf, DataRef):
            return leaf
        return Slot(values.setdefault(leaf.handle, len(values)), leaf.key)

    return walked(value, slot)


def filled(value: Any, values: Sequence[Any]) -> Any:
    """The inverse of `emptied`, where the values have arrived."""

    def arrived(leaf: Any) -> Any:
        if not isinstance(leaf, Slot):
            return leaf
        return values[leaf.i] if leaf.key is None else values[leaf.i][leaf.key]

    return walked(value, arrived)
