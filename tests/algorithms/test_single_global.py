"""The baseline without personalisation: one model, every user the same weight, every user its own
score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.single_global import SingleGlobal
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import Client, Out
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import fleet_of

TASKS: dict[str, Any] = {"partition": {"name": "tasks", "tasks": [[0, 1], [2, 3]]}}

ROWS = [
    Row(
        "single_global",
        {"name": "single_global"},
        config=TASKS,
        untried={"odd federation": "a partition of its own"},
        # Users of different tasks pull the one model apart: that it stays behind is the point of
        # this baseline.
        floor=0.7,
        refused=[({"weighting": "sise"}, "unknown weighting")],
    )
]


def constant(client: Client, *, w: Any, method: SingleGlobal) -> Out:
    return Out(update=np.array([1.0 if client.id == 0 else 3.0], np.float32))


@pytest.mark.parametrize("sizes", [[1, 1], [100, 300], [999, 1]])
def test_sizes_do_not_weigh(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfl.algorithms.fedavg.train", constant)
    fleet, method = fleet_of(sizes), SingleGlobal()
    state = method.round(method.init(fleet, fleet.put(np.zeros(1, np.float32))), fleet, 0)
    assert fleet.get(method.model(state, fleet)).tolist() == [2.0]


def test_model_is_that_of_federated_averaging_with_equal_weights(tmp_path: Path) -> None:
    """Only the scores differ: each user's are on its own task."""
    own, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 2), directory="own")
    averaged = toy_config(ROWS[0], tmp_path, {"name": "fedavg", "weighting": "equal"})
    plain, _ = run_toy(shortened(averaged, 2), directory="plain")
    assert set(own.models) == set(range(6))
    assert all(np.array_equal(model, plain.models[None]) for model in own.models.values())


def test_one_evaluation_serves_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    start_errand = InlineFleet.start_errand

    def counted(fleet: InlineFleet, phase: Any, each: Any, *more: Any, **shared: Any) -> Any:
        asked.append([task["w"] for task in each.values()])
        return start_errand(fleet, phase, each, *more, **shared)

    monkeypatch.setattr(InlineFleet, "start_errand", counted)
    run_toy(shortened(toy_config(ROWS[0], tmp_path), 2))
    assert [len(models) for models in asked] == [1, 1]


def test_score_is_the_mean_over_users_of_their_tasks(tmp_path: Path) -> None:
    """Three users of one task and three of the other: the mean of the two tasks' accuracies."""
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 3))
    assert outcome.verdict is not None
    # The matrix sums the six users' equal ones, which changes no share.
    right, total = np.diagonal(outcome.verdict.confusion), outcome.verdict.confusion.sum(axis=1)
    tasks = [right[list(task)].sum() / total[list(task)].sum() for task in ([0, 1], [2, 3])]
    assert outcome.history[-1]["metrics"]["test/accuracy"] == pytest.approx(np.mean(tasks))
    assert outcome.history[-1]["metrics"]["test/worst_client"] == pytest.approx(min(tasks))
