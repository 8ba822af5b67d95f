from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfl.errors import ConfigError
from rayfl.federation.interfaces import Corruption, Truth

from .truths import Tasks, changed, corrupt, truth_of

TWO: Tasks = ((0, 1, 8, 9),) * 10 + ((2, 3, 4, 5, 6, 7),) * 10
FIVE: Tasks = tuple(task for task in ((0, 1), (8, 9), (2, 3), (4, 5), (6, 7)) for _ in range(4))


def users(tasks: Tasks, own: int = 400, foreign: int = 20) -> Truth:
    return truth_of(
        [[own if c in task else foreign for c in range(10)] for task in tasks], tasks=tasks
    )


def wrong_labels(truth: Truth, result: Corruption, client: int) -> set[int]:
    mine = (truth.owner == client) & (result.given != truth.labels)
    return set(result.given[mine])


@pytest.mark.parametrize("mode", ["independent", "dependent"])
@pytest.mark.parametrize("tasks", [TWO, FIVE])
def test_fbnll_all_changed_labels_of_a_user_are_one_class_outside_its_task(
    mode: str, tasks: Tasks
) -> None:
    truth = users(tasks)
    result = corrupt({"name": "task", "mode": mode}, truth)
    targets = [wrong_labels(truth, result, k) for k in range(20)]
    assert all(len(target) == 1 for target in targets)
    assert all(target.isdisjoint(task) for target, task in zip(targets, tasks, strict=True))
    assert len(set.union(*targets)) > 3


def test_fbnll_independent_selects_a_floor_of_all_local_samples() -> None:
    truth = users(TWO, own=403, foreign=21)
    result = corrupt({"name": "task"}, truth)
    selected = np.bincount(truth.owner) // 4
    missing = selected - changed(truth, result)
    # the selected samples that bear the target label already: 21 of each class on a user, a quarter
    # of them drawn
    assert missing.min() >= 0
    assert missing.max() <= 21
    assert 1 < missing.mean() < 10


@pytest.mark.parametrize("tasks", [TWO, FIVE])
def test_fbnll_dependent_selects_exactly_and_uses_up_class_after_class(tasks: Tasks) -> None:
    truth = users(tasks, own=401)
    result = corrupt({"name": "task", "mode": "dependent"}, truth)
    assert changed(truth, result).tolist() == (np.bincount(truth.owner) // 4).tolist()
    wrong = result.given != truth.labels
    for client, task in enumerate(tasks):
        mine = truth.owner == client
        shares = [wrong[mine & (truth.labels == c)].mean() for c in task]
        assert sum(0 < share < 1 for share in shares) <= 1
        assert not wrong[mine & ~np.isin(truth.labels, task)].any()


def test_fbnll_dependent_starts_with_a_random_class() -> None:
    truth = users(((0, 1),) * 200, own=20, foreign=0)
    result = corrupt({"name": "task", "mode": "dependent"}, truth)
    first = np.bincount(truth.owner[(truth.labels == 0) & (result.given != 0)], minlength=200) > 0
    assert abs(first.sum() - 100) < 5 * np.sqrt(50)


def test_fbnll_dependent_never_takes_samples_of_other_tasks() -> None:
    truth = users(((0, 1),) * 3, own=10, foreign=30)
    result = corrupt({"name": "task", "mode": "dependent", "alpha": 1}, truth)
    assert changed(truth, result).tolist() == [20, 20, 20]


@pytest.mark.parametrize("mode", ["independent", "dependent"])
def test_fbnll_redraw_gives_every_sample_its_own_wrong_class(mode: str) -> None:
    truth = users(TWO)
    result = corrupt({"name": "task", "mode": mode, "redraw": True}, truth)
    for client, task in enumerate(TWO):
        assert wrong_labels(truth, result, client) == set(range(10)) - set(task)


@pytest.mark.parametrize("mode", ["independent", "dependent"])
def test_fbnll_alpha_zero_changes_nothing(mode: str) -> None:
    truth = users(FIVE)
    assert (corrupt({"name": "task", "mode": mode, "alpha": 0}, truth).given == truth.labels).all()


@pytest.mark.parametrize(
    ("tasks", "rule"),
    [
        (None, r"needs a partition with tasks; got one without"),
        (((0,), (0, 1)), r"got all classes for client 1"),
    ],
)
def test_clients_without_a_class_to_flip_to_are_refused(tasks: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        corrupt("task", truth_of([[5, 5]] * 2, tasks=tasks))
