"""Ramps, cosine factors, forget rates and stages, against printed digits."""

from __future__ import annotations

import doctest
import math

import pytest
import torch

from rayfl.errors import ConfigError
from rayfl.learn import schedules
from rayfl.learn.schedules import (
    StageRound,
    Stages,
    anneal_by_cosine,
    decay_by_cosine,
    forget_rate,
    ramp_exponentially,
    ramp_linearly,
)


def test_examples_in_docstrings_are_true() -> None:
    outcome = doctest.testmod(schedules)
    assert outcome.attempted > 5
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("t", "weight"),
    [
        (99, 0),
        (100, 0),
        (101, 1.5625),
        (104, 6.25),
        (108, 12.5),
        (116, 25),
        (200, 25),
        (100.5, 0.78125),
    ],
)
def test_the_ramp_of_dividemix(t: float, weight: float) -> None:
    assert 25 * ramp_linearly(t, begin=100, length=16) == weight


def test_a_ramp_without_length_is_a_step() -> None:
    assert [ramp_linearly(t, 5, 0) for t in (4, 5, 6)] == [0, 0, 1]
    assert [ramp_exponentially(t, 5, 5) for t in (4, 5)] == [math.exp(-5), 1]


@pytest.mark.parametrize(
    ("t", "weight"),
    [
        (0, 0.005390),
        (10, 0.005390),
        (20, 0.050400),
        (30, 0.244177),
        (40, 0.612984),
        (49, 0.8),
        (90, 0.8),
    ],
)
def test_the_ramp_of_fednoro(t: int, weight: float) -> None:
    assert 0.8 * ramp_exponentially(t, 10, 49) == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 7, 40])
def test_annealing_is_torchs(steps: int) -> None:
    parameter = torch.zeros(1, requires_grad=True)
    descent = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, T_max=steps)
    for step in range(steps + 1):
        assert anneal_by_cosine(step, steps) == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        descent.step()
        schedule.step()
    assert anneal_by_cosine(steps + 3, steps) == 0


@pytest.mark.parametrize("step", [0, 10, 40])
def test_decay_of_fixmatch(step: int) -> None:
    assert decay_by_cosine(step, 40) == pytest.approx(math.cos(7 * math.pi * step / (16 * 40)))


@pytest.mark.parametrize(
    ("t", "rate"),
    [
        (0, 0),
        (1, 0.002020),
        (9, 0.018182),
        (50, 0.101010),
        (98, 0.197980),
        (99, 0.2),
        (100, 0.2),
        (499, 0.2),
    ],
)
def test_the_forget_rate_of_co_teaching(t: int, rate: float) -> None:
    assert forget_rate(t, 0.2, 100) == pytest.approx(rate, abs=1e-6)


def test_the_exponent_acts_on_the_rate() -> None:
    assert forget_rate(5, 0.2, 11, exponent=2) == pytest.approx(0.04 / 2)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_rate_without_a_ramp_is_full_at_once(rounds: int) -> None:
    assert forget_rate(0, 0.3, rounds) == 0.3


# -- stages ----------------------------------------------------------------------------------------


def test_the_stages_of_fedcorr() -> None:
    stages = Stages({"correct": 50, "finetune": 500, "usual": 450})
    assert stages.at(0) == StageRound("correct", 0, first=True, last=False)
    assert stages.at(49) == StageRound("correct", 49, first=False, last=True)
    assert stages.at(50) == StageRound("finetune", 0, first=True, last=False)
    assert stages.at(549) == StageRound("finetune", 499, first=False, last=True)
    assert stages.at(999) == StageRound("usual", 449, first=False, last=True)


def test_a_stage_of_one_round_is_first_and_last() -> None:
    assert Stages({"only": 1, "rest": None}).at(0) == StageRound("only", 0, first=True, last=True)


@pytest.mark.parametrize("lengths", [(0, 2, None), (0, 2, 0)])
def test_a_stage_without_rounds_does_not_occur(lengths: tuple[int | None, ...]) -> None:
    stages = Stages(dict(zip("abc", lengths, strict=True)))
    assert "a" not in [stages.at(t).name for t in range(5)]
    assert stages.at(0) == StageRound("b", 0, first=True, last=False)


def test_rounds_behind_the_end_belong_to_the_last_stage() -> None:
    assert Stages({"a": 1, "b": 2}).at(5) == StageRound("b", 4, first=False, last=False)
    assert Stages({"a": 1, "b": None}).at(5) == StageRound("b", 4, first=False, last=False)


@pytest.mark.parametrize("lengths", [{}, {"a": 0}, {"a": -1, "b": 2}])
def test_stages_without_rounds_are_refused(lengths: dict[str, int | None]) -> None:
    with pytest.raises(ConfigError, match="0 rounds or more, and one of them takes some; got"):
        Stages(lengths)


def test_an_open_stage_in_the_middle_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"only the last stage takes all .*; got \{'a': None"):
        Stages({"a": None, "b": 2})
