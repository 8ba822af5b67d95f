"""The fleet in this process: for tests, debugging and the smallest machines. Same code, same bits,
one place."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.fleet.base import BaseFleet, Spec, examined
from rayfl.fleet.executor import Done, Executor, Holdings, Task, copied, frozen, nbytes, walked
from rayfl.fleet.sums.exact_sums import Grid
from rayfl.protocol import ClientId, DataRef, Phase, Ref, Replies, Report


class InlineFleet(BaseFleet):
    """Runs every phase here, one after the other, with the threads that one actor would have."""

    def __init__(self, spec: Spec, holdings: Holdings) -> None:
        import torch

        super().__init__(spec, holdings)
        self._threads = torch.get_num_threads()
        # As many as an actor has: a kernel that is split over more threads may round differently.
        torch.set_num_threads(spec.threads)
        self.executor = Executor(holdings, spec.make_learner(), spec.streams)

    def close(self) -> None:
        import torch

        torch.set_num_threads(self._threads)

    def share_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        self.executor.add_features(name, features)

    def forget(self, number: int) -> None:
        self.executor.free(number)

    def put(self, value: Any) -> Ref:
        # As a store would: what the method does to its own array afterwards must not show.
        return Ref(walked(value, copied), nbytes=nbytes(value, scalars=False))

    def get(self, ref: Ref) -> Any:
        return fetched(ref)

    def execute(
        self, number: int, phase: Phase, tasks: Mapping[ClientId, Task], shared: Mapping[str, Any]
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        ready = [
            Task(task.client, task.t, here(task.inputs), here(task.state))
            for task in tasks.values()
        ]
        results = list(self.executor.run(number, phase, ready, here(shared)))
        stored = {done.client: walked(state, frozen) for done, state in results}
        return {done.client: done for done, _ in results}, stored

    def replies(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        done: Mapping[ClientId, Done],
    ) -> Replies:
        return InlineReplies(self, number, done)


class InlineReplies(Replies):
    """Updates in this process's executor, freed with this object."""

    def __init__(self, fleet: InlineFleet, number: int, done: Mapping[ClientId, Done]) -> None:
        super().__init__({client: outcome.report for client, outcome in done.items()})
        self._fleet, self._number = fleet, number
        self._peaks = {client: outcome.peaks for client, outcome in done.items()}
        weakref.finalize(self, fleet.forget, number)

    def mean(self, weights: Mapping[ClientId, float], key: str = "w") -> Ref:
        chosen = self.checked_weights(weights)
        executor = self._fleet.executor
        if len(chosen) == 1:
            return self._fleet.put(executor.single(self._number, key, next(iter(chosen))))
        grid = Grid.bounded(sum(w * self._peaks[c][key] for c, w in chosen.items()), len(chosen))
        with self._fleet.clock.running("reduce"):
            return self._fleet.put(executor.whole(self._number, key, chosen, grid))

    def examine(self, phase: Phase, **inputs: Any) -> dict[ClientId, Report]:
        done = self._fleet.executor.examine(
            self._number, phase, list(self), self._fleet.round, here(inputs)
        )
        return examined(self._fleet, done)


def fetched(ref: Ref) -> Any:
    return ref.handle if ref.key is None else ref.handle[ref.key]


def here(value: Any) -> Any:
    """A value with its references looked up; named sets are left to the executor."""
    return walked(
        value,
        lambda leaf: (
            fetched(leaf) if isinstance(leaf, Ref) and not isinstance(leaf, DataRef) else leaf
        ),
    )
