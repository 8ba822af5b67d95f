"""Local settings and participation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from rayfl.learn.augment import AUGMENTATIONS
from rayfl.learn.training import LocalTraining, Normalisation, Participation


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ({"lr": -0.1}, "greater than or equal to 0"),
        ({"lr": float("nan")}, "finite number|greater than or equal"),
        ({"momentum": 1.0}, "less than 1"),
        ({"momentum": -0.1}, "greater than or equal to 0"),
        ({"weight_decay": -1}, "greater than or equal to 0"),
        ({"epochs": -1}, "greater than or equal to 0"),
        ({"epochs": 1.5}, "valid integer"),
        ({"steps": 0}, "greater than or equal to 1"),
        ({"batch_size": 0}, "greater than or equal to 1"),
        ({"optimizer": "sdg"}, "'sgd' or 'adam'"),
        ({"augment": "flip"}, "unknown augmentation 'flip'"),
        ({"learning_rate": 1}, "Extra inputs are not permitted"),
        ({"normalise": "mean"}, "dataset"),
        ({"normalise": {"std": [0.0]}}, "greater than 0"),
        ({"normalise": {"mean": []}}, "at least 1 item"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        LocalTraining(**bad)


def test_defaults_are_one_epoch_of_plain_sgd() -> None:
    plain = LocalTraining()
    assert (plain.optimizer, plain.momentum, plain.weight_decay, plain.epochs, plain.steps) == (
        "sgd",
        0,
        0,
        1,
        None,
    )
    assert type(plain.augment) is AUGMENTATIONS.find("none")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        LocalTraining().lr = 1.0  # type: ignore[misc]


def test_one_value_serves_every_channel() -> None:
    assert Normalisation() == Normalisation(mean=(0.0,), std=(1.0,))


@pytest.mark.parametrize(
    ("rule", "clients", "cohort"),
    [
        ({}, 7, 7),
        ({"fraction": 0.29}, 100, 28),
        ({"fraction": 0.0}, 100, 1),
        ({"fraction": 1.0}, 3, 3),
        ({"clients_per_round": 5}, 3, 3),
        ({"clients_per_round": 5}, 100, 5),
    ],
)
def test_who_takes_part(rule: dict[str, Any], clients: int, cohort: int) -> None:
    assert Participation(**rule).cohort(clients) == cohort


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_a_cohort_is_never_empty_nor_larger_than_all(fraction: float, clients: int) -> None:
    assert 1 <= Participation(fraction=fraction).cohort(clients) <= clients


def test_two_rules_are_one_too_many() -> None:
    with pytest.raises(ValidationError, match="give fraction or clients_per_round, not both"):
        Participation(fraction=0.5, clients_per_round=3)
