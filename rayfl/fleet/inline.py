"""The fleet in this process: for tests, debugging and the smallest machines. Same code, same bits,
one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.fleet.base import BaseFleet, Spec
from rayfl.fleet.executor import Done, Executor, Holdings, Task, copied, frozen, nbytes, walked
from rayfl.fleet.replies import FinishedMap, Mean
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import ClientId, DataRef, Phase, Ref


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
        self.executor.updates.free(number)

    def put(self, value: Any) -> Ref:
        # As a store would: what the method does to its own array afterwards must not show.
        return Ref(walked(value, copied), nbytes=nbytes(value, scalars=False))

    def get(self, ref: Ref) -> Any:
        return fetched(ref)

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        ready = [
            Task(task.client, task.t, here(task.inputs), here(task.state))
            for task in tasks.values()
        ]
        results = list(self.executor.run(number, phase, ready, here(shared), chain))
        stored = {done.client: walked(state, frozen) for done, state in results}
        return {done.client: done for done, _ in results}, stored

    def reduce(self, mean: Mean) -> Ref:
        updates = self.executor.updates
        if mean.lone is not None:
            return self.put(updates.vector(mean.lone, mean.key))
        with self.clock.running("reduce"):
            return self.put(updates.whole(mean.key, mean.weights, mean.grid, mean.total))

    def examine(
        self,
        phase: Phase,
        tasks: Mapping[UpdateId, Task],
        shared: Mapping[str, Any],
        maps: Mapping[int, FinishedMap],
    ) -> list[Done]:
        ready = {update: task._replace(inputs=here(task.inputs)) for update, task in tasks.items()}
        return self.executor.examine(phase, ready, here(shared))


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
