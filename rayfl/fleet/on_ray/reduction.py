"""Ways to a mean of updates that lie at actors. All have the same bits, because exact sums do; the
first in order whose precondition holds is the quickest."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ray import ObjectRef
from ray.actor import ActorHandle

from rayfl.fleet.executor import freeze_array
from rayfl.fleet.on_ray.pool import ActorPool, Place
from rayfl.fleet.on_ray.ray_calls import gather_answers
from rayfl.fleet.on_ray.values import INLINE_BYTES, Handle, Inlined, Stored, store_value
from rayfl.fleet.replies import Mean
from rayfl.fleet.sums.exact_sums import CHUNK, Partial, finish_mean
from rayfl.fleet.sums.shared_memory import (
    FLOAT_BYTES,
    LEAST_BYTES,
    MOST_PAGES,
    SUPPORTED,
    Page,
    Pages,
)
from rayfl.fleet.sums.updates import UpdateId
from rayfl.protocol import Vector

log = logging.getLogger("rayfl")

FAN_IN = 8  # partial sums that one actor adds up; with more actors than this, sums meet in a tree


@dataclass(frozen=True)
class PlacedMean:
    """A mean, and where its updates lie."""

    mean: Mean
    parts: Mapping[Place, Mapping[UpdateId, float]]
    """The weights of those that lie at each place; of none where there are early sums."""
    early: Sequence[Partial] | None = None
    """All sums that make up this mean, where they were made on an expectation."""
    pages: Mapping[UpdateId, Page] | None = None
    """Of those updates that were made on one."""
    arrived: Vector | None = None
    """The only update, where it is here already."""

    @property
    def small(self) -> bool:
        return self.mean.nbytes <= INLINE_BYTES


class WayToMean(ABC):
    """One of them."""

    @abstractmethod
    def fits(self, placed: PlacedMean) -> bool:
        """The precondition."""

    @abstractmethod
    def run(self, placed: PlacedMean) -> Handle | None:
        """The mean; None where it turned out that this way leads nowhere. Raises PlaceDied."""


class ArrivedUpdate(WayToMean):
    """What the server made came with the answer of its call: no further call is needed."""

    def fits(self, placed: PlacedMean) -> bool:
        return placed.arrived is not None

    def run(self, placed: PlacedMean) -> Handle:
        assert placed.arrived is not None
        return Inlined(freeze_array(placed.arrived))


class LoneUpdate(WayToMean):
    """The update itself: a large one becomes an object of its own."""

    def fits(self, placed: PlacedMean) -> bool:
        # A mean of one is that one, bit for bit; a sum would turn -0.0 into 0.0.
        return placed.mean.lone is not None

    def run(self, placed: PlacedMean) -> Handle:
        (place,) = placed.parts
        lone, key = placed.mean.lone, placed.mean.key
        if not placed.small:
            return settle_vector(place.actor, "single", lone, key)
        ((_, vector),) = gather_answers([place.actor.single.remote(lone, key)])
        return Inlined(freeze_array(vector))


class EarlySum(WayToMean):
    """Sums that came with the answers of the calls that trained: no call is needed."""

    def fits(self, placed: PlacedMean) -> bool:
        # Only a small model's are made, because they travel with the answers.
        return placed.small and placed.early is not None

    def run(self, placed: PlacedMean) -> Handle:
        assert placed.early is not None
        return Inlined(freeze_array(finish_mean(placed.early, placed.mean.total)))


class GatheredSums(WayToMean):
    """One call to each actor for its partial sum; they are added up here, and the mean travels
    inside the next call."""

    def fits(self, placed: PlacedMean) -> bool:
        # Larger sums would go through this process twice, which is where all others go.
        return placed.small

    def run(self, placed: PlacedMean) -> Handle:
        mean = placed.mean
        asked = [
            place.ask("partial", mean.key, weights, mean.grid)
            for place, weights in placed.parts.items()
        ]
        partials = [pending.take() for pending in asked]
        return Inlined(freeze_array(finish_mean(partials, mean.total)))


class SharedMemory(WayToMean):
    """Each actor makes a part of the mean of all updates, which it reads where they lie: no partial
    sum exists or moves."""

    def __init__(self, pool: ActorPool) -> None:
        self.pool = pool
        self.pages = Pages()
        self.works = SUPPORTED
        """Until actors turn out not to see each other's memory, as in containers."""

    def fits(self, placed: PlacedMean) -> bool:
        # To map small pages takes longer than to copy them, each is an open file, of which a
        # process may not have many, and other nodes' memory is out of sight.
        mean = placed.mean
        wanted = mean.nbytes >= LEAST_BYTES and len(mean.weights) <= MOST_PAGES
        return wanted and self.works and all(map(self.pool.is_here, placed.parts))

    def run(self, placed: PlacedMean) -> Handle | None:
        mean = placed.mean
        length = mean.nbytes // FLOAT_BYTES
        vector = self.pages.vector(length)
        written, pages = self.pages.page_of(vector), self._find_pages(placed)
        if written is None or None in pages.values():
            return None
        slices = split_in_chunks(length, len(placed.parts))
        # The mean goes through Ray's store once: a phase may hold on to what it was given, and a
        # page would be written again underneath it.
        seen = gather_answers(
            [
                place.actor.add_up.remote(pages, mean.weights, mean.grid, mean.total, written, part)
                for place, part in zip(placed.parts, slices, strict=False)
            ]
        )
        # One that cannot see the others' memory leaves its part of the mean unwritten.
        if all(seen):
            return store_value(vector)
        self._note_blindness()
        return None

    def _find_pages(self, placed: PlacedMean) -> dict[UpdateId, Page | None]:
        """The pages of all updates; those that were not made on one are brought to one, as far as
        there are any."""
        known: dict[UpdateId, Page | None] = dict(placed.pages or {})
        asked = []
        for place, weights in placed.parts.items():
            elsewhere = [update for update in weights if update not in known]
            if elsewhere:
                asked.append(place.actor.bring_to_pages.remote(placed.mean.key, elsewhere))
        for found in gather_answers(asked):
            known |= found
        return known

    def _note_blindness(self) -> None:
        """An actor could not see another's page: because that one died, or because they never
        will."""
        if not self.pool.bury_the_dead():
            log.warning(
                "actors of this node do not see each other's memory: large updates are sent instead"
            )
            self.works = False


