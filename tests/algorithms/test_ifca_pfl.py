"""IFCA-PFL: Procedures 3 and 4 worked out by hand, clusters that are never empty, and one cluster
as the single global model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.algorithms import ifca_pfl
from rayfl.algorithms.ifca_pfl import (
    Associated,
    IfcaPfl,
    choose_least,
    count_users,
    divide_evenly,
    fill_clusters,
    reassociate,
)
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import Client, Out, Vector
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import fleet_of, toy_fleet

TASKS: dict[str, Any] = {"partition": {"name": "tasks", "tasks": [[0, 1], [2, 3]]}}
EVERYBODY: dict[str, Any] = {"training": {"clients_per_round": 6}}

ROWS = [
    Row(
        "ifca_pfl",
        {"name": "ifca_pfl"},
        config=TASKS,
        untried={"odd federation": "a partition of its own"},
        # Two models of few steps, which wrong labels may send users to.
        floor=0.7,
        neutral={"name": "ifca_pfl", "models": 1},
        same_as={"name": "single_global"},
        refused=[
            ({"models": 0}, "models"),
            ({"draws": 0}, "draws"),
            ({"loss": "mse"}, "unknown loss 'mse'"),
        ],
    ),
    # Without tasks, so that it also meets the odd federation.
    Row("ifca_pfl_symce", {"name": "ifca_pfl", "models": 3, "loss": "symce"}, floor=0.5),
]

FOUR = np.array([[1.0, 1.5], [0.8, 0.9], [1.2, 2.0], [0.5, 0.7]])
FIVE = np.array(
    [[0.2, 0.9, 0.8], [0.3, 0.1, 0.5], [0.4, 0.2, 0.6], [0.1, 0.3, 0.7], [0.6, 0.5, 0.9]]
)


# -- Procedure 4 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "sizes", "least", "expected"),
    [
        (FOUR, [2, 2], [0, 0, 0, 0], [1, 0, 1, 0]),
        (FIVE, [2, 2, 1], [0, 1, 1, 0, 1], [0, 1, 1, 0, 2]),
    ],
)
def test_an_empty_cluster_keeps_all_sizes(
    losses: NDArray[np.float64], sizes: list[int], least: list[int], expected: list[int]
) -> None:
    before = np.repeat(np.arange(len(sizes)), sizes)
    assert choose_least(losses, before).tolist() == least
    assert reassociate(losses, before).tolist() == expected


@pytest.mark.parametrize("sizes", [[1, 4], [4, 1], [2, 3]])
def test_least_losses_that_leave_no_cluster_empty_stand_whatever_the_sizes(
    sizes: list[int],
) -> None:
    before = np.repeat([0, 1], sizes)
    assert reassociate(FIVE[:, :2], before).tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_fill_has_each_user_once_and_exactly_the_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.random((20, 5))
    sizes = np.bincount(rng.integers(5, size=20), minlength=5)
    filled = fill_clusters(losses, sizes)
    assert count_users(filled, 5).tolist() == sizes.tolist()
    # The first cluster chooses first.
    first = np.flatnonzero(filled == 0)
    assert losses[first, 0].max(initial=0) <= np.delete(losses[:, 0], first).min()


def test_a_constant_in_a_users_row_moves_it_in_the_fill_alone() -> None:
    before = np.array([0, 0, 1, 1])
    more = FOUR + np.array([[0.0], [0.0], [0.0], [1.0]])
    assert choose_least(more, before).tolist() == choose_least(FOUR, before).tolist()
    assert reassociate(more, before).tolist() == [0, 0, 1, 1]


def test_of_equal_losses_the_first_model_and_the_first_user_are_taken() -> None:
    equal = np.ones((4, 2))
    assert choose_least(equal, np.ones(4, np.int64)).tolist() == [0] * 4
    assert reassociate(equal, np.array([1, 0, 1, 0])).tolist() == [0, 0, 1, 1]


def test_a_user_that_no_model_gives_a_loss_stays() -> None:
    losses = np.array([[np.inf, np.inf], [np.inf, 3.0], [1.0, 2.0]])
    assert reassociate(losses, np.array([1, 0, 0])).tolist() == [1, 1, 0]


def test_users_who_were_not_asked_fill_their_cluster() -> None:
    """Somebody else is in cluster 1, so that all four may go to cluster 0."""
    before = np.array([0, 0, 1, 1])
    assert reassociate(FOUR, before, elsewhere=np.array([0, 1])).tolist() == [0] * 4


@pytest.mark.parametrize(
    ("users", "models", "sizes"), [(20, 3, [7, 7, 6]), (20, 5, [4] * 5), (3, 3, [1] * 3)]
)
def test_users_are_dealt_out_evenly(users: int, models: int, sizes: list[int]) -> None:
    assert divide_evenly(users, models).tolist() == sizes


# -- rounds ----------------------------------------------------------------------------------------


def add(client: Client, *, w: Vector, method: IfcaPfl) -> Out:
    """Users 0, 1, 2, 3 bring home their model plus 1, 3, 10, 30."""
    return Out(update=w + np.float32([1, 3, 10, 30][client.id]))


def tell(losses: Mapping[int, Sequence[float]]) -> Any:
    def measure_losses(client: Client, *, models: Sequence[Vector], method: IfcaPfl) -> Out:
        return Out({"losses": np.array(losses[client.id], np.float32)})

    return measure_losses


def start(fleet: InlineFleet, *numbers: float) -> Associated:
    refs = tuple(fleet.put(np.array([number], np.float32)) for number in numbers)
    return Associated(refs, {0: 0, 1: 0, 2: 1, 3: 1})


def test_a_round_averages_first_and_associates_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes (100, 300, 5, 1) do not weigh; the model that a user is tested with is its new one."""
    monkeypatch.setattr(ifca_pfl, "train", add)
    losses = {0: [2, 1], 1: [1, 2], 2: [2, 1], 3: [1, 2]}
    monkeypatch.setattr(ifca_pfl, "measure_losses", tell(losses))
    fleet = fleet_of([100, 300, 5, 1])
    method = IfcaPfl()
    state = method.round(start(fleet, 0.0, 100.0), fleet, 0)
    tested = [float(fleet.get(method.model(state, fleet, k))[0]) for k in range(4)]
    assert tested == [120.0, 2.0, 120.0, 2.0]
    assert method.clusters(state) == {0: 1, 1: 0, 2: 1, 3: 0}
    assert fleet.take_logged() == {"clusters/moved": 0.5, "clusters/forced": 0.0}


