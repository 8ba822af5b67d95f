"""The plan: problems before anything starts, what the store holds, and estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayfl.run.store import Shelf
from rayfl.study.checks import ConfigTrials
from rayfl.study.durations import PLAIN, DurationEstimate, DurationEstimator, count_actors
from rayfl.study.order import StudyOrder
from rayfl.study.plan import StudyPlan, describe_duration, make_plan
from rayfl.study.runner import run_plan
from tests.study.tiny import study_file


def plan(folder: Path, changes: dict[str, Any] | None = None, **asked: Any) -> StudyPlan:
    return make_plan(StudyOrder(study_file(folder, changes), output=folder / "out", **asked))


def test_a_plan_lists_runs_and_what_is_left_out(home: Path) -> None:
    made = plan(home)
    assert [(run.cell.key, run.seed) for run in made.runs] == [
        ((method, noise), seed)
        for method in ("fedavg", "fedprox")
        for noise in ("clean", "noisy")
        for seed in (0, 1)
    ]
    assert made.todo == list(made.runs)
    said = "\n".join(made.lines())
    assert "8 cells (4 to run, 2 not built, 2 computed from others), seeds 0, 1" in said
    assert "left out (2): RHFL is not built\n    RHFL, clean; RHFL, noisy" in said
    assert "0 runs are done, 8 are to do" in said
    assert not (home / "out").exists()


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (
            {"method": {"name": "fedprox", "mu": -1}},
            "method.mu: must be greater than or equal to 0",
        ),
        ({"method": "fedproxx"}, "unknown method 'fedproxx'. Did you mean 'fedprox'?"),
        ({"data": "svhn", "data_root": "nowhere"}, "svhn needs the file"),
        ({"data": "cifar100", "data_root": "nowhere"}, "cifar100 must hold"),
        ({"clients": 5000}, "clients is at most the"),
        ({"method": "server_sl"}, "needs the set 'labelled'"),
        ({"method": {"name": "fedavg", "weighting": "dawid_skene"}}, "needs the set 'public'"),
        (
            {"method": {"name": "fb_nll_minus", "models": 9, "clustering_encoder": "pixels"}},
            "method.models is at most the number of clients",
        ),
        (
            {"model": {"name": "resnet18", "weights": "gone.pt"}},
            "a weight file must exist; got gone.pt",
        ),
        (
            {
                "method": {
                    "name": "local_k_similarity",
                    "encoder": {"name": "simclr", "path": "gone.ckpt"},
                }
            },
            "a weight file must exist; got gone.ckpt",
        ),
        (
            {"training.normalise": {"mean": [0.1, 0.2], "std": [1.0, 1.0]}},
            "training.normalise.mean has one value",
        ),
        (
            {"partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 900}},
            "4 clients of at least 900 samples need",
        ),
    ],
)
def test_a_cell_that_cannot_run_is_told_and_the_rest_is_planned(
    home: Path, choice: dict[str, Any], reason: str
) -> None:
    made = plan(home, {"axes": {"method": {"fedprox": {"set": choice}}}, "seeds": [0]})
    assert {run.cell.key for run in made.runs} == {("fedavg", "clean"), ("fedavg", "noisy")}
    assert set(made.problems) == {("fedprox", "clean"), ("fedprox", "noisy")}
    assert reason in made.problems["fedprox", "clean"]
    assert any(line.startswith("left out (") and reason in line for line in made.lines())


def test_each_dataset_is_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayfl.federation.datasets.synthetic import Digits

    reads, load = [], Digits.load

    def counted(self: Digits, root: Path) -> Any:
        reads.append(root)
        return load(self, root)

    monkeypatch.setattr(Digits, "load", counted)
    plan(home)
    assert len(reads) == 1


# -- the store -------------------------------------------------------------------------------------


def test_finished_runs_are_not_repeated(home: Path) -> None:
    first = plan(home, seeds=(0,), only=("noise=clean",))
    run_plan(first, lambda _: None)
    again = plan(home, seeds=(0, 1), only=("noise=clean",))
    assert [(run.seed, run.done is not None) for run in again.runs] == [(0, True), (1, False)] * 2
    assert "2 runs are done, 2 are to do" in "\n".join(again.lines())


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"training": {"rounds": 3}}},
        {"set": {"training": {"lr": 0.2}}},
        {"set": {"seeds": {"data": 9}}},
    ],
)
def test_another_run_is_no_substitute(home: Path, changes: dict[str, Any]) -> None:
    only = ("noise=clean", "method=fedavg")
    run_plan(plan(home, seeds=(0,), only=only), lambda _: None)
    assert len(plan(home, changes, seeds=(0,), only=only).todo) == 1


def test_a_run_on_other_data_is_no_substitute(home: Path) -> None:
    only = ("noise=clean", "method=fedavg")
    run_plan(plan(home, seeds=(0,), only=only), lambda _: None)
    (path,) = (home / "out" / "runs").glob("*/run.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "scenario": "0" * 64}))
    assert len(plan(home, seeds=(0,), only=only).todo) == 1


def test_an_unfinished_run_is_to_do(home: Path) -> None:
    only = ("noise=clean", "method=fedavg")
    run_plan(plan(home, seeds=(0,), only=only), lambda _: None)
    (path,) = (home / "out" / "runs").glob("*/result.json")
    path.unlink()
    assert len(plan(home, seeds=(0,), only=only).todo) == 1


# -- estimates -------------------------------------------------------------------------------------


def test_an_estimate_grows_with_the_work(home: Path) -> None:
    checks, estimator = ConfigTrials(), DurationEstimator(Shelf(home))
    cell = StudyOrder(study_file(home)).cells[0]

    def seconds(*overrides: str) -> float:
        config = StudyOrder(study_file(home), overrides=overrides).configuration(cell, 0).config
        return estimator.count_seconds(config, checks.of(config))

    assert seconds("training.rounds=20") == pytest.approx(10 * seconds())
    assert seconds("training.rounds=20") > 0
    assert seconds("training.epochs=4", "evaluation.every=2") > 1.5 * seconds("evaluation.every=2")


def test_one_network_is_timed_once(home: Path) -> None:
    estimator, checks = DurationEstimator(Shelf(home)), ConfigTrials()
    order = StudyOrder(study_file(home), seeds=(0,))
    for _, _, made in order.configurations():
        assert not isinstance(made, Exception)
        estimator.of(made.config, checks.of(made.config))
    assert len(estimator.timed) == 1


def test_rounds_that_were_measured_are_taken(home: Path) -> None:
    only = ("noise=clean", "method=fedavg")
    run_plan(plan(home, seeds=(0,), only=only), lambda _: None)
    estimator = DurationEstimator(Shelf(home / "out"))
    (run,) = plan(home, seeds=(1,), only=only).runs
    assert estimator.find_measured(run.config) is not None
    longer = (
        StudyOrder(study_file(home), overrides=("training.rounds=50",))
        .configuration(run.cell, 1)
        .config
    )
    assert estimator.find_measured(longer) == estimator.find_measured(run.config)
    other = (
        StudyOrder(study_file(home), overrides=("training.epochs=2",))
        .configuration(run.cell, 1)
        .config
    )
    assert estimator.find_measured(other) is None


@pytest.mark.parametrize(
    ("method", "least"), [("fedavg", False), ("moon", True), ("fedrn", True), ("oracle", False)]
)
def test_heavier_methods_take_at_least_as_long(home: Path, method: str, least: bool) -> None:
    cell = StudyOrder(study_file(home)).cells[0]
    config = (
        StudyOrder(study_file(home), overrides=(f"method={method}",)).configuration(cell, 0).config
    )
    assert DurationEstimator(Shelf(home)).of(config, ConfigTrials().of(config)).at_least is least
    assert (method in PLAIN) is not least


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [((), 1), (("fleet=ray", "resources.actors=3"), 3), (("fleet=ray", "clients=1"), 1)],
)
def test_actors_that_share_the_work(home: Path, overrides: tuple[str, ...], expected: int) -> None:
    cell = StudyOrder(study_file(home)).cells[0]
    assert (
        count_actors(
            StudyOrder(study_file(home), overrides=overrides).configuration(cell, 0).config
        )
        == expected
    )


@pytest.mark.parametrize(
    ("estimate", "text"),
    [(DurationEstimate(5), "about 5s"), (DurationEstimate(4000, at_least=True), "at least 1h06m")],
)
def test_estimates_are_told(estimate: DurationEstimate, text: str) -> None:
    assert describe_duration(estimate) == text
