"""Plain PyTorch that knows nothing of federations: the yardstick.

Variant 1 is one process with two threads. Variant 2 is two processes of one thread each: both train
half of the cohort on a network that they keep, both sum locally, and one averages; weights and sums
lie in shared memory. That is the practical limit of a plain loop. Methods other than federated
averaging are in `bare_methods`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from speed_suite.bare_methods import find_place
from speed_suite.bare_place import Pause, Place, Shared
from speed_suite.federation import Clock, Federation, answer, arguments
from speed_suite.plain import clock_of, load, tested, versions

THREADS = 2


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
        place.run_round(place.federation.cohorts[t].tolist(), pause)
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
    federation = Federation.load(folder)
    place = find_place(federation.settings)(federation, shared, rank)
    barrier.wait()
    for t in range(rounds):
        place.run_round(federation.cohorts[t].tolist(), barrier.wait)


def main() -> None:
    told = arguments()
    places = int(told.variant)
    federation = Federation.load(told.folder)
    marks = [int(mark) for mark in told.marks.split(",") if mark] or [told.rounds]
    torch.set_num_threads(THREADS // places)
    torch.manual_seed(0)
    kind = find_place(federation.settings)
    place = kind(federation, kind.share(federation, places), 0)
    if places == 1:
        clock = clock_of(told)
        found = lead(place, clock, told.rounds, marks, lambda: None)
    else:
        clock, found = together(place, told, marks)
    noted = {"trained": place.trained, "apart": place.apart}
    answer(
        **clock.facts(),
        **{name: mean(of[told.warmup :]) for name, of in noted.items() if of},
        **found[told.rounds],
        marks=found,
        versions=versions(),
    )


def together(
    place: Place, told: Any, marks: Sequence[int]
) -> tuple[Clock, dict[int, dict[str, float]]]:
    """This process leads, the others follow."""
    shared = place.shared
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
    clock = clock_of(told)
    barrier.wait()
    found = lead(place, clock, told.rounds, marks, barrier.wait)
    for other in others:
        other.join()
    return clock, found


if __name__ == "__main__":
    main()
