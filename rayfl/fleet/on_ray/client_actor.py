"""What every client actor runs: an executor, and its answers to the coordinator."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray import ObjectRef
from ray.actor import ActorHandle

from rayfl.fleet.absurd import Norms
from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Done, Executor, Holdings
from rayfl.fleet.host import claim_cores, freeze_objects, spare_imports
from rayfl.fleet.on_ray.calls import Answer, Inputs, PackedCall
from rayfl.fleet.on_ray.gpu_probe import measure_footprint
from rayfl.fleet.on_ray.placement import Placement
from rayfl.fleet.on_ray.socket_calls import pack_state, pickle_answer, serve_method
from rayfl.fleet.on_ray.values import INLINE_BYTES, STATE_BYTES, Parcel, fill_in
from rayfl.fleet.sums.early_sums import ExpectedMeans, MadeSums
from rayfl.fleet.sums.exact_sums import Grid, Partial, finish_mean, merge_partials, whole_sum
from rayfl.fleet.sums.shared_memory import Opened, Page, Pages
from rayfl.fleet.sums.updates import NamedVectors, UpdateId
from rayfl.fleet.watch import Overdue, VisitWatch
from rayfl.protocol import ClientId, Vector

log = logging.getLogger("rayfl")

WORD_SECONDS = 10.0
FIRST_CALLS = 8  # by then, what the work imports and keeps is there


class ClientActor:
    """One place on the cluster."""

    def __init__(self, spec: list[ObjectRef], pinned: Placement, holdings: list[ObjectRef]) -> None:
        """`spec` and `holdings` come as references, for to look at them is to import torch."""
        # Calls on a standing line come in a thread of their own, beside an errand's.
        self.one_at_a_time = threading.Lock()
        self.pages, self.opened = Pages(), Opened()
        with spare_imports():
            made, held = ray.get([*spec, *holdings])
            self.cores = claim_cores(made.threads)
            self.become(made, pinned, held)

    def become(self, spec: Spec, pinned: Placement, holdings: Holdings) -> None:
        """Serve this federation from now on, and nothing of an earlier one."""
        import torch

        torch.set_num_threads(spec.threads)
        if pinned.cuda and 0 < pinned.gpus < 1:
            # A fraction of a GPU is only admission control for Ray; this makes it a limit.
            torch.cuda.set_per_process_memory_fraction(pinned.gpus)
        self.states: dict[int, dict[ClientId, Inputs]] = {}
        self.sums: list[Partial] = []
        self.board: ActorHandle | None = None
        memory = spec.safeguards.memory_bytes
        self.executor = Executor(holdings, spec.make_learner(), spec.streams, memory)
        self.executor.watch = VisitWatch(self._leave_overdue, fatal=True)
        self.executor.learner.fresh = self.pages.vector
        self.calls = 0

    def hello(self) -> dict[str, object]:
        """Where this actor lives: a `Greeting`."""
        import torch

        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
            "threads": torch.get_num_threads(),
            "cores": self.cores,
        }

    # -- visits ------------------------------------------------------------------------------------

    def run(self, call: PackedCall, *values: object) -> Answer:
        """Outcomes of all tasks. What large states they leave is kept for `collect`."""
        with self.one_at_a_time:
            self._count_call()
            self._forget(call.forgotten)
            number, tasks = call.number, call.batch.unpack(values)
            inputs = cast(Inputs, fill_in(call.shared, values))
            results = list(
                self.executor.run(number, call.phase, tasks, inputs, call.chain, call.limit)
            )
            done = [outcome for outcome, _ in results]
            small = self._keep_states(number, [(done, state) for done, state in results if state])
            clients = [outcome.client for outcome in done]
            pages = self.executor.updates.find_pages(number, clients, self.pages)
            sums = self._sum_early(number, call.expected, done)
            return Answer(done, sums, small, pages, self._bring_along(number, done))

    def answer(self, common: bytes, own: bytes, *values: object) -> tuple[list[ClientId], bytes]:
        """`run` for a keeper: whose states it is to collect, and an answer that it hands on
        unread."""
        # What the calls of a map have in common was packed once for all of them.
        phase, shared = pickle.loads(common)
        number, batch, forgotten, expected, chain, limit = pickle.loads(own)
        call = PackedCall(number, phase, batch, shared, forgotten, expected, chain, limit)
        answer = self.run(call, *values)
        return answer.left_at_actor, pickle_answer(answer)

    def _count_call(self) -> None:
        self.calls += 1
        if self.calls == FIRST_CALLS:
            freeze_objects()

    def _keep_states(
        self, number: int, left: Sequence[tuple[Done, Inputs]]
    ) -> dict[ClientId, Parcel]:
        """Keep the large ones of the states that a map left; the small ones travel at once."""
        small: dict[ClientId, Parcel] = {}
        for done, state in left:
            if sum(done.state_bytes.values()) <= STATE_BYTES:
                small[done.client] = pack_state(state)
            else:
                self.states.setdefault(number, {})[done.client] = dict(state)
        return small

    def _sum_early(self, number: int, expected: ExpectedMeans, done: Sequence[Done]) -> MadeSums:
        """The parts of the means that are expected of these clients."""
        # Without the diverged, the mean is another one, with weights that nobody expected.
        if not all(one.finite and one.unfinished is None for one in done):
            return {}
        found = {}
        for key, mean in expected.items():
            # Of unequal lengths there is no mean, which whoever asks for it is told.
            sizes = {one.update_bytes.get(key) for one in done}
            if len(sizes) == 1 and None not in sizes:
                weights = {UpdateId(number, client): w for client, w in mean.weights.items()}
                found[key] = self.executor.updates.partial(key, weights, mean.grid)
        return found

    def _bring_along(self, number: int, done: Sequence[Done]) -> dict[ClientId, NamedVectors]:
        """What the server made, which is wanted next; clients' updates are only ever averaged."""
        made = [one for one in done if one.client < 0 and one.finite]
        return {
            one.client: self.executor.updates.vectors(UpdateId(number, one.client))
            for one in made
            if 0 < sum(one.update_bytes.values()) <= INLINE_BYTES
        }

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.executor.updates.free(number)
            self.states.pop(number, None)

    def listen(self, key: bytes, folder: str) -> str:
        """The address, in a folder of the caller's, of a line on which `serve` is called."""
        return serve_method(self.serve, key, folder)

    def serve(self, method: str, *arguments: object) -> object:
        """A call of one of the others, by line."""
        return getattr(self, method)(*arguments)

    def take_board(self, board: list[ActorHandle]) -> None:
        """Know where to leave word of visits that are over their time."""
        (self.board,) = board

    def _leave_overdue(self, overdue: Overdue) -> None:
        """End this process, which alone ends a visit, once it is known whose it is."""
        try:
            if self.board is not None:
                node = ray.get_runtime_context().get_node_id()
                word = self.board.leave.remote(node, os.getpid(), *overdue)
                ray.get(word, timeout=WORD_SECONDS)
        finally:
            # In good order nothing would end: the visit holds this process's main thread.
            os._exit(1)

    def clip(self, number: int, limits: Mapping[ClientId, Norms]) -> None:
        """Scale updates of a map down."""
        self.executor.updates.clip(number, limits)

    def collect(self, number: int, clients: Sequence[ClientId]) -> tuple[object, ...]:
        """The state that clients of a map left, each an object of its own, which a neighbour may
        want alone."""
        held = self.states[number]
        return True, *(held.pop(client) for client in clients)

    def examine(self, call: PackedCall, updates: Sequence[UpdateId], *values: object) -> list[Done]:
        """Run a server's phase on updates that lie here, one task each."""
        tasks = dict(zip(updates, call.batch.unpack(values), strict=True))
        shared = cast(Inputs, fill_in(call.shared, values))
        return self.executor.examine(call.phase, tasks, shared)

    def measure_footprint(self) -> tuple[int, int]:
        """What one client takes of this actor's GPU, in bytes, and what there is."""
        return measure_footprint(self.executor)

    def add_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        self.executor.add_features(name, features)

    # -- sums --------------------------------------------------------------------------------------

    def single(self, update: UpdateId, key: str) -> tuple[bool, Vector]:
        return True, self.executor.updates.vector(update, key)

    def partial(self, key: str, weights: Mapping[UpdateId, float], grid: Grid) -> Partial:
        return self.executor.updates.partial(key, weights, grid)

    def begin_sum(self, key: str, weights: Mapping[UpdateId, float], grid: Grid) -> None:
        """Like `partial`, but the sum stays here, where `finish_sum` will want it."""
        self.sums = [self.executor.updates.partial(key, weights, grid)]

    def finish_sum(self, total: float, *partials: Partial) -> tuple[bool, Vector]:
        own, self.sums = self.sums, []  # twice the size of the model, and of no more use
        return True, finish_mean([*own, *partials], total)

    def merge(self, *partials: Partial) -> Partial:
        return merge_partials(partials)

    def bring_to_pages(self, key: str, updates: Sequence[UpdateId]) -> dict[UpdateId, Page | None]:
        """Where these updates lie for all to see; what the phase left elsewhere is brought there,
        if there is room."""
        held = self.executor.updates
        return {update: held.bring_to_page(update, key, self.pages) for update in updates}

    def add_up(
        self,
        pages: Mapping[UpdateId, Page],
        weights: Mapping[UpdateId, float],
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
        vectors = {update: seen[page][numbers] for update, page in pages.items()}
        whole_sum(vectors, weights, grid, total, seen[mean][numbers])
        return True
