"""The fleet in this process: for tests, debugging and the smallest machines. Same code, same bits,
one place."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.fleet.absurd import Norms
from rayfl.fleet.base import BaseFleet, Spec
from rayfl.fleet.executor import (
    Done,
    Executor,
    Holdings,
    Task,
    copy_array,
    count_bytes,
    freeze_array,
    map_leaves,
)
from rayfl.fleet.replies import FinishedMap, Mean
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import ClientId, DataRef, Phase, Ref


class InlineFleet(BaseFleet):
    """Runs every phase here, one after the other, with the threads that one actor would have."""

    def __init__(self, spec: Spec, holdings: Holdings) -> None:
        import torch

        super().__init__(spec, holdings)
        self._threads = torch.get_num_threads()
        # Visits seed the global streams, which are this process's own business.
        self._global_streams = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
        # As many as an actor has: a kernel that is split over more threads may round differently.
        torch.set_num_threads(spec.threads)
        memory = spec.safeguards.memory_bytes
        self.executor = Executor(holdings, spec.make_learner(), spec.streams, memory)

    def close(self) -> None:
        import torch

        torch.set_num_threads(self._threads)
        python, numbers, tensors = self._global_streams
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.set_rng_state(tensors)

    def share_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        self.executor.add_features(name, features)

    def forget(self, number: int) -> None:
        self.executor.updates.free(number)

    def put(self, value: Any) -> Ref:
        # As a store would: what the method does to its own array afterwards must not show.
        return Ref(map_leaves(value, copy_array), nbytes=count_bytes(value, scalars=False))

    def get(self, ref: Ref) -> Any:
        return _look_up(ref)

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        ready = [_with_values(task) for task in tasks.values()]
        inputs = _replace_refs(shared)
        results = sorted(
            self.executor.run(number, phase, ready, inputs, chain, self.times.limit(phase)),
            key=lambda result: result[0].client,
        )
        stored = {done.client: map_leaves(state, freeze_array) for done, state in results}
        return {done.client: done for done, _ in results}, stored

    def clip(self, number: int, limits: Mapping[ClientId, Norms]) -> None:
        self.executor.updates.clip(number, limits)

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
        ready = {which: _with_values(task) for which, task in tasks.items()}
        return self.executor.examine(phase, ready, _replace_refs(shared))


def _with_values(task: Task) -> Task:
    """A task with its references looked up."""
    return task._replace(inputs=_replace_refs(task.inputs), state=_replace_refs(task.state))


def _look_up(ref: Ref) -> Any:
    return ref.handle if ref.key is None else ref.handle[ref.key]


def _replace_refs(value: Any) -> Any:
    """A value with its references looked up; named sets are left to the executor."""
    return map_leaves(value, _value_of)


def _value_of(leaf: Any) -> Any:
    return _look_up(leaf) if isinstance(leaf, Ref) and not isinstance(leaf, DataRef) else leaf
