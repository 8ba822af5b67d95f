"""Running a study: all that is missing, whatever fails, on one Ray, and listed under the study in
MLflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayfl.run.store import Record, Shelf
from rayfl.study.order import StudyOrder
from rayfl.study.plan import StudyPlan, make_plan
from rayfl.study.runner import RunOutcomes, find_unfinished, run_plan
from rayfl.tracking.store import open_client
from tests.study.tiny import study_file


def carried_out(order: StudyOrder) -> tuple[StudyPlan, RunOutcomes, list[str]]:
    plan, said = make_plan(order), list[str]()
    return plan, run_plan(plan, said.append), said


def hashes(output: Path) -> dict[tuple[str, str, int], str]:
    """What every run ended with, by method, noise and seed."""

    def key(record: Record) -> tuple[str, str, int]:
        config = record.config
        return config["method"]["name"], config["noise"]["name"], config["seed"]

    return {key(record): record.sha256 for record in Shelf(output)}


def test_all_that_is_missing_is_run_and_nothing_twice(home: Path) -> None:
    order = StudyOrder(study_file(home), output=home / "out", seeds=(0,))
    _, ran, said = carried_out(order)
    assert [run.title for run in ran.finished] == [
        "FedAvg, clean, seed 0",
        "FedAvg, noisy, seed 0",
        "FedProx, clean, seed 0",
        "FedProx, noisy, seed 0",
    ]
    assert said[0] == "[1/4] FedAvg, clean, seed 0"
    assert len(list((home / "out" / "runs").iterdir())) == 4
    again, ran, said = carried_out(order)
    assert (again.todo, ran.finished, said) == ([], [], [])
    assert len(list((home / "out" / "runs").iterdir())) == 4


def test_a_run_that_fails_is_told_and_the_others_go_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder that nobody can write to, where the checkpoints of one cell are to go.
    (home / "file").write_text("")
    broken = {"method": "fedprox", "checkpoint": {"uri": str(home / "file" / "x")}}
    path = study_file(home, {"axes": {"method": {"fedprox": {"set": broken}}}, "seeds": [0]})
    _, ran, said = carried_out(StudyOrder(path, output=home / "out"))
    assert {run.cell.key for run in ran.finished} == {("fedavg", "clean"), ("fedavg", "noisy")}
    assert set(ran.failed) == {("fedprox", "clean"), ("fedprox", "noisy")}
    assert all(reason.startswith("failed: ") for reason in ran.failed.values())
    assert any(line.startswith("failed: FedProx, clean, seed 0: ") for line in said)


def test_a_mistake_in_a_users_method_fails_its_own_cells(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "mine.py").write_text(
        "from rayfl.algorithms.fedavg import FedAvg\n"
        "from rayfl.component import component\n"
        "@component\n"
        "class Mine(FedAvg):\n"
        "    def init(self, fleet, model):\n"
        "        raise ZeroDivisionError('mine')\n"
    )
    monkeypatch.syspath_prepend(str(home))
    path = study_file(
        home, {"axes": {"method": {"fedprox": {"set": {"method": "mine:Mine"}}}}, "seeds": [0]}
    )
    _, ran, said = carried_out(StudyOrder(path, output=home / "out", only=("noise=clean",)))
    assert ran.failed == {("fedprox", "clean"): "failed: ZeroDivisionError: mine"}
    assert len(ran.finished) == 1
    assert "raise ZeroDivisionError('mine')" in said[-1]


@pytest.mark.long
def test_on_ray_as_in_one_process(home: Path, cluster: None) -> None:
    asked = {"only": ("noise=noisy",), "seeds": (0,)}
    carried_out(StudyOrder(study_file(home), output=home / "here", **asked))  # type: ignore[arg-type]
    on_ray = ("fleet=ray", "resources.actors=2", "device=cpu")
    carried_out(StudyOrder(study_file(home), output=home / "there", overrides=on_ray, **asked))  # type: ignore[arg-type]
    assert hashes(home / "here") == hashes(home / "there")
    assert len(hashes(home / "here")) == 2


# -- going on --------------------------------------------------------------------------------------


def an_unfinished_run(home: Path) -> Path:
    """The folder of a run whose end is missing."""
    order = StudyOrder(
        study_file(home), output=home / "out", seeds=(0,), only=("method=fedavg", "noise=clean")
    )
    carried_out(order)
    (result,) = (home / "out" / "runs").glob("*/result.json")
    result.unlink()
    return result.parent


def test_an_unfinished_run_is_taken_up_again(home: Path) -> None:
    directory = an_unfinished_run(home)
    order = StudyOrder(
        study_file(home), output=home / "out", seeds=(0,), only=("method=fedavg", "noise=clean")
    )
    config = order.configuration(order.cells[0], 0).config
    assert find_unfinished(config) == directory
    carried_out(order)
    assert [record.directory for record in Shelf(home / "out")] == [directory]


@pytest.mark.parametrize(
    ("overrides", "spoilt"),
    [
        (("training.rounds=5",), ""),
        (("training.lr=0.3",), ""),
        ((), "training:"),
        ((), "{"),
        ((), "training: {}"),
    ],
)
def test_another_run_or_a_spoilt_one_is_not(
    home: Path, overrides: tuple[str, ...], spoilt: str
) -> None:
    directory = an_unfinished_run(home)
    if spoilt:
        (directory / "config.yaml").write_text(spoilt)
    order = StudyOrder(study_file(home), output=home / "out", overrides=overrides)
    assert find_unfinished(order.configuration(order.cells[0], 0).config) is None


# -- in MLflow -------------------------------------------------------------------------------------


def tracked(home: Path, **asked: Any) -> StudyOrder:
    order = StudyOrder(
        study_file(home, {"notes": "A note."}),
        output=home / "out",
        only=("method=fedavg", "noise=clean"),
        overrides=("tracking.enabled=true", f"tracking.uri=sqlite:///{home / 'm.db'}"),
        **asked,
    )
    carried_out(order)
    return order


# What MLflow and SQLAlchemy warn of is not ours.
@pytest.mark.filterwarnings("ignore")
def test_runs_are_listed_under_their_study(home: Path) -> None:
    tracked(home, seeds=(0,))
    tracked(home, seeds=(0, 1))
    client = open_client(f"sqlite:///{home / 'm.db'}")
    runs = client.search_runs([client.get_experiment_by_name("Tiny").experiment_id])
    parents = [run for run in runs if run.data.tags.get("kind") == "study"]
    children = [run for run in runs if run not in parents]
    assert len(parents) == 1
    assert (parents[0].info.run_name, parents[0].info.status) == ("Tiny", "FINISHED")
    assert parents[0].data.tags["mlflow.note.content"] == "A note."
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert sorted(run.info.run_name for run in children) == [
        "FedAvg, clean, seed 0",
        "FedAvg, clean, seed 1",
    ]
    shown = {key: children[0].data.tags[key] for key in ("study", "method", "noise")}
    assert shown == {"study": "tiny", "method": "fedavg", "noise": "clean"}


def test_the_order_is_remembered_for_the_report(home: Path) -> None:
    order = StudyOrder(
        study_file(home), output=home / "out", only=("method=rhfl,fedavg",), seeds=(0,)
    )
    carried_out(order)
    assert StudyOrder.remembered(order.path, home / "out") == order
    assert json.loads((order.notes / "order.json").read_text())["seeds"] == [0]
