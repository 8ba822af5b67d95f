from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rayfl.errors import ConfigError
from rayfl.federation.noise.pairs import CIFAR100_SUPERCLASS, make_flip_table

from .truths import changed, confusion, corrupt, federation, server, truth_of

TABLES: list[tuple[Any, int]] = [
    ("next", 10),
    ("previous", 10),
    ("superclass_ring", 100),
    ("next", 3),
]


@pytest.mark.parametrize(("pairs", "classes"), TABLES)
def test_rings_are_permutations_that_return_after_a_full_turn(pairs: Any, classes: int) -> None:
    table = make_flip_table(pairs, classes)
    turn = 5 if pairs == "superclass_ring" else classes
    label = np.arange(classes)
    for _ in range(turn):
        label = table[label]
    assert (label == np.arange(classes)).all()
    assert (table[table] != np.arange(classes)).all()
    assert sorted(table) == list(range(classes))


def test_previous_is_one_less() -> None:
    assert make_flip_table("previous", 4).tolist() == [3, 0, 1, 2]
    assert make_flip_table("next", 4).tolist() == [1, 2, 3, 0]


def test_the_superclass_ring_stays_among_the_five_of_a_superclass() -> None:
    superclass = np.array(CIFAR100_SUPERCLASS)
    table = make_flip_table("superclass_ring", 100)
    assert np.bincount(superclass).tolist() == [5] * 20
    assert (superclass[table] == superclass).all()
    # beaver, dolphin, otter, seal, whale; and maple, oak, palm, pine, willow
    for ring in ([4, 30, 55, 72, 95], [47, 52, 56, 59, 96]):
        assert table[ring].tolist() == [*ring[1:], ring[0]]


@pytest.mark.parametrize("count", ["per_class", "per_class_floor", "exact"])
def test_fedcr_asymmetric_cifar10_at_40_percent(count: str) -> None:
    truth = server(500)
    result = corrupt(
        {"name": "asymmetric", "rate": 0.4, "pairs": "cifar10-fedcr", "count": count}, truth
    )
    table = confusion(truth, result)
    assert changed(truth, result).tolist() == [1000]
    if count != "exact":
        noisy = table.sum(axis=0) / 5000
        assert noisy[[0, 1, 9]] == pytest.approx([0.14, 0.14, 0.06])
        assert table[1, 1] / table[:, 1].sum() == pytest.approx(0.714286, abs=1e-6)


def test_fedcr_asymmetric_cifar10_at_80_percent_leaves_automobile_barely_right() -> None:
    truth = server(500)
    spec = {"name": "asymmetric", "rate": 0.8, "pairs": "cifar10-fedcr", "count": "per_class"}
    table = confusion(truth, corrupt(spec, truth))
    assert table[1, 1] / table[:, 1].sum() == pytest.approx(0.555556, abs=1e-6)


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.8])
def test_fedcr_asymmetric_noise_over_all_classes_is_half_its_rate(rate: float) -> None:
    truth = server(500)
    spec = {"name": "asymmetric", "rate": rate, "pairs": "cifar10-fedcr", "count": "per_class"}
    assert np.mean(corrupt(spec, truth).given != truth.labels) == pytest.approx(rate / 2, abs=1e-12)


@pytest.mark.parametrize(("count", "rounds"), [("per_class", 3), ("per_class_floor", 2)])
def test_counts_per_class_are_rounded_as_named(count: str, rounds: int) -> None:
    truth = truth_of([[9, 9, 9]] * 2)
    result = corrupt({"name": "asymmetric", "rate": 0.3, "pairs": "next", "count": count}, truth)
    assert changed(truth, result).tolist() == [3 * rounds] * 2


def test_fedds_asymmetric_takes_a_floor_of_each_source_class() -> None:
    counts = np.random.default_rng(0).integers(0, 60, (40, 10))
    truth = truth_of(counts.tolist())
    spec = {
        "name": "asymmetric",
        "rate": "discrete",
        "pairs": "cifar10-fedds",
        "count": "per_class_floor",
    }
    result = corrupt(spec, truth)
    tenths = np.rint(result.nominal * 10).astype(int)[:, None]
    assert (
        changed(truth, result).tolist()
        == (tenths * counts[:, [9, 2, 4, 3]] // 10).sum(axis=1).tolist()
    )


def test_fedds_asymmetric_is_22_percent_overall() -> None:
    truth = federation()
    rate = {"name": "discrete", "balanced": True}
    spec = {
        "name": "asymmetric",
        "rate": rate,
        "pairs": "cifar10-fedds",
        "count": "per_class_floor",
    }
    assert np.mean(corrupt(spec, truth).given != truth.labels) == pytest.approx(
        0.4 * 0.55, abs=1e-12
    )


def test_fedds_asymmetric_moves_four_classes_and_no_other() -> None:
    truth = federation()
    table = confusion(
        truth, corrupt({"name": "asymmetric", "rate": 0.5, "pairs": "cifar10-fedds"}, truth)
    )
    moved = {(int(a), int(b)) for a, b in np.argwhere(table) if a != b}
    assert moved == {(9, 1), (2, 0), (4, 7), (3, 5)}


def test_fedrn_pairflip_takes_a_floor_of_all_samples_whatever_their_class() -> None:
    truth = truth_of([[3, 4, 2], [5, 5, 5]])
    result = corrupt({"name": "asymmetric", "rate": 0.5, "pairs": "previous"}, truth)
    wrong = result.given != truth.labels
    assert changed(truth, result).tolist() == [4, 7]
    assert (result.given[wrong] == (truth.labels[wrong] - 1) % 3).all()


def test_pairs_may_be_written_out() -> None:
    truth = server(10, classes=3)
    table = confusion(
        truth, corrupt({"name": "asymmetric", "rate": 1, "pairs": {"0": 2, 2: 0}}, truth)
    )
    assert table.tolist() == [[0, 0, 10], [0, 10, 0], [10, 0, 0]]


@pytest.mark.parametrize(
    ("pairs", "rule"),
    [
        ("cifar10-fedds", r"'cifar10-fedds' is for 10 classes; got 3"),
        ("superclass_ring", r"'superclass_ring' is for 100 classes; got 3"),
        ({0: 3}, r"name classes in \[0, 3\); got 0: 3"),
        ({-1: 0}, r"name classes in \[0, 3\); got -1: 0"),
    ],
)
def test_pairs_that_do_not_fit_the_classes_are_refused(pairs: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        corrupt({"name": "asymmetric", "rate": 0.1, "pairs": pairs}, server(10, classes=3))


@pytest.mark.parametrize("pairs", ["nxt", {}, {"cat": "dog"}, 7])
def test_pairs_that_are_none_are_refused_when_written(pairs: Any) -> None:
    with pytest.raises(ValidationError, match="pairs"):
        corrupt({"name": "asymmetric", "rate": 0.1, "pairs": pairs}, server(10))
