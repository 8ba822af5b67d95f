"""What every client actor runs: an executor, and its answers to the coordinator."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from rayfl.fleet.base import Spec
from rayfl.fleet.cores import keep_to_own
from rayfl.fleet.executor import Done, Executor, Holdings
from rayfl.fleet.garbage import settle, settling_in
from rayfl.fleet.on_ray.call_values import STATE_BYTES, Batch, filled
from rayfl.fleet.on_ray.gpu_probe import footprint
from rayfl.fleet.on_ray.placement import Placement
from rayfl.fleet.on_ray.socket_calls import answered, packed
from rayfl.fleet.sums.early_sums import Answer, Expected
from rayfl.fleet.sums.exact_sums import Grid, Partial, finish, merged, whole_sum
from rayfl.fleet.sums.shared_memory import Opened, Page, Pages
from rayfl.protocol import ClientId, Phase, Vector

log = logging.getLogger("rayfl")

FIRST_CALLS = 8  # by then, what the work imports and keeps is there


class ClientActor:
    """One place on the cluster."""

    def __init__(self, spec: list[Any], pinned: Placement, holdings: list[Any]) -> None:
        """`spec` and `holdings` come as references, for to look at them is to import torch."""
        # Calls on a standing line come in a thread of their own, beside an errand's.
        self.one_at_a_time = threading.Lock()
        self.states: dict[tuple[int, ClientId], Any] = {}
        self.sums: list[Partial] = []
        self.pages, self.opened = Pages(), Opened()
        with settling_in():
            made, held = ray.get([*spec, *holdings])
            self.cores = keep_to_own(made.threads)
            self.become(made, pinned, held)

    def become(self, spec: Spec, pinned: Placement, holdings: Holdings) -> None:
        """Serve this federation from now on, and nothing of an earlier one."""
        import torch

        torch.set_num_threads(spec.threads)
        if pinned.cuda and 0 < pinned.gpus < 1:
            # A fraction of a GPU is only admission control for Ray; this makes it a limit.
            torch.cuda.set_per_process_memory_fraction(pinned.gpus)
        self.executor = Executor(holdings, spec.make_learner(), spec.streams)
        self.executor.learner.fresh = self.pages.vector
        self.calls = 0

    def hello(self) -> dict[str, Any]:
        """Where this actor lives."""
        import torch

        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
            "threads": torch.get_num_threads(),
            "cores": self.cores,
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
        """Outcomes of all tasks. What large states they leave is kept for `collect`."""
        with self.one_at_a_time:
            self.calls += 1
            if self.calls == FIRST_CALLS:
                settle()
            self._free(free)
            results = list(
                self.executor.run(number, phase, batch.unpacked(values), filled(shared, values))
            )
            done = [outcome for outcome, _ in results]
            small = self._keep(number, [(done, state) for done, state in results if state])
            pages = self.executor.pages_of(number, [outcome.client for outcome in done], self.pages)
            # Without the diverged, the mean is another one, with weights that nobody expected.
            if expected is None or not all(
                "w" in outcome.peaks and outcome.finite for outcome in done
            ):
                return Answer(done, None, small, pages)
            return Answer(
                done,
                self.executor.partial(number, "w", expected.weights, expected.grid),
                small,
                pages,
            )

    def answer(self, common: bytes, own: bytes, *values: Any) -> tuple[list[ClientId], bytes]:
        """`run` for a keeper: whose states it is to collect, and an answer that it hands on
        unread."""
        # What the calls of a map have in common was packed once for all of them.
        (phase, shared), (number, batch, free, expected) = pickle.loads(common), pickle.loads(own)
        answer = self.run(number, phase, batch, shared, free, expected, *values)
        return answer.elsewhere, packed(answer)

    def _keep(
        self, number: int, left: Sequence[tuple[Done, Mapping[str, Any]]]
    ) -> dict[ClientId, bytes]:
        """Keep the large ones of the states that a map left; the small ones travel at once."""
        small: dict[ClientId, bytes] = {}
        for done, state in left:
            if sum(done.state_bytes.values()) <= STATE_BYTES:
                small[done.client] = packed(dict(state))
            else:
                self.states[number, done.client] = dict(state)
        return small

    def _free(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.executor.free(number)
        if self.states:
            self.states = {
                key: state for key, state in self.states.items() if key[0] not in numbers
            }

    def listen(self, key: bytes) -> str:
        """The address of a line on which `run` is called."""
        return answered(self.run, key)

    def collect(self, number: int, clients: Sequence[ClientId]) -> Any:
        """The state that clients of a map left, each an object of its own, which a neighbour may
        want alone."""
        return True, *(self.states.pop((number, client)) for client in clients)

    def examine(
        self,
        number: int,
        phase: Phase,
        clients: Sequence[ClientId],
        t: int,
        shared: Mapping[str, Any],
        *values: Any,
    ) -> list[Done]:
        return self.executor.examine(number, phase, clients, t, filled(shared, values))

    def footprint(self) -> tuple[int, int]:
        """What one client takes of this actor's GPU, in bytes, and what there is."""
        return footprint(self.executor)

    def add_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        self.executor.add_features(name, features)

    def partial(
        self, number: int, key: str, weights: Mapping[ClientId, float], grid: Grid
    ) -> Partial:
        return self.executor.partial(number, key, weights, grid)

    def laid_out(
        self, number: int, key: str, clients: Sequence[ClientId]
    ) -> dict[ClientId, Page | None]:
        """Where these updates lie for all to see; what the phase left elsewhere is brought there,
        if there is room."""
        return {client: self.executor.page(number, key, client, self.pages) for client in clients}

    def add_up(
        self,
        pages: Mapping[ClientId, Page],
        weights: Mapping[ClientId, float],
        grid: Grid,
        total: float,
        mean: Page,
        numbers: slice,
    ) -> bool:
        """Write some numbers of the mean of all actors' updates; whether their memory could be seen
        from here."""
        try:
            seen = self.opened.only([*pages.values(), mean], mean)
        except OSError as error:
            log.warning("an update in shared memory could not be read: %s", error)
            return False
        vectors = {client: seen[page][numbers] for client, page in pages.items()}
        whole_sum(vectors, weights, grid, total, seen[mean][numbers])
        return True

    def begin_sum(
        self, number: int, key: str, weights: Mapping[ClientId, float], grid: Grid
    ) -> None:
        """Like `partial`, but the sum stays here, where `finish_sum` will want it."""
        self.sums = [self.executor.partial(number, key, weights, grid)]

    def finish_sum(self, total: float, *partials: Partial) -> tuple[bool, Vector]:
        own, self.sums = self.sums, []  # twice the size of the model, and of no more use
        return True, finish([*own, *partials], total)

    def merge(self, *partials: Partial) -> Partial:
        return merged(partials)

    def single(self, number: int, key: str, client: ClientId) -> tuple[bool, Vector]:
        return True, self.executor.single(number, key, client)
