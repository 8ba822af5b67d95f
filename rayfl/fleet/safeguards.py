"""What a run does about clients that misbehave: what it was told, and how long a visit may take.

A visit that comes to no end (it is over its time, out of memory, or ends its actor every time)
ends the run with a sentence, or is left out of its round. An update that is finite but absurd is
named, and clipped or dropped where that is asked for."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from rayfl.protocol import Phase

if TYPE_CHECKING:
    from rayfl.fleet.executor import Done, Task

LEAST_SECONDS = 10.0
"""No multiple of a median is shorter: a machine may halt a process for a second."""
LEAST_VISITS = 10
"""So many visits of a phase must be over before their median says anything."""
MOST_VISITS = 1001
"""Of older visits a median knows nothing."""


@dataclass(frozen=True)
class Safeguards:
    """What a run was told about clients that misbehave.

    Parameters
    ----------
    visit_seconds, visit_multiple
        How long a visit of a client may take: so long, or so many times the median of its phase.
    memory_bytes
        What a process that visits clients may take of its own memory.
    leave_out
        Whether a visit without an end is left out of its round; else it ends the run.
    norm_multiple
        Beyond so many times the cohort's median norm an update is absurd.
    absurd
        What is done about it, beside naming it.
    """

    visit_seconds: float | None = None
    visit_multiple: float | None = None
    memory_bytes: int | None = None
    leave_out: bool = False
    norm_multiple: float = 1000.0
    absurd: Literal["name", "clip", "drop"] = "name"


Why = Literal["late", "memory", "died"]

REMEDIES: dict[Why, str] = {
    "late": "Raise resources.visit_limit",
    "memory": "Let the phase take less memory, raise resources.memory_per_client if it is set",
    "died": "Mend what ends the process (native code, os._exit; or a lack of memory, which "
    "resources.memory_per_client would tell)",
}


class Unfinished(NamedTuple):
    """Why a visit came to no end, and what there is to say of it."""

    why: Why
    what: str
    certain: bool = True
    """Whether it is known whose visit it was."""

    @property
    def sentence(self) -> str:
        """As the run's last word."""
        remedy = REMEDIES[self.why]
        remedy += ", or set safety.unfinished: leave_out." if self.certain else "."
        return f"{self.what}\n{remedy}" if "\n" in self.what else f"{self.what}. {remedy}"


def describe_late(phase: Phase, task: Task, limit: float | None, how: str) -> Unfinished:
    """A visit that is over its time."""
    what = f"{name_visit(phase, task)} was over its limit of {limit:.3g} s: {how}"
    return Unfinished("late", what)


def describe_shortage(phase: Phase, task: Task, told: str) -> Unfinished:
    """A visit that found no more memory, with its traceback."""
    return Unfinished("memory", f"{name_visit(phase, task)} ran out of memory:\n{told.rstrip()}")


def is_late(task: Task, seconds: float, limit: float | None) -> bool:
    """Whether a visit took more than it may. The server's own work may take as long as it likes."""
    return limit is not None and task.client >= 0 and seconds > limit


def name_visit(phase: Phase, task: Task) -> str:
    """Whose visit of which phase, in which round, as a sentence begins."""
    who = "the server" if task.client < 0 or task.examined else f"client {task.client}"
    return f"{who}'s visit of {name_phase(phase)} in round {task.t}"


class VisitTimes:
    """How long visits took, by phase, and how long the next ones may take.

    The median is that of the visits since the run was started, or taken up again."""

    def __init__(self, safeguards: Safeguards) -> None:
        self.seconds = safeguards.visit_seconds
        self.multiple = safeguards.visit_multiple
        self._taken: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_VISITS))

    def limit(self, phase: Phase) -> float | None:
        """The seconds that one visit may take; None for as long as it likes."""
        if self.multiple is None:
            return self.seconds
        taken = self._taken[name_phase(phase)]
        if len(taken) < LEAST_VISITS:
            return None
        return max(self.multiple * statistics.median(taken), LEAST_SECONDS)

    def note(self, phase: Phase, outcomes: Iterable[Done]) -> None:
        """Take note of visits that are over."""
        if self.multiple is not None:
            ended = [one for one in outcomes if one.client >= 0 and one.unfinished is None]
            self._taken[name_phase(phase)].extend(one.seconds for one in ended)


def name_phase(phase: Phase) -> str:
    """A phase as a message names it."""
    return str(getattr(phase, "__qualname__", phase))
