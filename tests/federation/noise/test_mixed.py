from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rayfl.errors import ConfigError

from .truths import changed, corrupt, federation, truth_of

RAMP = {"name": "ramp", "max": 0.4}
SYMMETRIC = {"name": "symmetric", "rate": 1}
NEXT = {"name": "asymmetric", "rate": 1, "pairs": "next"}


def mixed(*parts: tuple[Any, Any]) -> dict[str, Any]:
    return {
        "name": "mixed",
        "parts": [{"noise": noise, "clients": clients} for noise, clients in parts],
    }


def test_fedrn_mixed_noise_has_a_ramp_of_its_own_in_each_half() -> None:
    truth = federation()
    pairflip = {"name": "asymmetric", "rate": RAMP, "pairs": "previous"}
    result = corrupt(mixed(({"name": "symmetric", "rate": RAMP}, 0.5), (pairflip, 0.5)), truth)
    assert result.nominal[:50] == pytest.approx(np.arange(50) * 0.008)
    assert result.nominal[50:] == pytest.approx(np.arange(50) * 0.008)
    assert result.nominal.mean() == pytest.approx(0.196)
    assert changed(truth, result).sum() == 9_800
    wrong = (result.given != truth.labels) & (truth.owner >= 50)
    assert (result.given[wrong] == (truth.labels[wrong] - 1) % 10).all()


def test_listed_clients_come_first_and_shares_are_of_the_rest() -> None:
    truth = truth_of([[10, 10, 10]] * 6)
    result = corrupt(mixed((NEXT, 0.5), (SYMMETRIC, [1, 5]), ("none", 0.25)), truth)
    assert result.nominal.tolist() == [1, 1, 1, 0, 0, 1]
    only_next = np.isin(truth.owner, [0, 2])
    assert (result.given[only_next] == (truth.labels[only_next] + 1) % 3).all()
    assert (result.given[truth.owner == 3] == truth.labels[truth.owner == 3]).all()


def test_clients_left_over_keep_their_labels() -> None:
    truth = truth_of([[10, 10]] * 4)
    assert changed(truth, corrupt(mixed((SYMMETRIC, 0.25)), truth)).tolist() == [20, 0, 0, 0]


@pytest.mark.parametrize(("clients", "first"), [(1, 0), (2, 1), (3, 2), (10, 5)])
def test_shares_cover_any_number_of_clients(clients: int, first: int) -> None:
    truth = truth_of([[6, 6]] * clients)
    result = corrupt(mixed((SYMMETRIC, 0.5), ({"name": "symmetric", "rate": 0.5}, 0.5)), truth)
    assert np.sum(result.nominal == 1) == first
    assert np.sum(result.nominal == 0.5) == clients - first


def test_parts_see_the_tasks_of_their_own_clients() -> None:
    truth = truth_of([[10, 10]] * 4, tasks=((0,), (0,), (1,), (0,)))
    result = corrupt(mixed(({"name": "task", "alpha": [0.25, 0.5]}, [2, 0])), truth)
    assert result.nominal.tolist() == [0.25, 0, 0.5, 0]
    assert set(result.given[(truth.owner == 0) & (result.given != truth.labels)]) == {1}
    assert set(result.given[(truth.owner == 2) & (result.given != truth.labels)]) == {0}


def test_rates_of_a_part_belong_to_its_clients_in_ascending_order() -> None:
    truth = truth_of([[10, 10]] * 4)
    result = corrupt(mixed(({"name": "symmetric", "rate": [0.1, 0.5]}, [2, 0])), truth)
    assert changed(truth, result).tolist() == [2, 0, 10, 0]


def test_parts_see_the_pictures_of_their_own_samples() -> None:
    images = np.random.default_rng(0).integers(0, 256, (400, 2, 2, 1), dtype=np.uint8)
    truth = truth_of([[20] * 5] * 4, images=images)
    mine = np.isin(truth.owner, [1, 3])
    alone = replace(
        truth,
        labels=truth.labels[mine],
        owner=truth.owner[mine] // 2,
        clients=2,
        images=lambda: images[mine],
    )
    noise = {"name": "instance", "rate": 0.8}
    assert (corrupt(mixed((noise, [1, 3])), truth).given[mine] == corrupt(noise, alone).given).all()


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ([(SYMMETRIC, [0, 4])], r"list clients in \[0, 4\); got 4"),
        ([(SYMMETRIC, [-1])], r"list clients in \[0, 4\); got -1"),
        ([(SYMMETRIC, [0, 1]), (NEXT, [1])], r"list a client once; got client 1 again"),
    ],
    ids=str,
)
def test_lists_that_do_not_fit_are_refused(parts: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        corrupt(mixed(*parts), truth_of([[5, 5]] * 4))


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ([(SYMMETRIC, 0.7), (NEXT, 0.4)], r"shares of all parts sum to 1 at most; got 1\.1"),
        ([], r"at least 1 item"),
        ([("symetric", 0.5)], r"unknown noise 'symetric'\. Did you mean 'symmetric'"),
        ([(SYMMETRIC, 1.5)], r"less than or equal to 1"),
    ],
    ids=str,
)
def test_parts_that_make_no_sense_are_refused_when_written(parts: Any, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        corrupt(mixed(*parts), truth_of([[5, 5]] * 4))
