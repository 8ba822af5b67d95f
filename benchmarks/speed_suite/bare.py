"""Plain PyTorch that knows nothing of federations: the yardstick.

Variant 1 is one process with two threads. Variant 2 is two processes of one thread each: both train
half of the cohort on a network that they keep, both sum locally, and one averages; weights and sums
lie in shared memory. That is the practical limit of a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speed_suite.federation import Clock, Federation, answer, arguments
from speed_suite.plain import (
    clock_of,
    images,
    labels,
    load,
    network_of,
    tested,
    train,
    versions,
    weights_of,
)

THREADS = 2
Pause = Callable[[], object]


@dataclass(frozen=True)
class Shared:
    """What all processes see: the data in their final form, the global weights, and a sum for each
    process."""

    x: Tensor
    y: Tensor
    weights: list[Tensor]
    sums: list[list[Tensor]]

    @classmethod
    def of(cls, federation: Federation, places: int) -> Shared:
        initial = [torch.tensor(array) for array in federation.initial]
        sums = [list(map(torch.zeros_like, initial)) for _ in range(places)]
        return cls(images(federation.x), labels(federation.y), initial, sums)

    def share(self) -> None:
        sums = [tensor for part in self.sums for tensor in part]
        for tensor in (self.x, self.y, *self.weights, *sums):
            tensor.share_memory_()  # type: ignore[no-untyped-call]


class Place:
    """One process's part of every round."""

    def __init__(self, federation: Federation, shared: Shared, rank: int) -> None:
        self.federation = federation
        self.shared = shared
        self.rank = rank
        self.net = network_of(federation)

    @torch.no_grad()
    def visit_all(self, cohort: Sequence[int]) -> None:
        """Train this process's clients one after the other, and leave their weighted sum."""
        sums = self.shared.sums[self.rank]
        for tensor in sums:
            tensor.zero_()
        for client in dealt(self.federation, cohort, len(self.shared.sums))[self.rank]:
            rows = self.federation.rows(client)
            load(self.net, self.shared.weights)
            with torch.enable_grad():
                train(
                    self.net,
                    self.shared.x[rows],
                    self.shared.y[rows],
                    self.federation.settings,
                )
            for total, mine in zip(sums, weights_of(self.net), strict=True):
                total.add_(mine, alpha=self.federation.size(client))

    @torch.no_grad()
    def average(self, cohort: Sequence[int]) -> None:
        samples = sum(self.federation.size(client) for client in cohort)
        for i, weights in enumerate(self.shared.weights):
            torch.div(self.shared.sums[0][i], samples, out=weights)
            for others in self.shared.sums[1:]:
                weights.add_(others[i], alpha=1 / samples)


def dealt(
    federation: Federation,
    cohort: Sequence[int],
    places: int,
) -> list[list[int]]:
    """The cohort over the processes: largest first, each to the least loaded."""
    parts: list[list[int]] = [[] for _ in range(places)]
    loads = [0] * places
    for client in sorted(cohort, key=federation.size, reverse=True):
        least = loads.index(min(loads))
        parts[least].append(client)
        loads[least] += federation.size(client)
    return parts


def lead(
    place: Place,
    clock: Clock,
    rounds: int,
    marks: Sequence[int],
    pause: Pause,
) -> dict[int, dict[str, float]]:
    """The rounds, seen by the process that averages; test results after the marked ones (which are
    not timed)."""
    found = {}
    clock.begin()
    for t in range(rounds):
        cohort = place.federation.cohorts[t].tolist()
        place.visit_all(cohort)
        pause()
        place.average(cohort)
        pause()
        clock.tick()
        if t + 1 in marks:
            load(place.net, place.shared.weights)
            found[t + 1] = tested(place.federation, place.net)
    return found


def follow(
    folder: Path,
    shared: Shared,
    rounds: int,
    rank: int,
    barrier: Any,
) -> None:
    """The rounds, seen by any other process."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    place = Place(Federation.load(folder), shared, rank)
    barrier.wait()
    for t in range(rounds):
        place.visit_all(place.federation.cohorts[t].tolist())
        barrier.wait()
        barrier.wait()


def main() -> None:
    told = arguments()
    places = int(told.variant)
    federation = Federation.load(told.folder)
    marks = [int(mark) for mark in told.marks.split(",") if mark] or [told.rounds]
    torch.set_num_threads(THREADS // places)
    torch.manual_seed(0)
    shared = Shared.of(federation, places)
    if places == 1:
        clock = clock_of(told)
        found = lead(
            Place(federation, shared, 0),
            clock,
            told.rounds,
            marks,
            lambda: None,
        )
    else:
        clock, found = together(federation, shared, told, marks)
    answer(
        **clock.facts(),
        **found[told.rounds],
        marks=found,
        versions=versions(),
    )


def together(
    federation: Federation, shared: Shared, told: Any, marks: Sequence[int]
) -> tuple[Clock, dict[int, dict[str, float]]]:
    """This process leads, the others follow."""
    shared.share()
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    barrier = context.Barrier(len(shared.sums))
    others = [
        context.Process(
            target=follow, args=(told.folder, shared, told.rounds, rank, barrier), daemon=True
        )
        for rank in range(1, len(shared.sums))
    ]
    for other in others:
        other.start()
    place = Place(federation, shared, 0)
    clock = clock_of(told)
    barrier.wait()
    found = lead(place, clock, told.rounds, marks, barrier.wait)
    for other in others:
        other.join()
    return clock, found


if __name__ == "__main__":
    main()