class TreeOfSums(WayToMean):
    """Partial sums meet where the first of them lies; with many actors, in a tree."""

    def fits(self, placed: PlacedMean) -> bool:
        # This is how it always goes.
        return True

    def run(self, placed: PlacedMean) -> Handle:
        mean = placed.mean
        (first, own), *others = placed.parts.items()
        begun = first.actor.begin_sum.remote(mean.key, own, mean.grid)
        partials = ask_for_partials(mean, dict(others))
        gather_answers([begun])
        merged = merge_in_tree([place.actor for place, _ in others], partials)
        return settle_vector(first.actor, "finish_sum", mean.total, *merged)


class Reduction:
    """All ways, in the order in which they are tried."""

    def __init__(self, pool: ActorPool) -> None:
        self.shared_memory = SharedMemory(pool)
        self.ways: list[WayToMean] = [
            ArrivedUpdate(),
            LoneUpdate(),
            EarlySum(),
            GatheredSums(),
            self.shared_memory,
            TreeOfSums(),
        ]

    def run(self, placed: PlacedMean) -> Handle:
        """The mean, by the first way that fits and leads anywhere. Raises PlaceDied."""
        found = (way.run(placed) for way in self.ways if way.fits(placed))
        return next(handle for handle in found if handle is not None)


def ask_for_partials(
    mean: Mean, parts: Mapping[Place, Mapping[UpdateId, float]]
) -> list[ObjectRef]:
    return [
        place.actor.partial.remote(mean.key, weights, mean.grid) for place, weights in parts.items()
    ]


def merge_in_tree(actors: Sequence[ActorHandle], partials: list[ObjectRef]) -> list[ObjectRef]:
    """At most FAN_IN partial sums that stand for all; exact sums may meet in any grouping."""
    while len(partials) > FAN_IN:
        groups = [slice(start, start + FAN_IN) for start in range(0, len(partials), FAN_IN)]
        partials = [actors[group.start].merge.remote(*partials[group]) for group in groups]
    return partials


def split_in_chunks(length: int, parts: int) -> list[slice]:
    """Parts of a vector in whole chunks, as even as these allow; fewer where there are not as many
    chunks."""
    chunks = -(-length // CHUNK)
    share = -(-chunks // parts) * CHUNK
    return [slice(start, min(start + share, length)) for start in range(0, length, share)]


def settle_vector(actor: ActorHandle, method: str, *arguments: object) -> Stored:
    """The handle of a vector that an actor makes, once it is certain that the actor lived to make
    it."""
    made = getattr(actor, method).options(num_returns=2)
    answered, vector = made.remote(*arguments)
    gather_answers([answered])
    return Stored(vector)
