"""Who is left out of a run, which may be up to the clock, and so must not be decided twice.

A decision is recorded before its round counts. Whenever the round is computed again, after a death
or a resume, in this place or in another, the visit is left out without being tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rayfl.fleet.executor import Task
from rayfl.protocol import ClientId


class Absence(NamedTuple):
    """One visit that is left out: a client's n-th of a round."""

    round: int
    client: ClientId
    visit: int


class Absences:
    """All of a run, with the reason of each."""

    def __init__(self) -> None:
        self.decided: dict[Absence, str] = {}
        self._met: list[Absence] = []
        self.changed = False

    def remember(self, decided: Mapping[Absence, str]) -> None:
        """What an earlier session of the run decided."""
        self.decided = dict(decided)

    def without_absent(self, tasks: Mapping[ClientId, Task]) -> dict[ClientId, Task]:
        """The tasks that are to be done."""
        if not self.decided:
            return dict(tasks)
        present = {}
        for client, task in tasks.items():
            absence = Absence(task.t, client, task.visit)
            if absence in self.decided:
                self._met.append(absence)
            else:
                present[client] = task
        return present

    def decide(self, task: Task, why: str) -> None:
        """A visit is left out from now on."""
        absence = Absence(task.t, task.client, task.visit)
        self.decided[absence] = why
        self._met.append(absence)
        self.changed = True

    def take(self) -> list[ClientId]:
        """Who was left out since the last call."""
        met = sorted({absence.client for absence in self._met})
        self._met.clear()
        return met
