"""FOCUS: credibilities, what they weigh, what is sent and what it costs."""

from __future__ import annotations

import doctest
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rayfl.algorithms import focus
from rayfl.algorithms.focus import (
    Focus,
    Trusted,
    look_up,
    measure_credibility,
    weigh_by_credibility,
)
from rayfl.algorithms.parts.server_scoring import ModelScore
from rayfl.errors import ConfigError
from rayfl.learn.judge import judge
from rayfl.protocol import ClientId, DataRef, Replies
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_toys import toy_client
from tests.algorithms.scoring_toys import play, read_model, script
from tests.phases import run_phase

PUBLIC = {"split": {"public": 0.2}}

ROWS = [
    Row(
        "focus",
        {"name": "focus"},
        config=PUBLIC,
        neutral={"name": "focus", "alpha": 0.0},
        same_as={"name": "fedavg"},
        refused=[({"alpha": -1.0}, "alpha"), ({"use_previous": "now"}, "use_previous")],
    ),
    Row(
        "focus_previous",
        {"name": "focus", "alpha": 5.0, "use_previous": True, "weighting": "equal"},
        config=PUBLIC,
        neutral={"name": "focus", "alpha": 0.0, "use_previous": True, "weighting": "equal"},
        same_as={"name": "fedavg", "weighting": "equal"},
    ),
]

LS = {0: 0.5, 1: 1.0, 2: 2.0}
LL = {0: 0.6, 1: 0.9, 2: 2.5}
E = {k: LS[k] + LL[k] for k in LS}
N = {0: 100.0, 1: 200.0, 2: 100.0}


def shares(weights: dict[ClientId, float]) -> list[float]:
    return [w / sum(weights.values()) for w in weights.values()]


# -- the formula -----------------------------------------------------------------------------------


def test_examples_in_docstrings_are_true() -> None:
    outcome = doctest.testmod(focus)
    assert outcome.attempted >= 3
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("alpha", "credibility", "weights"),
    [
        (1.0, (0.969870, 0.932945, 0.097185), (0.330681, 0.636183, 0.033136)),
        (0.5, (0.874463, 0.812721, 0.312816), (0.310896, 0.577889, 0.111215)),
        (5.0, None, (0.333334, 0.666666, 0.000001)),
        (0.0, (2 / 3, 2 / 3, 2 / 3), (0.25, 0.5, 0.25)),
        (1e4, (1.0, 1.0, 0.0), (1 / 3, 2 / 3, 0.0)),
    ],
)
def test_credibilities_and_weights(
    alpha: float, credibility: tuple[float, ...] | None, weights: tuple[float, ...]
) -> None:
    found = measure_credibility(E, alpha)
    if credibility is not None:
        assert list(found.values()) == pytest.approx(credibility, abs=1e-6)
    assert shares(weigh_by_credibility(N, found)) == pytest.approx(weights, abs=1e-6)


