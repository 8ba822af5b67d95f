"""Which client's visit ends its actor.

Actors die of many things, and all that a call was to do is done again. A call whose actor died is
suspect: it is split, and what dies again is split into single clients, so that four deaths are
enough to tell who it is, however many were in the call. Who is blamed was alone in the last."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rayfl.fleet.executor import Task
from rayfl.fleet.safeguards import Unfinished, name_phase, name_visit
from rayfl.protocol import ClientId, Phase

LIVES_OF_A_TASK = 4


class Suspects:
    """The deaths of one map, by client."""

    def __init__(self, chain: bool) -> None:
        self.chain = chain
        self.deaths: Counter[ClientId] = Counter()
        self.alone: Counter[ClientId] = Counter()

    def note_death(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Take note that the actor of a call died; the calls by which it is tried again. There is
        none if it is clear by now whose visit it was."""
        for task in tasks:
            self.deaths[task.client] += 1
        deaths = self.deaths[tasks[0].client]
        if len(tasks) == 1:
            self.alone[tasks[0].client] += 1
        if deaths >= LIVES_OF_A_TASK and (len(tasks) == 1 or self.chain):
            return []
        # A link of a chain is made of those before it: it cannot be tried without them.
        return [list(tasks)] if self.chain else split_suspects(tasks, deaths)

    def describe(self, phase: Phase, tasks: Sequence[Task], sign: str) -> Unfinished:
        """The charge, and the sign by which the last death showed."""
        first = tasks[0]
        tries = f"ended its actor in each of {self.deaths[first.client]} tries"
        if len(tasks) == 1:
            how = f"{self.alone[first.client]} of them with no other client in the call"
            what = f"{name_visit(phase, first)} {tries}, {how} ({sign})"
            return Unfinished("died", what)
        clients = ", ".join(str(task.client) for task in tasks)
        who = f"a chain of {name_phase(phase)} in round {first.t}, of the clients {clients},"
        return Unfinished("died", f"{who} {tries} ({sign})", certain=False)


def split_suspects(tasks: Sequence[Task], deaths: int) -> list[list[Task]]:
    """At the first death as many pieces as each has tasks, then single tasks."""
    size = math.isqrt(len(tasks) - 1) + 1 if deaths == 1 else 1
    return [list(tasks[start : start + size]) for start in range(0, len(tasks), size)]
