"""Sums made on an expectation have the bits of those that are asked for, and are used only when
they are those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfl.fleet.base import BaseFleet
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.fleet.replies import check_weights
from rayfl.fleet.sums.early_sums import EarlySums, Expected, MeanExpectation
from rayfl.fleet.sums.exact_sums import Grid, Partial
from rayfl.protocol import SERVER, ClientId
from tests.fleet import phases
from tests.fleet.toys import CLIENTS

GRID, OTHER = Grid.bounded(1.0, 2), Grid.bounded(64.0, 2)
SUM = Partial(np.ones(3))


class Sizes:
    def size(self, client: ClientId) -> int:
        return {0: 3, 1: 5, 2: 8}[client]


def test_weights_of_a_rule_are_those_of_a_mean() -> None:
    expectation = MeanExpectation(Sizes())
    assert expectation.weigh_by_size([2, 0, 1]) == check_weights({0: 3, 1: 5, 2: 8})
    assert expectation.weigh_equally([2, 0, 1]) == check_weights({0: 1, 1: 1, 2: 1})


@pytest.mark.parametrize("rule", ["weigh_by_size", "weigh_equally"])
def test_nothing_is_expected_before_a_mean_by_a_rule_or_after_another(rule: str) -> None:
    expectation = MeanExpectation(Sizes())
    weigh = getattr(expectation, rule)
    assert expectation.expect([0, 1]) == {}
    expectation.learn("w", weigh([0, 1]), GRID)
    for grid in (OTHER, GRID):  # as a mean that was expected, and as any
        expected = expectation.expect([0, 1, 2])
        assert list(expected) == ["w"]
        assert expected["w"].weights == weigh([0, 1, 2])
        expectation.learn("w", weigh([0, 1, 2]), grid)
    expected = expectation.expect([0, 1, 2])
    assert expected == {"w": Expected(weigh([0, 1, 2]), GRID)}
    assert expected["w"].part([1]).weights == {1: expected["w"].weights[1]}
    expectation.learn("w", {0: 0.5, 1: 0.25}, GRID)
    assert expectation.expect([0, 1, 2]) == {}


def test_updates_of_several_names_have_each_a_rule_of_their_own() -> None:
    expectation = MeanExpectation(Sizes())
    expectation.learn("w", expectation.weigh_by_size([0, 1]), GRID)
    expectation.learn("dc", expectation.weigh_equally([0, 1]), OTHER)
    assert expectation.expect([1, 2]) == {
        "w": Expected(expectation.weigh_by_size([1, 2]), GRID),
        "dc": Expected(expectation.weigh_equally([1, 2]), OTHER),
    }


@pytest.mark.parametrize("clients", [[0], [SERVER, 0], []])
def test_nothing_is_expected_of_one_client_or_of_the_server(clients: list[ClientId]) -> None:
    expectation = MeanExpectation(Sizes())
    expectation.learn("w", expectation.weigh_by_size([0, 1]), GRID)
    assert expectation.expect(clients) == {}


def expecting(weights: dict[ClientId, float], grid: Grid = GRID) -> dict[str, Expected]:
    return {"w": Expected(weights, grid)}


@pytest.mark.parametrize(
    ("early", "used"),
    [
        (EarlySums(expecting({0: 0.5, 1: 0.25}), [{"w": SUM}, {"w": SUM}]), 2),
        (EarlySums(expecting({0: 0.5, 1: 0.25}), [{"w": SUM}, {}]), 0),
        (EarlySums(expecting({0: 0.5, 1: 0.25}, OTHER), [{"w": SUM}]), 0),
        (EarlySums(expecting({0: 0.5}), [{"w": SUM}]), 0),
        (EarlySums({}, [{}]), 0),
    ],
)
def test_sums_count_only_if_all_are_those_of_the_mean(early: EarlySums, used: int) -> None:
    assert len(early.find("w", {0: 0.5, 1: 0.25}, GRID) or []) == used
    assert early.find("dc", {0: 0.5, 1: 0.25}, GRID) is None


def test_nothing_is_expected_of_updates_that_are_made_again() -> None:
    early = EarlySums(expecting({0: 0.5, 1: 0.25}), [{"w": SUM}])
    assert early.expect_of([1]) == expecting({1: 0.25})
    early.complete = True
    early.add({"w": SUM})
    assert early.expect_of([1]) == {}
    assert early.made == [{"w": SUM}]


def test_a_mean_that_was_expected_has_the_same_bits(
    on_ray: BaseFleet, here: BaseFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(on_ray, RayFleet)
    models = {client: [0.1 * client + 0.3, -1.7] for client in CLIENTS}
    sizes = {client: float(on_ray.size(client)) for client in CLIENTS}
    equal = dict.fromkeys(CLIENTS, 1.0)
    met = []
    find = EarlySums.find

    def noted(self: EarlySums, *mean: Any) -> Any:
        found = find(self, *mean)
        met.append(found is not None)
        return found

    monkeypatch.setattr(EarlySums, "find", noted)
    for weights in (sizes, sizes, equal, sizes, sizes):
        there, near = (fleet.map(phases.leave, CLIENTS, models=models) for fleet in (on_ray, here))
        assert on_ray.get(there.mean(weights)).tobytes() == here.get(near.mean(weights)).tobytes()
    # The first has nothing to go by; the third was expected by size, the fourth equally.
    assert met == [False, True, False, False, True]
