"""Users grouped by task, with a little data of every other task (FB-NLL, Sec. V)."""

from __future__ import annotations

import numpy as np
from pydantic import field_validator

from rayfl.component import Fraction, component
from rayfl.errors import ConfigError, broken, nearest
from rayfl.federation.arrays import Ints
from rayfl.federation.partition.dealing import check_enough_samples, deal_in_turn
from rayfl.federation.views import UNUSED, Assignment, Pool

_PRESETS: dict[str, tuple[tuple[int, ...], ...]] = {
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

    tasks: str | tuple[tuple[int, ...], ...]
    impurity: Fraction = 0.08

    @field_validator("tasks")
    @classmethod
    def _disjoint(
        cls, tasks: str | tuple[tuple[int, ...], ...]
    ) -> str | tuple[tuple[int, ...], ...]:
        _check_disjoint(_look_up_tasks(tasks))
        return tasks

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        tasks = _look_up_tasks(self.tasks)
        _check_fit(tasks, pool)
        owner = np.full(len(pool.labels), UNUSED, np.int64)
        aside: list[Ints] = []
        teams = np.array_split(np.arange(pool.clients), len(tasks))
        for classes, team in zip(tasks, teams, strict=True):
            samples = rng.permutation(np.flatnonzero(np.isin(pool.labels, classes)))
            # the small addend keeps floor(.29 * 100) at 29
            kept_back = int(self.impurity * len(samples) + 1e-9)
            own = samples[kept_back:]
            owner[own] = team[deal_in_turn(len(team), len(own))]
            # impurity leaves its task first and may come back to it: that is how the paper deals it
            aside.append(samples[:kept_back])
        impure = rng.permutation(np.concatenate(aside))
        owner[impure] = deal_in_turn(pool.clients, len(impure))
        return Assignment(
            owner, tuple(task for task, team in zip(tasks, teams, strict=True) for _ in team)
        )


def _look_up_tasks(tasks: str | tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The lists of classes behind a name."""
    if not isinstance(tasks, str):
        return tasks
    if tasks not in _PRESETS:
        raise ValueError(
            broken(
                f"tasks is one of {', '.join(_PRESETS)}, or lists", tasks, nearest(tasks, _PRESETS)
            )
        )
    return _PRESETS[tasks]


def _check_disjoint(tasks: tuple[tuple[int, ...], ...]) -> None:
    every = [c for task in tasks for c in task]
    if not tasks or not all(tasks) or len(set(every)) < len(every):
        raise ValueError(
            broken("tasks are lists of classes, none empty and no class in two", tasks)
        )


def _check_fit(tasks: tuple[tuple[int, ...], ...], pool: Pool) -> None:
    check_enough_samples(pool, 1)
    highest, lowest = max(map(max, tasks)), min(map(min, tasks))
    if lowest < 0 or highest >= pool.classes:
        wrong = lowest if lowest < 0 else highest
        raise ConfigError(broken(f"tasks name classes in [0, {pool.classes})", wrong))
    if len(tasks) > pool.clients:
        raise ConfigError(
            broken(
                f"each of {len(tasks)} tasks needs a client",
                f"{pool.clients} clients",
                "Ask for more clients",
            )
        )
