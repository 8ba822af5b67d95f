from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rayfl.errors import ConfigError
from rayfl.federation.arrays import Ints

from .pools import SVHN, assign, held, pool_of, sizes_of

CIFAR_LEFT = [4800] * 10
SVHN_LEFT = [n - 300 for n in SVHN]

# preset, class sizes, expected own samples of a user in each task, expected share of other tasks'
# samples
FBNLL = [
    ("cifar10-2", CIFAR_LEFT, (1766.4, 2649.6), (0.0588, 0.0270)),
    ("cifar10-3", CIFAR_LEFT, (1892.6, 1892.6, 2944.0), (0.0645, 0.0645, 0.0367)),
    ("cifar10-5", CIFAR_LEFT, (2208.0,) * 5, (0.0640,) * 5),
    ("svhn-2", SVHN_LEFT, (2968.2, 3495.5), (0.0468, 0.0342)),
    ("svhn-3", SVHN_LEFT, (2903.4, 3119.3, 3746.5), (0.0605, 0.0547, 0.0455)),
    (
        "svhn-5",
        SVHN_LEFT,
        (3434.8, 2894.8, 4210.5, 3399.2, 2220.5),
        (0.0595, 0.0726, 0.0462, 0.0603, 0.0969),
    ),
]


def foreign_share(counts: Ints, tasks: tuple[tuple[int, ...], ...]) -> dict[tuple[int, ...], float]:
    """The share of samples outside the task, over all users of that task."""
    found = {}
    for task in dict.fromkeys(tasks):
        mine = counts[[t == task for t in tasks]]
        found[task] = 1 - mine[:, list(task)].sum() / mine.sum()
    return found


@pytest.mark.parametrize(("preset", "sizes", "own", "foreign"), FBNLL)
def test_fbnll_users_get_the_samples_of_their_task_and_a_little_of_all(
    preset: str, sizes: list[int], own: tuple[float, ...], foreign: tuple[float, ...]
) -> None:
    pool = pool_of(sizes, clients=20)
    dealt = assign({"name": "tasks", "tasks": preset}, pool)
    counts = held(pool, dealt.owner)
    assert dealt.tasks is not None
    assert dealt.owner.min() == 0
    assert (counts.sum(axis=0) == sizes).all()
    team = [list(dict.fromkeys(dealt.tasks)).index(task) for task in dealt.tasks]
    impurity = (
        sum(int(0.08 * sum(sizes[c] for c in task)) for task in dict.fromkeys(dealt.tasks)) // 20
    )
    # two deals, each uneven by one at most
    assert np.abs(counts.sum(axis=1) - impurity - np.array(own)[team]).max() < 2
    assert list(foreign_share(counts, dealt.tasks).values()) == pytest.approx(
        list(foreign), abs=0.006
    )


@pytest.mark.parametrize(
    ("preset", "sizes", "each"), [("cifar10-5", CIFAR_LEFT, 192), ("svhn-2", SVHN_LEFT, 281)]
)
def test_fbnll_impurity_is_dealt_alike_to_all_users(
    preset: str, sizes: list[int], each: int
) -> None:
    pool = pool_of(sizes, clients=20)
    impure = sizes_of(pool, assign({"name": "tasks", "tasks": preset}, pool).owner)
    tasks = assign({"name": "tasks", "tasks": preset, "impurity": 0}, pool).tasks
    assert tasks is not None
    total = {task: sum(sizes[c] for c in task) for task in tasks}
    kept = sum(total[task] - int(0.08 * total[task]) for task in total)
    assert impure.sum() - kept == 20 * each


@pytest.mark.parametrize(("preset", "teams"), [("cifar10-3", [7, 7, 6]), ("cifar10-2", [10, 10])])
def test_fbnll_users_are_split_in_task_order(preset: str, teams: list[int]) -> None:
    tasks = assign({"name": "tasks", "tasks": preset}, pool_of([100] * 10, clients=20)).tasks
    assert tasks is not None
    assert [tasks.count(task) for task in dict.fromkeys(tasks)] == teams


def test_no_impurity_means_no_other_class() -> None:
    pool = pool_of([50] * 4, clients=4)
    dealt = assign({"name": "tasks", "tasks": [[0, 3], [1]], "impurity": 0}, pool)
    assert dealt.tasks == ((0, 3), (0, 3), (1,), (1,))
    counts = held(pool, dealt.owner)
    assert counts.sum(axis=1).tolist() == [50, 50, 25, 25]
    assert not counts[:2, 1].any()
    assert not counts[2:, [0, 3]].any()
    assert set(pool.labels[dealt.owner < 0]) == {2}


def test_impurity_of_29_percent_of_200_is_58() -> None:
    pool = pool_of([200, 0], clients=2)
    owner = assign({"name": "tasks", "tasks": [[0], [1]], "impurity": 0.29}, pool).owner
    assert sizes_of(pool, owner).tolist() == [142 + 29, 29]


@pytest.mark.parametrize(
    ("tasks", "rule"),
    [
        ("cifar10-4", r"tasks is one of cifar10-2.*; got cifar10-4\. Did you mean 'cifar10-"),
        ([[0, 1], [1]], r"no class in two; got \(\(0, 1\), \(1,\)\)"),
        ([[0], []], r"none empty"),
        ([], r"none empty"),
    ],
)
def test_tasks_that_make_no_sense_are_refused_when_written(tasks: Any, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        assign({"name": "tasks", "tasks": tasks}, pool_of([9] * 10, clients=5))


@pytest.mark.parametrize(
    ("tasks", "clients", "rule"),
    [
        ([[0], [3]], 5, r"tasks name classes in \[0, 3\); got 3"),
        ([[0], [-1]], 5, r"tasks name classes in \[0, 3\); got -1"),
        ([[0], [1]], 1, r"each of 2 tasks needs a client; got 1 clients"),
    ],
)
def test_tasks_that_do_not_fit_the_pool_are_refused(tasks: Any, clients: int, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        assign({"name": "tasks", "tasks": tasks}, pool_of([9] * 3, clients))
