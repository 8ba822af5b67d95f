"""Two studies of one output folder at once: nothing twice, nothing lost, and who holds what."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfl.locks import take_lock
from rayfl.run.store import Shelf
from rayfl.study import runner
from rayfl.study.order import StudyOrder
from rayfl.study.plan import make_plan
from rayfl.study.runner import run_plan
from rayfl.tracking.store import default_uri, open_client
from tests.study.tiny import study_file

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]
ME = f"process {os.getpid()} on "


@pytest.fixture
def order(home: Path) -> StudyOrder:
    """Four runs, none of them made."""
    return StudyOrder(study_file(home), output=home / "out", seeds=(0,))


def cell_lock(order: StudyOrder, number: int) -> Path:
    config = make_plan(order).todo[number].config
    return order.folder / "locks" / f"{config.digest[:16]}-{config.training.rounds}"


def test_a_run_that_another_process_holds_is_left_to_it_and_waited_for(order: StudyOrder) -> None:
    plan = make_plan(order)
    lock = take_lock(cell_lock(order, 1), "it")
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("waiting for"):
            lock.release()  # it was killed, and has made nothing

    ran = run_plan(plan, say)
    title = plan.todo[1].title
    (left,) = [line for line in said if line.startswith("left to")]
    assert left.startswith(f"left to {ME}")
    assert left.endswith(f": {title}")
    assert said[-1] == f"waiting for the end of {title}"
    assert [run.title for run in ran.finished] == [plan.todo[n].title for n in (0, 2, 3, 1)]


def test_what_another_process_has_made_meanwhile_is_not_made_again(order: StudyOrder) -> None:
    plan = make_plan(order)
    run_plan(make_plan(order), lambda _: None)
    said: list[str] = []
    assert run_plan(plan, said.append).finished == []
    assert [line for line in said if line.startswith("made by")] == [
        f"made by another process meanwhile: {run.title}" for run in plan.todo
    ]


@pytest.mark.long
def test_two_studies_make_every_run_once(
    order: StudyOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two threads; locks keep them apart as they do processes."""
    monkeypatch.setattr(runner, "PATIENCE", 200.0)
    order = replace(order, overrides=("tracking.enabled=true",))
    plans = [make_plan(order), make_plan(order)]
    said: list[list[str]] = [[], []]
    found: list[Any] = []

    def work(number: int) -> None:
        found.append(run_plan(plans[number], said[number].append))

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [ran.failed for ran in found] == [{}, {}]
    assert sum(len(ran.finished) for ran in found) == 4
    assert len(list(Shelf(order.folder))) == len(list((order.folder / "runs").iterdir())) == 4
    assert sum("too" in line for lines in said for line in lines) == 1
    client = open_client(default_uri(order.folder))
    experiment = client.get_experiment_by_name(order.study.title)
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if run.data.tags.get("kind") == "study"]
    below = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(below) == 4
    lines = (order.notes / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["start", "status"]
