"""Users grouped by task, with a little data of every other task (FB-NLL, Sec. V)."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.random import Generator
from pydantic import field_validator

from rayfl.component import Fraction, component
from rayfl.errors import ConfigError, broken, suggest_nearest
from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import UNUSED, Assignment, Pool
from rayfl.federation.partition.dealing import check_enough_samples, deal_in_turn

_TaskLists = tuple[tuple[int, ...], ...]

_PRESETS: dict[str, _TaskLists] = {
    "cifar10-2": ((0, 1, 8, 9), (2, 3, 4, 5, 6, 7)),
    "cifar10-3": ((0, 1, 8), (9, 2, 3), (4, 5, 6, 7)),
    "cifar10-5": ((0, 1), (8, 9), (2, 3), (4, 5), (6, 7)),
    "svhn-2": ((0, 2, 4, 6, 8), (1, 3, 5, 7, 9)),
    "svhn-3": ((0, 2, 4), (6, 8, 1), (3, 5, 7, 9)),
    "svhn-5": ((0, 2), (4, 6), (8, 1), (3, 5), (7, 9)),
}


@component
class Tasks:
    """Consecutive clients form a task (sizes differ by one at most) and share the samples of its
    classes.

    A share `impurity` of each task's samples (rounded down) is set aside first; all of it together
    is shuffled and dealt to every client, those of its own task included. Classes of no task stay
    unused. `tasks` is a list of lists of classes or the name of a preset."""

    tasks: str | _TaskLists
    impurity: Fraction = 0.08

    @field_validator("tasks")
    @classmethod
    def _disjoint(cls, tasks: str | _TaskLists) -> str | _TaskLists:
        _check_disjoint(_look_up_tasks(tasks))
        return tasks

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        tasks = _look_up_tasks(self.tasks)
        _check_fit(tasks, pool)
        owner = np.full(len(pool.labels), UNUSED, np.int64)
        aside: list[Ints] = []
        per_client: list[tuple[int, ...]] = []
        teams = np.array_split(np.arange(pool.clients), len(tasks))
        for task, team in zip(tasks, teams, strict=True):
            members = np.flatnonzero(np.isin(pool.labels, task))
            samples = rng.permutation(members)
            # The small addend keeps floor(.29 * 100) at 29.
            impure_count = int(self.impurity * len(samples) + 1e-9)
            # Impurity leaves its task first and may come back to it: that is how the paper deals
            # it.
            aside.append(samples[:impure_count])
            own = samples[impure_count:]
            owner[own] = team[deal_in_turn(len(team), len(own))]
            per_client += [task] * len(team)
        impure = rng.permutation(np.concatenate(aside))
        owner[impure] = deal_in_turn(pool.clients, len(impure))
        return Assignment(owner, tuple(per_client))


def _look_up_tasks(tasks: str | _TaskLists) -> _TaskLists:
    """The lists of classes behind a name."""
    if not isinstance(tasks, str):
        return tasks
    if tasks not in _PRESETS:
        rule = f"tasks is one of {', '.join(_PRESETS)}, or lists"
        raise ValueError(broken(rule, tasks, suggest_nearest(tasks, _PRESETS)))
    return _PRESETS[tasks]


def _check_disjoint(tasks: _TaskLists) -> None:
    every = list(itertools.chain(*tasks))
    if not tasks or not all(tasks) or len(set(every)) < len(every):
        rule = "tasks are lists of classes, none empty and no class in two"
        raise ValueError(broken(rule, tasks))


def _check_fit(tasks: _TaskLists, pool: Pool) -> None:
    check_enough_samples(pool, 1)
    every = sorted(itertools.chain(*tasks))
    lowest, highest = every[0], every[-1]
    if lowest < 0 or highest >= pool.classes:
        wrong = lowest if lowest < 0 else highest
        raise ConfigError(broken(f"tasks name classes in [0, {pool.classes})", wrong))
    if len(tasks) > pool.clients:
        rule = f"each of {len(tasks)} tasks needs a client"
        raise ConfigError(broken(rule, f"{pool.clients} clients", "Ask for more clients"))
