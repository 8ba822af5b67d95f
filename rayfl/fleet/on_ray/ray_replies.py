"""The replies of a map on Ray."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from rayfl.fleet.base import examined
from rayfl.fleet.executor import Done, Task, freeze_array
from rayfl.fleet.on_ray.call_values import INLINE_BYTES, Here, emptied
from rayfl.fleet.on_ray.hiring import in_a_tree
from rayfl.fleet.on_ray.socket_calls import DEATHS, unwind
from rayfl.fleet.sums.exact_sums import CHUNK, Grid, finish
from rayfl.fleet.sums.shared_memory import FLOAT_BYTES, LEAST_BYTES, MOST_PAGES, Page
from rayfl.protocol import ClientId, Phase, Ref, Replies, Report

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.ray_fleet import RayFleet


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
        self._fleet, self._number, self._phase, self._tasks, self._shared = (
            fleet,
            number,
            phase,
            tasks,
            shared,
        )
        self._peaks = {client: outcome.peaks for client, outcome in done.items()}
        self._bytes = {client: outcome.update_bytes for client, outcome in done.items()}
        self._early = fleet.early.pop(number)
        weakref.finalize(self, fleet.forget, number)

    def mean(self, weights: Mapping[ClientId, float], key: str = "w") -> Ref:
        chosen = self.checked_weights(weights)
        size = self._bytes[next(iter(chosen))][key]
        while True:
            groups = self._held(list(chosen))
            try:
                with self._fleet.clock.running("reduce"):
                    return Ref(self._mean(groups, chosen, key, size), nbytes=size)
            except DEATHS as error:
                unwind(error)
                self._fleet.bury_the_dead()

    def _mean(
        self,
        groups: dict[int, list[ClientId]],
        weights: Mapping[ClientId, float],
        key: str,
        size: int,
    ) -> Any:
        """The handle of the mean. Small sums are added up here; large updates are where all lie in
        one memory, or else their partial sums where the first of them lies."""
        actors = {place: self._fleet.pool[place].actor for place in groups}
        first, *others = groups
        small = size <= INLINE_BYTES
        # The update itself, bit for bit.
        if len(weights) == 1:
            return settled(actors[first].single, self._number, key, next(iter(weights)))
        grid = Grid.bounded(sum(w * self._peaks[c][key] for c, w in weights.items()), len(weights))
        # Named updates come in pairs with means of different weights: there is nothing to expect.
        if small and key == "w":
            self._fleet.expected.learn(weights, grid)
            if (sums := self._early.sums(weights, grid)) is not None:
                return Here(freeze_array(finish(sums, sum(weights.values()))))
        parts = {
            place: {client: weights[client] for client in clients}
            for place, clients in groups.items()
        }
        total = sum(weights.values())
        if small:
            asked = [
                actors[place].partial.remote(self._number, key, part, grid)
                for place, part in parts.items()
            ]
            return Here(freeze_array(finish(ray.get(asked), total)))
        if size >= LEAST_BYTES and len(weights) <= MOST_PAGES and self._fleet.in_one_memory(groups):
            mean = self._mean_in_place(groups, weights, grid, key, size // FLOAT_BYTES)
            if mean is not None:
                return mean
        begun = actors[first].begin_sum.remote(self._number, key, parts[first], grid)
        partials = [
            actors[place].partial.remote(self._number, key, parts[place], grid) for place in others
        ]
        ray.get(begun)
        return settled(
            actors[first].finish_sum,
            total,
            *in_a_tree([actors[place] for place in others], partials),
        )

    def _mean_in_place(
        self,
        groups: dict[int, list[ClientId]],
        weights: Mapping[ClientId, float],
        grid: Grid,
        key: str,
        length: int,
    ) -> Any:
        """The mean of updates that lie in one node's memory, of which every actor makes a part:
        nothing is sent. None where that cannot be done after all."""
        fleet, total = self._fleet, sum(weights.values())
        actors = {place: fleet.pool[place].actor for place in groups}
        mean = fleet.pages.vector(length)
        written, pages = fleet.pages.page_of(mean), self._laid_out(groups, actors, key)
        if written is None or None in pages.values():
            return None
        parts = zip(actors.values(), in_parts(length, len(actors)), strict=False)
        seen = [
            actor.add_up.remote(pages, weights, grid, total, written, part) for actor, part in parts
        ]
        # One that cannot see the others' memory leaves its part of the mean unwritten.
        if all(ray.get(seen)):
            return ray.put(mean)
        fleet.blind()
        return None

    def _laid_out(
        self, groups: Mapping[int, Sequence[ClientId]], actors: Mapping[int, Any], key: str
    ) -> dict[ClientId, Page | None]:
        """The pages of all updates; those that were not made on one are brought to one, as far as
        there are any."""
        known = self._fleet.on_pages[self._number]
        pages: dict[ClientId, Page | None] = {
            client: known[client][key]
            for clients in groups.values()
            for client in clients
            if key in known.get(client, ())
        }
        elsewhere = {
            place: [c for c in clients if c not in pages] for place, clients in groups.items()
        }
        asked = [
            actors[place].laid_out.remote(self._number, key, some)
            for place, some in elsewhere.items()
            if some
        ]
        return pages | {client: page for part in ray.get(asked) for client, page in part.items()}

    def examine(self, phase: Phase, **inputs: Any) -> dict[ClientId, Report]:
        values: dict[Any, int] = {}
        shared = emptied(inputs, values)
        while True:
            groups = self._held(list(self))
            calls = [
                self._fleet.pool[place].actor.examine.remote(
                    self._number,
                    phase,
                    clients,
                    self._fleet.round,
                    shared,
                    *self._fleet.keepers.direct(values),
                )
                for place, clients in groups.items()
            ]
            try:
                done = [outcome for part in ray.get(calls) for outcome in part]
            except DEATHS as error:
                unwind(error)
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
            # A sum of only those that were made again is no part of any mean.
            del self._fleet.early[self._number]
            self._fleet.refuse_errors(done.values())


def in_parts(length: int, parts: int) -> list[slice]:
    """Parts of a vector in whole chunks, as even as these allow; fewer where there are not as many
    chunks."""
    chunks = -(-length // CHUNK)
    share = -(-chunks // parts) * CHUNK
    return [slice(start, min(start + share, length)) for start in range(0, length, share)]


def settled(method: Any, *arguments: Any) -> Any:
    """The handle of a vector that an actor makes, once it is certain that the actor lived to make
    it."""
    answered, vector = method.options(num_returns=2).remote(*arguments)
    ray.get(answered)
    return vector
