"""ClipFL in both forms: who is flagged, who is pruned, who is left, and what it costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rayfl.algorithms import clipfl
from rayfl.algorithms.clipfl import Candidates, ClipFL, ClipFLPersonal, count_flags
from rayfl.algorithms.parts.weighting import Equal
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import ClientId
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.scoring_toys import play, read_model, script
from tests.algorithms.toys import fleet_of

PUBLIC = {"split": {"public": 0.2}}
CLEAN = {"split": {"validation": {"per_class": 10}}}
EVERYBODY = {"training": {"clients_per_round": 6}}

ROWS = [
    Row(
        "clipfl",
        {"name": "clipfl", "warmup": 2},
        config=PUBLIC,
        neutral={"name": "clipfl", "warmup": 0, "prune": 0.0},
        same_as={"name": "fedavg"},
        refused=[
            ({"warmup": -1}, "warmup"),
            ({"prune": 1.5}, "prune"),
            ({"flag": -0.5}, "flag"),
            ({"ncs": "mean"}, "ncs"),
            ({"participants": 2}, "participants"),
        ],
    ),
    Row(
        "clipfl_personal",
        {"name": "clipfl_personal", "warmup": 2},
        config={**CLEAN, **EVERYBODY},
        # Nobody is flagged, nobody pruned, and everybody takes part: in both stages.
        neutral={"name": "clipfl_personal", "warmup": 3, "prune": 0.0, "participants": 1.0},
        same_as={"name": "single_global"},
    ),
]

FIVE = [
    dict(enumerate(row))
    for row in (
        [0.30, 0.22, 0.35, 0.18, 0.28],
        [0.40, 0.41, 0.38, 0.25, 0.33],
        [0.45, 0.39, 0.47, 0.31, 0.44],
    )
]
"""Accuracies of five clients in three rounds."""


def states_of(method: ClipFL, fleet: InlineFleet, rounds: int) -> list[Candidates]:
    return cast("list[Candidates]", play(method, fleet, rounds))


# -- flags and scores ------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "flagged"), [(0, {3, 1}), (1, {3, 4}), (2, {3, 1})])
def test_the_two_worst_of_each_round_are_flagged(t: int, flagged: set[ClientId]) -> None:
    assert set(ClipFL(flag=0.4).find_worst(FIVE[t])) == flagged


@pytest.mark.parametrize(("ncs", "form"), [("raw", ClipFL), ("rate", ClipFLPersonal)])
def test_scores_add_up_and_the_most_flagged_are_pruned(
    ncs: Any, form: type[ClipFL], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = script(monkeypatch, clipfl, [*FIVE, {}], [10] * 5)
    method = form(warmup=3, flag=0.4, prune=0.4, ncs=ncs, participants=1.0)
    states = states_of(method, fleet, 4)
    assert list(states[2].ncs.values()) == [0, 2, 0, 3, 1]
    assert sum(states[2].ncs.values()) == 3 * 2
    assert states[2].active is None
    assert states[3].active == (0, 2, 4)


def test_the_flagged_are_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [10, 20, 30, 40, 50]
    worst = {0: 0.62, 1: 0.35, 2: 0.58, 3: 0.10, 4: 0.47}
    fleet = script(monkeypatch, clipfl, [worst], sizes)
    (state,) = states_of(ClipFL(flag=0.4), fleet, 1)
    assert state.ncs == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}
    assert read_model(fleet, state) == pytest.approx((2 * 30 + 4 * 50) / 90)


def test_users_of_the_personal_form_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = script(monkeypatch, clipfl, FIVE, [10, 20, 30, 40, 50])
    (state,) = states_of(ClipFLPersonal(flag=0.4), fleet, 1)
    assert ClipFLPersonal().weighting == Equal()
    assert read_model(fleet, state) == pytest.approx((0 + 2 + 4) / 3)


@pytest.mark.parametrize("change", [np.square, np.exp, lambda a: 7 * a - 3])
def test_only_the_order_of_accuracies_counts(change: Any) -> None:
    for row in FIVE:
        changed = {k: float(change(a)) for k, a in row.items()}
        assert ClipFL(flag=0.4).find_worst(changed) == ClipFL(flag=0.4).find_worst(row)


def test_always_best_is_never_flagged_and_always_worst_is_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    rounds = [
        {0: 0.99, 1: 0.01, **dict(enumerate(rng.uniform(0.1, 0.9, 4).tolist(), 2))}
        for _ in range(6)
    ]
    fleet = script(monkeypatch, clipfl, [*rounds, {}], [1] * 6)
    states = states_of(ClipFL(warmup=6, flag=0.5, prune=0.17), fleet, 7)
    assert states[5].ncs[0] == 0
    assert states[5].ncs[1] == 6
    assert states[6].active == (0, 2, 3, 4, 5)


@pytest.mark.parametrize("flag", [None, 0.3])
def test_flags_of_a_hundred_clients_add_up(flag: float | None, monkeypatch: Any) -> None:
    """m R_pre flags: 5 of 10 participants in 20 rounds make 100; half of 100 clients are left."""
    rng = np.random.default_rng(0)
    accuracies = [dict(enumerate(rng.random(100).tolist())) for _ in range(20)]
    fleet = script(monkeypatch, clipfl, [*accuracies, {}, {}], [1] * 100, cohort=10)
    states = states_of(ClipFL(flag=flag), fleet, 22)
    assert sum(states[19].ncs.values()) == 20 * (5 if flag is None else 3)
    assert sum(states[19].visits.values()) == 200
    assert states[20].active is not None
    assert len(states[20].active) == 50


def test_a_model_that_cannot_be_judged_is_the_worst_and_never_averaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = script(monkeypatch, clipfl, [{0: math.nan, 1: 0.0, 2: 0.5}], [1, 1, 1])
    (state,) = states_of(ClipFL(flag=0.3), fleet, 1)
    assert state.ncs == {0: 1, 1: 0, 2: 0}
    assert state.accuracy[0] == 0.0
    assert read_model(fleet, state) == 1.5


def test_if_no_model_can_be_judged_the_global_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = script(monkeypatch, clipfl, [{0: math.nan, 1: math.nan}], [1, 1])
    assert read_model(fleet, states_of(ClipFL(), fleet, 1)[0]) == -1.0


def test_the_best_is_kept_however_many_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = script(monkeypatch, clipfl, FIVE, [1] * 5)
    (state,) = states_of(ClipFL(flag=1.0), fleet, 1)
    assert read_model(fleet, state) == 2.0


# -- pruning ---------------------------------------------------------------------------------------


def count(visits: dict[int, int], ncs: dict[int, int], accuracy: dict[int, float]) -> Candidates:
    return Candidates(None, ncs, visits, accuracy)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ncs", "active"), [("rate", (1, 2)), ("raw", (0, 2))])
def test_rates_do_not_blame_who_was_visited_often(ncs: Any, active: tuple[int, ...]) -> None:
    """Client 0 was flagged at its only visit; client 1 at three of ten."""
    known = count({0: 1, 1: 10, 2: 2}, {0: 1, 1: 3, 2: 0}, {0: 0.2, 1: 0.6, 2: 0.9})
    assert ClipFL(prune=0.34, ncs=ncs).find_active(known, fleet_of([1, 1, 1])) == active


def test_a_client_that_was_never_visited_has_the_mean_rate() -> None:
    known = count({0: 2, 1: 2}, {0: 0, 1: 2}, {0: 0.9, 1: 0.1})
    assert ClipFL().measure_candidacy(known, [0, 1, 2]) == {0: 0.0, 1: 1.0, 2: 0.5}
    # (1 - 1/10)^20
    visited = np.random.default_rng(0).random((20_000, 20)) < 0.1
    assert (visited.sum(axis=1) == 0).mean() == pytest.approx(0.121577, abs=0.01)


def test_ties_are_broken_by_accuracy_and_then_by_id() -> None:
    known = count(dict.fromkeys(range(4), 1), dict.fromkeys(range(4), 1), {0: 0.3, 1: 0.1, 2: 0.3})
    known = count(dict(known.visits), dict(known.ncs), {**known.accuracy, 3: 0.3})
    assert ClipFL().rank_clients(known, range(4)) == [0, 2, 3, 1]


@pytest.mark.parametrize(
    ("prune", "clients", "left"), [(0.3, 10, 7), (0.5, 5, 3), (1.0, 4, 1), (0.0, 4, 4), (0.2, 4, 4)]
)
def test_how_many_are_left(prune: float, clients: int, left: int) -> None:
    found = ClipFL(prune=prune).find_active(count({}, {}, {}), fleet_of([1] * clients))
    assert len(found) == left


def test_the_pruned_have_no_influence_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = [{0: 0.9, 1: 0.1, 2: 0.8, 3: 0.2}] * 2 + [{}] * 6
    fleet = script(monkeypatch, clipfl, accuracies, [1] * 4, cohort=4)
    states = states_of(ClipFL(warmup=2), fleet, 8)
    for state in states[2:]:
        assert state.active == (0, 2)
        # Both that are left take part, where a round has room for more.
        assert read_model(fleet, state) == 1.0
        assert state.visits == states[1].visits


@pytest.mark.parametrize(
    ("fixed", "seen"), [(True, {2.0}), (False, {0.0, 2.0, 4.0})], ids=["fixed", "drawn"]
)
def test_a_share_of_the_clean_takes_part(
    fixed: bool, seen: set[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three clean users a third is one: the best of all, or another one every round."""
    fleet = script(monkeypatch, clipfl, [*FIVE, *[{}] * 20], [1] * 5)
    method = ClipFLPersonal(warmup=3, flag=0.4, prune=0.4, participants=1 / 3, fixed=fixed)
    states = states_of(method, fleet, 23)
    assert {read_model(fleet, state) for state in states[3:]} == seen


