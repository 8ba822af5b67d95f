"""What a run is worth: the test set, and label decisions against the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.federation.scenario import Scenario, open_federation
from rayfl.federation.split import Role
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.fit import compute_losses, compute_outputs
from rayfl.protocol import ClientId, Report, Shard
from rayfl.run.assembly import build_holdings, build_spec
from rayfl.run.engine import Outcome
from rayfl.run.evaluation import PART, Judge, Verdict, add_counts
from tests.algorithms.conformance import Row, run_toy, toy_config
from tests.methods import Kept


def judged(folder: Path, **more: Any) -> tuple[Judge, InlineFleet, Scenario]:
    config = toy_config(Row("toy", {"name": "tests.methods:Odd"}, config=more), folder)
    dataset, scenario = open_federation(config, 0)
    fleet = InlineFleet(
        build_spec(config, dataset, scenario, "cpu"), build_holdings(config, dataset, scenario)
    )
    return Judge(config, scenario, fleet), fleet, scenario


def evaluate(judge: Judge, weights: NDArray[np.float32]) -> Verdict:
    """The verdict on a model, at once."""
    examination = judge.prepare(Kept(judge.fleet.put(weights)))
    verdicts: list[Verdict] = []

    def decide(reports: Mapping[ClientId, Report], seconds: float) -> None:
        assert seconds > 0
        verdicts.append(judge.decide(examination, reports))

    judge.begin(examination, decide).wait()
    (verdict,) = verdicts
    return verdict


def decided(folder: Path, **more: Any) -> tuple[Outcome, BaseFleet, Scenario]:
    row = Row(
        "deciding", {"name": "tests.methods:Deciding"}, config={"training": {"rounds": 2}, **more}
    )
    config = toy_config(row, folder)
    return (*run_toy(config), open_federation(config, 0)[1])


# -- the test set ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [7, 64, 5000])
def test_parts_cover_the_test_set_in_whole_batches(batch: int, tmp_path: Path) -> None:
    data = {"name": "blobs", "samples": 60, "test_samples": 2500, "classes": 4, "side": 2}
    judge, _, _ = judged(tmp_path, data=data, evaluation={"batch_size": batch})
    rows = [row for start, stop in judge.parts for row in range(start, stop)]
    assert rows == list(range(2500))
    assert all(
        (stop - start) % batch == 0 and stop - start < PART + batch
        for start, stop in judge.parts[:-1]
    )


def test_a_verdict_is_that_of_one_pass_over_all_images(tmp_path: Path) -> None:
    data = {
        "name": "blobs",
        "samples": 60,
        "test_samples": 2500,
        "classes": 4,
        "side": 4,
        "spread": 0.5,
    }
    judge, fleet, scenario = judged(tmp_path, data=data)
    size = len(fleet.executor.learner.shape_of().flat)
    weights = np.random.default_rng(0).normal(size=size).astype(np.float32)
    verdict = evaluate(judge, weights)
    test = fleet.executor.holdings.sets["test"]
    assert test.y is not None
    logits = compute_outputs(fleet.executor.learner, weights, test.x)
    right = logits.argmax(axis=1) == test.y
    assert verdict.metrics["test/accuracy"] == right.mean()
    assert verdict.metrics["test/loss"] == pytest.approx(compute_losses(logits, test.y).mean())
    assert verdict.confusion.sum() == 2500
    for i, name in enumerate(scenario.classes):
        assert verdict.metrics[f"test/recall/{name}"] == pytest.approx(right[test.y == i].mean())


def test_testing_is_no_part_of_the_bill(tmp_path: Path) -> None:
    judge, fleet, _ = judged(tmp_path)
    weights = fleet.executor.learner.first_weights()
    evaluate(judge, weights)
    assert not any(fleet.costs.take().values())


def test_personal_models_are_judged_each_on_its_own(tmp_path: Path) -> None:
    row = Row("personal", {"name": "tests.methods:Personal"}, config={"training": {"rounds": 1}})
    outcome, fleet = run_toy(toy_config(row, tmp_path))
    assert isinstance(fleet, InlineFleet)
    test = fleet.executor.holdings.sets["test"]
    place = fleet.executor.learner
    scores = [
        (compute_outputs(place, w, test.x).argmax(axis=1) == test.y).mean()
        for w in outcome.models.values()
    ]
    metrics = outcome.history[-1]["metrics"]
    assert len(set(scores)) > 1
    assert metrics["test/accuracy"] == pytest.approx(np.mean(scores))
    assert metrics["test/worst_client"] == pytest.approx(min(scores))
    assert outcome.verdict is not None
    assert outcome.verdict.confusion.sum() == 6 * len(test)


def test_clusters_are_compared_with_tasks(tmp_path: Path) -> None:
    partition = {"name": "tasks", "tasks": [[0, 1], [2, 3]], "impurity": 0.0}
    row = Row(
        "tasks",
        {"name": "tests.methods:Personal"},
        config={"training": {"rounds": 1}, "partition": partition},
    )
    outcome, _ = run_toy(toy_config(row, tmp_path))
    metrics = outcome.history[-1]["metrics"]
    assert metrics["clusters/count"] == 2
    # Parity against halves, in threes: no pair of clients agrees more often than by chance.
    assert metrics["clusters/adjusted_rand"] == pytest.approx(-1 / 9)
    # Half the classes are enough for a full score.
    assert metrics["test/accuracy"] > 0.6


# -- label decisions -------------------------------------------------------------------------------


def test_label_decisions_against_the_truth(tmp_path: Path) -> None:
    """Every figure once more, client by client, with plain arithmetic."""
    outcome, _, scenario = decided(tmp_path)
    assert scenario.true is not None
    precisions, recalls, before, after, changed = [], [], [], [], []
    for client in range(scenario.clients):
        given, true = (labels[scenario.shard(client)] for labels in (scenario.given, scenario.true))
        kept, new = np.arange(len(given)) % 2 == 0, given.copy()
        new[:2] = 0
        precisions.append(np.mean(given[kept] == true[kept]))
        recalls.append(np.sum((given == true) & kept) / np.sum(given == true))
        before += (given == true).tolist()
        after += (new == true).tolist()
        changed += (given != new).tolist()
    metrics = outcome.history[0]["metrics"]
    assert metrics["labels/precision"] == pytest.approx(np.mean(precisions))
    assert metrics["labels/recall"] == pytest.approx(np.mean(recalls))
    assert metrics["labels/kept"] == 0.5
    assert metrics["labels/corrected"] == pytest.approx(np.mean(changed))
    assert metrics["labels/correction_accuracy"] == pytest.approx(np.mean(np.array(after)[changed]))
    assert metrics["labels/right_before"] == pytest.approx(np.mean(before))
    assert metrics["labels/right_after"] == pytest.approx(np.mean(after))


def test_only_new_decisions_are_judged(tmp_path: Path) -> None:
    outcome, _, _ = decided(tmp_path)
    assert not [name for name in outcome.history[1]["metrics"] if name.startswith("labels/")]


def test_without_a_truth_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    outcome, _, _ = decided(tmp_path, labels="given", noise="none")
    assert not [name for name in outcome.history[0]["metrics"] if name.startswith("labels/")]
    judge, _, scenario = judged(tmp_path, labels="given", noise="none")
    assert scenario.realised is None
    assert judge.estimate_metrics({"trust": {0: 1.0, 1: 0.5}}, {}) == {}


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 1.0), (-2.0, -1.0)])
def test_beliefs_are_correlated_with_the_realised_noise(
    sign: float, expected: float, tmp_path: Path
) -> None:
    judge, _, scenario = judged(tmp_path)
    assert scenario.realised is not None
    beliefs = {client: sign * float(scenario.realised[client]) for client in (0, 2, 5)}
    assert judge.estimate_metrics({"trust": beliefs}, {}) == {
        "trust/noise_correlation": pytest.approx(expected)
    }


@pytest.mark.parametrize("rows", [1, 3])
def test_a_mask_may_have_a_row_an_epoch(rows: int, tmp_path: Path) -> None:
    judge, fleet, scenario = judged(tmp_path)
    mask = np.ones((rows, len(scenario.shard(0))), np.bool_)
    found = judge.label_metrics({0: {"kept": fleet.put(mask)}})
    assert scenario.correct is not None
    assert found["labels/precision"] == pytest.approx(scenario.correct[scenario.shard(0)].mean())
    assert found["labels/recall"] == found["labels/kept"] == 1.0


def test_keeping_nothing_has_no_precision(tmp_path: Path) -> None:
    judge, fleet, scenario = judged(tmp_path)
    found = judge.label_metrics(
        {0: {"kept": fleet.put(np.zeros(len(scenario.shard(0)), np.bool_))}}
    )
    assert found == {"labels/precision": 0.0, "labels/recall": 0.0, "labels/kept": 0.0}


def test_counts_are_added_without_overflow() -> None:
    part = np.full((2, 2), 2**31 - 1, np.int32)
    assert add_counts([part, part]).tolist() == [[2**32 - 2] * 2] * 2


def test_beliefs_are_correlated_with_how_often_models_are_right(tmp_path: Path) -> None:
    judge, _, scenario = judged(tmp_path, split={"public": {"total": 40}})
    assert scenario.true is not None
    truth = scenario.true[scenario.indices(Role.PUBLIC)]
    answers = {
        client: np.where(np.arange(40) < 10 * client, truth, (truth + 1) % 4) for client in range(4)
    }
    found = judge.estimate_metrics(
        {"trust": {client: float(client) for client in range(4)}}, {"public": answers}
    )
    assert found["trust/accuracy_correlation"] == pytest.approx(1.0)


def test_answers_of_some_clients_alone_are_not_correlated(tmp_path: Path) -> None:
    judge, _, _ = judged(tmp_path, split={"public": {"total": 40}})
    found = judge.estimate_metrics(
        {"trust": {0: 1.0, 1: 0.0}}, {"public": {0: np.zeros(40, np.int64)}}
    )
    assert set(found) == {"trust/noise_correlation"}


@pytest.mark.parametrize("network", ["cnn4", "mnist_cnn"])
def test_scores_of_sorted_files_are_those_of_shuffled_ones(network: str, tmp_path: Path) -> None:
    """The test set lies by class: parts and batches in the order of the files hold one class
    each."""
    data = {"name": "blobs", "samples": 60, "test_samples": 2500, "classes": 4, "side": 16}
    model = {"name": "cnn4", "widths": [4]} if network == "cnn4" else network
    judge, fleet, _ = judged(tmp_path, data=data, model=model, evaluation={"batch_size": 64})
    weights = fleet.executor.learner.first_weights()
    shuffled = fleet.executor.holdings.sets["test"]
    assert shuffled.y is not None
    order = np.argsort(shuffled.y, kind="stable")
    verdict = evaluate(judge, weights)
    held = {**fleet.executor.holdings.sets, "test": Shard(shuffled.x[order], shuffled.y[order])}
    fleet.executor.holdings = replace(fleet.executor.holdings, sets=held)
    # The place has been told the order of another test set.
    fleet.executor.learner = fleet.spec.make_learner()
    again = evaluate(judge, weights)
    if network == "cnn4":
        assert again.metrics == verdict.metrics
    assert np.array_equal(again.confusion, verdict.confusion)


# -- training losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tests.methods:Odd", "tests.methods:Personal"])
def test_losses_of_right_and_wrong_labels_are_those_of_all_clients_samples(
    method: str, tmp_path: Path
) -> None:
    more = {"training": {"rounds": 2}, "evaluation": {"training_losses": True}}
    row = Row("losses", {"name": method}, config=more)
    config = toy_config(row, tmp_path)
    outcome, fleet = run_toy(config)
    assert isinstance(fleet, InlineFleet)
    scenario = open_federation(config, 0)[1]
    assert scenario.correct is not None
    place, images = fleet.executor.learner, fleet.executor.holdings.x
    found: dict[bool, list[float]] = {True: [], False: []}
    for client in fleet.clients:
        rows = scenario.shard(client)
        w = outcome.models[client if client in outcome.models else None]
        losses = compute_losses(compute_outputs(place, w, images[rows]), scenario.given[rows])
        for loss, right in zip(losses, scenario.correct[rows], strict=True):
            found[bool(right)].append(loss)
    metrics = outcome.history[-1]["metrics"]
    assert metrics["train/loss_right"] == pytest.approx(np.mean(found[True]), rel=1e-5)
    assert metrics["train/loss_wrong"] == pytest.approx(np.mean(found[False]), rel=1e-5)


def test_losses_of_training_samples_change_no_run_and_cost_nothing(tmp_path: Path) -> None:
    def outcome_of(wanted: bool, folder: Path) -> Outcome:
        more = {"training": {"rounds": 2}, "evaluation": {"training_losses": wanted}}
        return run_toy(toy_config(Row("odd", {"name": "fedavg"}, config=more), folder))[0]

    without, watched = (outcome_of(wanted, tmp_path / str(wanted)) for wanted in (False, True))
    assert watched.sha256 == without.sha256
    added = {"train/loss_right", "train/loss_wrong"}
    for one, other in zip(without.history, watched.history, strict=True):
        assert added.isdisjoint(one["metrics"])
        kept = {name: value for name, value in other["metrics"].items() if name not in added}
        assert kept == one["metrics"]


def test_nobody_knows_which_training_labels_are_wrong_where_they_are_given(tmp_path: Path) -> None:
    more = {"labels": "given", "evaluation": {"training_losses": True}}
    judge, fleet, _ = judged(tmp_path, **more)
    verdict = evaluate(judge, fleet.executor.learner.first_weights())
    assert "train/loss_right" not in verdict.metrics