def test_two_clients_of_one_size() -> None:
    found = weigh_by_credibility({0: 1.0, 1: 1.0}, measure_credibility({0: 1.1, 1: 1.9}, 1.0))
    assert shares(found) == pytest.approx([0.689974, 0.310026], abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("clients", [2, 3, 10])
def test_credibilities_sum_to_all_but_one(alpha: float, clients: int) -> None:
    errors = dict(enumerate(np.random.default_rng(0).random(clients).tolist()))
    assert sum(measure_credibility(errors, alpha).values()) == pytest.approx(clients - 1)


@pytest.mark.parametrize("more", [1.0, -1.0, 60.0, 1e4])
def test_a_constant_error_changes_nothing(more: float) -> None:
    shifted = {k: error + more for k, error in E.items()}
    assert measure_credibility(shifted, 1.0) == pytest.approx(measure_credibility(E, 1.0))


def test_without_alpha_weights_are_the_sizes_to_the_bit() -> None:
    errors = dict(enumerate(np.random.default_rng(0).random(11).tolist()))
    sizes = {k: 10.0 + k for k in errors}
    assert weigh_by_credibility(sizes, measure_credibility(errors, 0.0)) == sizes


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_count_nothing(bad: float) -> None:
    found = measure_credibility({**E, 3: bad}, 1.0)
    assert found == {**measure_credibility(E, 1.0), 3: 0.0}
    assert measure_credibility({0: bad, 1: 2.0}, 1.0) == {0: 0.0, 1: 1.0}
    assert measure_credibility({0: bad}, 1.0) == {0: 0.0}


def test_a_client_alone_counts_fully() -> None:
    assert measure_credibility({4: 3.0}, 1.0) == {4: 1.0}


def test_the_last_credibility_or_the_mean_one() -> None:
    state = Trusted(None, {0: 0.9, 2: 0.2})  # type: ignore[arg-type]
    assert look_up(state, {0: 1.0, 1: 1.0}) == {0: 0.9, 1: 0.5}
    assert look_up(state, {2: 1.0, 5: math.nan}) == {2: 0.2, 5: 0.0}
    assert look_up(state, {7: 1.0}) == {7: 1.0}


# -- rounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "model"), [(LS, 0.636183 + 2 * 0.033136), (dict.fromkeys(LS, math.nan), -1.0)]
)
def test_models_are_averaged_by_credibility(
    losses: dict[ClientId, float], model: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no loss is finite, the global model stays."""
    fleet = script(monkeypatch, focus, [{}], [100, 200, 100], phase="train_and_judge")
    errors = {k: losses[k] + LL[k] for k in losses}
    # The clients of the script report an LL of 0.
    monkeypatch.setattr(focus, "score_updates", give(errors))
    (state,) = play(Focus(), fleet, 1)
    assert read_model(fleet, state) == pytest.approx(model, abs=1e-6)


def give(losses: dict[ClientId, float]) -> Any:
    def give_scores(got: Replies, held: DataRef) -> dict[ClientId, ModelScore]:
        return {k: ModelScore(0.0, losses[k]) for k in got}

    return give_scores


def test_the_previous_credibility_is_used_one_round_later(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = script(monkeypatch, focus, [{}], [100, 200, 100], phase="train_and_judge")
    monkeypatch.setattr(focus, "score_updates", give(E))
    first, second = play(Focus(use_previous=True), fleet, 2)
    assert read_model(fleet, first) == pytest.approx(1.0)
    assert read_model(fleet, second) == pytest.approx(0.636183 + 2 * 0.033136, abs=1e-6)


def test_a_client_judges_the_model_that_came_on_its_own_labels() -> None:
    client, w = toy_client()
    expected = judge(client, w).losses.mean()
    client.learner.passes.take()
    out = run_phase(focus.train_and_judge, client, w=w, method=Focus())
    assert out.report == {"LL": pytest.approx(expected)}
    # (e + 1) F and e B for 40 samples.
    assert client.learner.passes.take() == (80, 40)


def test_one_number_more_is_sent_and_one_pass_more_is_made(tmp_path: Path) -> None:
    plain, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), 1), directory="plain"
    )
    focused, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 1), directory="focused")
    before, after = plain.history[0]["metrics"], focused.history[0]["metrics"]
    assert after["cost/server_forward"] - before["cost/server_forward"] == 4 * 72
    assert after["cost/up_mb"] - before["cost/up_mb"] == pytest.approx(4 * 4e-6)
    # Two epochs of training; 288 samples of six clients, 48 each.
    assert after["cost/forward"] - before["cost/forward"] == 4 * 48
    for name in ("down_mb", "backward", "server_backward"):
        assert after[f"cost/{name}"] == before[f"cost/{name}"]


def test_errors_go_with_noise(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.2, 0.5, 1.0, 1.0]}
    config = toy_config(ROWS[0], tmp_path, noise=noise, training={"clients_per_round": 6})
    outcome, _ = run_toy(shortened(config, 4))
    metrics = outcome.history[-1]["metrics"]
    assert metrics["error/noise_correlation"] > 0.7
    assert 0 <= metrics["focus/credibility_min"] < 5 / 6 < metrics["focus/credibility_max"] <= 1


def test_the_state_keeps_the_last_credibility(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = script(monkeypatch, focus, [{}], [1, 1, 1], phase="train_and_judge")
    monkeypatch.setattr(focus, "score_updates", give(E))
    state = cast(Trusted, play(Focus(), fleet, 1)[0])
    assert state.credibility == measure_credibility(E, 1.0)


def test_a_federation_without_public_images_is_refused(tmp_path: Path) -> None:
    config = toy_config(Row("no public", {"name": "focus"}), tmp_path)
    with pytest.raises(ConfigError, match=r"needs the set 'public'; .* Set split.public"):
        run_toy(config)