def test_counts_go_over_visits_alone() -> None:
    once = count_flags(count({}, {}, {}), {0: 0.5, 1: math.nan}, [1])
    twice = count_flags(once, {0: 0.9}, [0])
    assert (twice.visits, twice.ncs) == ({0: 2, 1: 1}, {0: 1, 1: 1})
    assert twice.accuracy == pytest.approx({0: 0.7, 1: 0.0})


# -- in the toy federation -------------------------------------------------------------------------


def test_scoring_costs_passes_before_the_pruning_alone(tmp_path: Path) -> None:
    plain, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), 4), directory="plain"
    )
    clipped, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 4), directory="clipped")
    pairs = zip(plain.history, clipped.history, strict=True)
    both = [(before["metrics"], after["metrics"]) for before, after in pairs]
    extra = [after["cost/server_forward"] - before["cost/server_forward"] for before, after in both]
    assert extra == [4 * 72, 4 * 72, 0, 0]
    for name in ("up_mb", "down_mb"):
        assert both[0][0][f"cost/{name}"] == both[0][1][f"cost/{name}"]
    # Three of six clients are left, and a round has room for four.
    assert both[2][1]["cost/up_mb"] == pytest.approx(3 / 4 * both[2][0]["cost/up_mb"])


def test_candidacy_goes_with_noise(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]}
    method = {"name": "clipfl", "warmup": 3}
    config = toy_config(ROWS[0], tmp_path, method, noise=noise, **EVERYBODY)
    outcome, _ = run_toy(shortened(config, 4))
    assert outcome.history[2]["metrics"]["candidacy/noise_correlation"] > 0.99
    assert outcome.history[3]["metrics"]["clipfl/active"] == 3


@pytest.mark.parametrize(
    ("name", "held"), [("clipfl", "public"), ("clipfl_personal", "validation")]
)
def test_a_federation_without_clean_images_is_refused(name: str, held: str, tmp_path: Path) -> None:
    config = toy_config(Row("no set", {"name": name}), tmp_path)
    with pytest.raises(ConfigError, match=rf"needs the set '{held}'; .* Set split.{held}"):
        run_toy(config)
