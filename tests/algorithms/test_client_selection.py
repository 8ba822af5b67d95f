"""Client Selection: who is kept, who is drawn, what it costs."""

from __future__ import annotations

import doctest
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rayfl.algorithms import client_selection
from rayfl.algorithms.client_selection import ClientSelection, Scored, remember
from rayfl.algorithms.parts import server_scoring
from rayfl.algorithms.parts.server_scoring import count_share, rank_by_accuracy
from rayfl.errors import ConfigError
from rayfl.protocol import ClientId
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.scoring_toys import play, read_model, script

PUBLIC = {"split": {"public": 0.2}}
PRE = {"name": "client_selection", "when": "before", "patience": 2}

ROWS = [
    Row(
        "client_selection",
        {"name": "client_selection"},
        config=PUBLIC,
        neutral={"name": "client_selection", "keep": 1.0},
        same_as={"name": "fedavg"},
        refused=[
            ({"keep": 1.5}, "keep"),
            ({"when": "during"}, "when"),
            ({"patience": -1}, "patience"),
            ({"exploration": -0.1}, "exploration"),
        ],
    ),
    Row("client_selection_before", PRE, config=PUBLIC),
]

ACC = {0: 0.62, 1: 0.35, 2: 0.58, 3: 0.10, 4: 0.47}


def average(kept: list[ClientId], sizes: list[int]) -> float:
    return float(np.average(kept, weights=[sizes[k] for k in kept]))


def test_examples_in_docstrings_are_true() -> None:
    outcome = doctest.testmod(server_scoring)
    assert outcome.attempted >= 3
    assert outcome.failed == 0


# -- who is kept -----------------------------------------------------------------------------------


def test_the_best_three_are_averaged_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [10, 20, 30, 40, 50]
    fleet = script(monkeypatch, client_selection, [ACC], sizes)
    state = cast(Scored, play(ClientSelection(keep=0.6), fleet, 1)[0])
    assert read_model(fleet, state) == pytest.approx(average([0, 2, 4], sizes))
    assert list(state.rho.values()) == pytest.approx([0.38, 0.65, 0.42, 0.90, 0.53])