def test_sizes_before_the_association_are_those_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ifca_pfl, "train", add)
    monkeypatch.setattr(ifca_pfl, "measure_losses", tell(dict(enumerate(FOUR.tolist()))))
    fleet = fleet_of([1] * 4)
    state = replace(start(fleet, 0.0, 0.0), clusters={0: 0, 1: 1, 2: 1, 3: 1})
    after = IfcaPfl().round(state, fleet, 0)
    # One user in cluster 0: the one of least loss there.
    assert after.clusters == {0: 1, 1: 1, 2: 1, 3: 0}
    assert fleet.take_logged() == {"clusters/moved": 0.5, "clusters/forced": 1.0}


def test_a_cluster_that_nobody_replies_for_keeps_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(client: Client, *, w: Vector, method: IfcaPfl) -> Out:
        return Out(update=w + np.float32(np.nan if client.id < 2 else 1))

    monkeypatch.setattr(ifca_pfl, "train", diverge)
    hopeless = {k: [np.nan, np.inf] for k in range(4)}
    monkeypatch.setattr(ifca_pfl, "measure_losses", tell(hopeless))
    fleet = fleet_of([1] * 4)
    state = start(fleet, 5.0, 7.0)
    after = IfcaPfl().round(state, fleet, 0)
    assert after.models[0] is state.models[0]
    assert fleet.get(after.models[1]).tolist() == [8.0]
    assert after.clusters == state.clusters


# -- Procedure 3 -----------------------------------------------------------------------------------


def test_first_models_are_drawn_until_no_cluster_is_empty(tmp_path: Path) -> None:
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path))
    method = IfcaPfl()
    state = method.find_first_models(method.init(fleet, fleet.initial()), fleet)
    draws = int(fleet.take_logged()["clusters/draws"])
    assert set(state.clusters.values()) == {0, 1}
    found = [fleet.get(ref) for ref in state.models]
    expected = [fleet.get(fleet.initial(2 * (draws - 1) + m)) for m in range(2)]
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert not np.array_equal(*found)


def test_after_the_last_draw_users_are_dealt_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {k: [1 + 0.1 * k, 2.0] for k in range(6)}
    monkeypatch.setattr(ifca_pfl, "measure_losses", tell(losses))
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path))
    method = IfcaPfl(draws=3)
    state = method.find_first_models(method.init(fleet, fleet.initial()), fleet)
    assert fleet.take_logged() == {"clusters/draws": 3.0}
    assert state.clusters == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}


def test_more_clusters_than_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at most the number of clients with data \(6\); got 7"):
        run_toy(toy_config(ROWS[0], tmp_path, {"name": "ifca_pfl", "models": 7}))


# -- costs -----------------------------------------------------------------------------------------


def test_association_costs_a_pass_and_a_broadcast_for_each_model(tmp_path: Path) -> None:
    """M models down and M numbers up for each user of a round, and M forward passes over its data,
    beside what federated averaging costs."""
    outcome, fleet = run_toy(shortened(toy_config(ROWS[0], tmp_path, **EVERYBODY), 2))
    plain, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "single_global"}, **EVERYBODY), 2),
        directory="plain",
    )
    extra = {
        name: outcome.history[1]["metrics"][name] - plain.history[1]["metrics"][name]
        for name in ("cost/forward", "cost/backward", "cost/down_mb", "cost/up_mb")
    }
    model = outcome.models[0].nbytes
    assert extra["cost/forward"] == 2 * sum(map(fleet.size, fleet.clients))
    assert extra["cost/backward"] == 0
    assert extra["cost/down_mb"] == pytest.approx(6 * 2 * model / 1e6)
    assert extra["cost/up_mb"] == pytest.approx(6 * 2 * 4 / 1e6)
