"""Which client runs where: longest first, in one call an actor, with a small tail for whoever is
done early.

Placement may use measured times because it cannot change a result.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

HEAD_SHARE = 0.8
GRAIN_SECONDS = 0.02  # a call costs about a millisecond; handing out less work than this is waste
ACTORS_A_KEEPER = 64
CALL_SECONDS = 0.001
"""Who sends to hundreds of actors must have time for all of them before the first comes back."""


@dataclass(frozen=True)
class Placement:
    """How many actors there are, and what each is pinned to."""

    actors: int
    cpus: float = 1.0
    gpus: float = 0.0
    cuda: bool = False
    keepers: int = 0


def count_keepers(wanted: int | str, actors: int) -> int:
    """How many processes keep large states: what was asked for, or by `auto` one for
    ACTORS_A_KEEPER actors where the coordinator alone would have too much to do."""
    if wanted != "auto":
        return int(wanted)
    return 0 if actors <= ACTORS_A_KEEPER else math.ceil(actors / ACTORS_A_KEEPER)


class HandOutPlan(Generic[T]):
    """A cohort's tasks: a first list for each actor, then a tail in shrinking pieces."""

    def __init__(self, tasks: Sequence[T], seconds: Callable[[T], float], actors: int) -> None:
        self.seconds, self.actors = seconds, actors
        unordered = [seconds(task) for task in tasks]
        order = sorted(range(len(tasks)), key=unordered.__getitem__, reverse=True)
        ordered, takes = [tasks[i] for i in order], [unordered[i] for i in order]
        total = sum(takes)
        self.grain = max(GRAIN_SECONDS, CALL_SECONDS * actors)
        share = 1.0 if total <= self.grain * actors else HEAD_SHARE
        self.heads, rest = deal_longest_first(ordered, takes, actors, share * total)
        self.tail = deque(rest)
        self.remaining = sum(takes[len(takes) - len(rest) :])

    def __bool__(self) -> bool:
        return bool(self.heads or self.tail)

    def next(self) -> list[T]:
        """The next list of tasks for an idle actor."""
        if self.heads:
            return self.heads.pop(0)
        piece = max(self.remaining / (2 * self.actors), self.grain)
        taken: list[T] = []
        load = 0.0
        while self.tail and (not taken or load + self.seconds(self.tail[0]) <= piece):
            taken.append(self.tail.popleft())
            load += self.seconds(taken[-1])
        self.remaining -= load
        return taken

    def put_back(self, tasks: Sequence[T]) -> None:
        """Tasks whose actor died."""
        self.heads.append(list(tasks))


def deal_longest_first(
    ordered: Sequence[T], seconds: Sequence[float], actors: int, budget: float
) -> tuple[list[list[T]], list[T]]:
    """Deal the longest tasks, up to `budget` seconds in all, each to the least loaded actor; the
    rest in order."""
    if budget >= sum(seconds) and seconds and seconds[0] == seconds[-1]:
        # Equals are dealt like cards.
        return [list(ordered[i::actors]) for i in range(min(actors, len(ordered)))], []
    loads = [(0.0, i) for i in range(actors)]
    heads: list[list[T]] = [[] for _ in range(actors)]
    dealt = 0.0
    for position, (task, takes) in enumerate(zip(ordered, seconds, strict=True)):
        # Every actor gets something before the budget counts.
        if position >= actors and dealt + takes > budget * (1 + 1e-9):
            return [head for head in heads if head], list(ordered[position:])
        load, i = loads[0]
        heads[i].append(task)
        dealt += takes
        heapq.heapreplace(loads, (load + takes, i))
    return [head for head in heads if head], []
