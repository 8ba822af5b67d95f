"""A method that does not do in a run what it promises says so before the first round."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rayfl
from rayfl.algorithms import METHODS
from rayfl.learn.training import Training

LATE: list[tuple[dict[str, Any], str]] = [
    (
        {"name": "fedrn", "warmup": 20},
        "method.warmup takes the first 20 rounds .* has 20: no sample",
    ),
    ({"name": "joint_optimization", "warmup": 20}, "no label is ever renewed"),
    ({"name": "clipfl", "warmup": 30}, "first 30 rounds and the run has 20: no client is ever"),
    ({"name": "fednoro", "warmup": 20, "begin": 20, "end": 30}, "looked at for noise"),
    ({"name": "dividemix", "warmup": 20}, "taken for noisy"),
    ({"name": "selfie", "warmup": 20}, "refurbished"),
    ({"name": "robust_fl", "warmup": 20}, "guessed"),
    ({"name": "co_teaching", "warmup": 100, "tau": 0.2}, "at most 0.0384 of a batch .* not 0.2"),
    ({"name": "fedcorr", "iterations": 10, "visits": 2}, "method.iterations takes the first 50"),
    (
        {"name": "fedcorr", "iterations": 1, "finetuning": 30},
        "method.finetuning .* first 32 rounds",
    ),
    ({"name": "fedcr", "pretraining": 100}, "method.pretraining .* no client will ever train"),
    ({"name": "semifl", "pretraining": 100}, "method.pretraining .* no client will ever train"),
    ({"name": "fb_nll_minus", "host": {"name": "fedrn", "warmup": 20}}, "lower method.host.warmup"),
    ({"name": "fb_nll", "correct_after": 30}, "method.correct_after .* no label is ever corrected"),
]
IN_TIME: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedrn", "warmup": 19},
    {"name": "co_teaching", "warmup": 20},
    {"name": "fedcorr", "iterations": 1, "finetuning": 5},
    {"name": "fedcr", "pretraining": 90},
    {"name": "fb_nll"},
    {"name": "fb_nll_minus", "host": {"name": "fedrn", "warmup": 3}},
]
TRAINING = Training(rounds=20, clients_per_round=5)


def warnings_of(method: Mapping[str, Any]) -> list[str]:
    return list(METHODS.build(method).list_warnings(TRAINING, 10))


@pytest.mark.parametrize(("method", "said"), LATE, ids=[row[0]["name"] for row in LATE])
def test_a_stage_that_the_run_does_not_reach_is_told(method: dict[str, Any], said: str) -> None:
    import re

    (only,) = warnings_of(method)
    assert re.search(said, only), only
    assert "Raise training.rounds or lower method." in only


@pytest.mark.parametrize("method", IN_TIME, ids=[method["name"] for method in IN_TIME])
def test_a_method_that_keeps_its_word_says_nothing(method: dict[str, Any]) -> None:
    assert warnings_of(method) == []


def test_a_run_begins_with_what_its_method_will_not_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rayfl.run(
        clients=4,
        method={"name": "fedrn", "k": 1, "warmup": 5},
        training={"rounds": 1, "epochs": 0},
        fleet="inline",
        output=str(tmp_path),
        tracking={"enabled": False},
    )
    assert "fedrn: method.warmup takes the first 5 rounds and the run has 1" in caplog.text