@pytest.mark.parametrize(("keep", "kept"), [(0.2, [0]), (0.0, [0]), (1.0, [0, 1, 2, 3, 4])])
def test_one_is_the_best_single_model_and_all_are_the_average(
    keep: float, kept: list[ClientId], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [10, 20, 30, 40, 50]
    fleet = script(monkeypatch, client_selection, [ACC], sizes)
    found = read_model(fleet, play(ClientSelection(keep=keep), fleet, 1)[0])
    assert found == pytest.approx(average(kept, sizes))


@pytest.mark.parametrize("change", [np.square, np.exp, lambda a: 7 * a - 3])
def test_only_the_order_of_accuracies_counts(change: Any) -> None:
    assert rank_by_accuracy({k: float(change(a)) for k, a in ACC.items()}) == rank_by_accuracy(ACC)


def test_the_order_of_clients_permutes_the_kept_set() -> None:
    order = [3, 0, 4, 1, 2]
    renamed = {order.index(k): a for k, a in ACC.items()}
    assert [order[k] for k in rank_by_accuracy(renamed)] == rank_by_accuracy(ACC) == [0, 2, 4, 1, 3]


def test_ties_go_to_the_lower_id_and_nan_is_the_worst() -> None:
    assert rank_by_accuracy({2: 0.5, 1: math.nan, 0: 0.5}) == [0, 2, 1]


@pytest.mark.parametrize(
    ("share", "total", "expected"), [(0.5, 5, 3), (0.3, 10, 3), (0.55, 100, 55), (1.0, 7, 7)]
)
def test_shares_are_rounded_up(share: float, total: int, expected: int) -> None:
    assert count_share(share, total) == expected


@pytest.mark.parametrize(("rate", "expected"), [(0, 1.0), (0.3, 0.5), (0.6, 0.2), (0.9, 0.1)])
def test_noisy_public_labels_flatten_the_ranking(rate: float, expected: float) -> None:
    """A model that reproduces noise a agrees with labels of noise b in (1-a)(1-b) + ab/(C-1)."""
    rng = np.random.default_rng(0)
    truth = rng.integers(10, size=200_000)
    said = np.where(rng.random(len(truth)) < rate, truth + rng.integers(1, 10, len(truth)), truth)
    labels = np.where(rng.random(len(truth)) < rate, truth + rng.integers(1, 10, len(truth)), truth)
    assert (said % 10 == labels % 10).mean() == pytest.approx(expected, abs=0.005)


def test_random_public_labels_select_everybody_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rounds = 400
    drawn = [dict(enumerate(rng.random(6).tolist())) for _ in range(rounds)]
    counts = np.zeros(6)
    for accuracies in drawn:
        counts[rank_by_accuracy(accuracies)[: count_share(0.5, 6)]] += 1
    np.testing.assert_allclose(counts / rounds, 0.5, atol=0.08)


# -- models that cannot be judged ------------------------------------------------------------------


def test_a_model_without_finite_answers_is_neither_kept_nor_ranked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = script(monkeypatch, client_selection, [{0: 0.2, 1: math.nan, 2: 0.1}], [1, 1, 1])
    state = cast(Scored, play(ClientSelection(keep=1.0), fleet, 1)[0])
    assert read_model(fleet, state) == 1.0
    assert set(state.rho) == {0, 2}


def test_if_none_is_left_the_global_model_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = script(monkeypatch, client_selection, [{0: math.nan, 1: math.nan}], [1, 1])
    assert read_model(fleet, play(ClientSelection(), fleet, 1)[0]) == -1.0


def test_one_client_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = script(monkeypatch, client_selection, [{0: 0.0}], [3])
    assert read_model(fleet, play(ClientSelection(), fleet, 1)[0]) == 0.0


# -- selection before training ---------------------------------------------------------------------


def test_the_estimate_is_a_running_mean() -> None:
    state = remember(remember(Scored(None), {0: 0.5, 1: 0.9}), {0: 0.7})  # type: ignore[arg-type]
    assert dict(state.rho) == pytest.approx({0: 0.4, 1: 0.1})
    assert state.visits == {0: 2, 1: 1}


def test_after_everybody_was_scored_the_better_half_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accuracies = [dict(enumerate([0.1, 0.9, 0.2, 0.8, 0.3, 0.7]))] * 30
    fleet = script(monkeypatch, client_selection, accuracies, [1] * 6, cohort=3)
    method = ClientSelection(when="before", exploration=0.0, patience=100)
    states = cast("list[Scored]", play(method, fleet, 30))
    ready = next(t for t, state in enumerate(states) if len(state.rho) == 6)
    before = states[ready].visits
    after = states[-1].visits
    assert {k for k in after if after[k] > before[k]} == {1, 3, 5}


def test_patience_ends_the_wait_and_exploration_reaches_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accuracies = [dict(enumerate(np.linspace(0, 1, 8).tolist()))] * 60
    fleet = script(monkeypatch, client_selection, accuracies, [1] * 8, cohort=2)
    method = ClientSelection(when="before", exploration=0.5, patience=0)
    state = cast(Scored, play(method, fleet, 60)[-1])
    assert set(state.visits) == set(range(8))
    assert sum(state.visits.values()) == 120
    assert state.visits[7] > state.visits[0]


# -- in the toy federation -------------------------------------------------------------------------


def test_the_server_scores_every_returned_model_once(tmp_path: Path) -> None:
    """Nothing more is sent than by federated averaging."""
    plain, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), 1), directory="plain"
    )
    scored, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 1), directory="scored")
    before, after = plain.history[0]["metrics"], scored.history[0]["metrics"]
    assert after["cost/server_forward"] - before["cost/server_forward"] == 4 * 72
    for name in ("up_mb", "down_mb", "forward", "backward", "server_backward"):
        assert after[f"cost/{name}"] == before[f"cost/{name}"]


def test_noise_ratios_go_with_the_true_ones(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.2, 0.5, 1.0, 1.0]}
    config = toy_config(ROWS[0], tmp_path, noise=noise, training={"clients_per_round": 6})
    outcome, _ = run_toy(shortened(config, 4))
    metrics = outcome.history[-1]["metrics"]
    assert metrics["noise_ratio/noise_correlation"] > 0.7
    assert metrics["selection/kept"] == 3


def test_a_federation_without_public_images_is_refused(tmp_path: Path) -> None:
    config = toy_config(Row("no public", {"name": "client_selection"}), tmp_path)
    with pytest.raises(ConfigError, match=r"needs the set 'public'; .* Set split.public"):
        run_toy(config)
