"""FedCorr: dimensions, mixtures, the proximal term, new labels, stages, costs."""

from __future__ import annotations

import doctest
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from rayfl.algorithms import fedcorr
from rayfl.algorithms.fedcorr import (
    AS_SCIKIT_LEARN,
    Corrected,
    FedCorr,
    add_dimensions,
    correct,
    estimate_level,
    find_noisy,
    find_worst,
    soften_losses,
    visit,
)
from rayfl.errors import ConfigError
from rayfl.estimate.lid import lid_of_distances, mean_lid
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.fit import carry_out, compute_losses
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit
from rayfl.protocol import Client, Out, Vector
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_toys import model_of, toy_client
from tests.algorithms.toys import fleet_of, toy_fleet
from tests.phases import drive, run_phase

QUICK = {"name": "fedcorr", "iterations": 1, "finetuning": 1, "beta": 1.0}
LONGER = {"training": {"rounds": 8, "epochs": 4}}

ROWS = [
    Row(
        "fedcorr",
        QUICK,
        config=LONGER,
        floor=0.7,
        neutral={"name": "fedcorr", "iterations": 0, "finetuning": 0, "alpha": 0.0},
        same_as={"name": "fedavg"},
        refused=[
            ({"iterations": -1}, "iterations"),
            ({"finetuning": -1}, "finetuning"),
            ({"visits": 0}, "visits"),
            ({"alpha": -1}, "alpha"),
            ({"beta": -1}, "beta"),
            ({"prox": "l1"}, "prox"),
            ({"k": 0}, "method.k"),
            ({"share": 2}, "share"),
            ({"confidence": 2}, "confidence"),
            ({"kappa": 2}, "kappa"),
        ],
    ),
    Row(
        "fedcorr_paper",
        {
            **QUICK,
            "iterations": 2,
            "visits": 6,
            "prox": "squared",
            "proper_ce": True,
            "alpha": 0.0,
            "loss": "gce",
        },
        config=LONGER,
        floor=0.7,
    ),
]


def test_examples_in_docstrings_are_true() -> None:
    outcome = doctest.testmod(fedcorr)
    assert outcome.attempted >= 5
    assert outcome.failed == 0


# -- dimensions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ([1.0, 2.0, 4.0], 1.442695),
        ([i / 20 for i in range(1, 21)], 1.137718),
        ([(i / 20) ** (1 / 2) for i in range(1, 21)], 2.275434),
        ([(i / 20) ** (1 / 5) for i in range(1, 21)], 5.688566),
        ([5.0 * i for i in range(1, 21)], 1.137719),
    ],
)
def test_dimensions(distances: list[float], expected: float) -> None:
    assert float(lid_of_distances(distances)) == pytest.approx(expected, abs=1e-4)


def test_few_samples_have_fewer_neighbours_in_the_numerator_too() -> None:
    """With 20 in the numerator, ten neighbours would give 2.52."""
    ten = [i / 10 for i in range(1, 11)]
    assert float(lid_of_distances(ten)) * 2 == pytest.approx(2.524791, abs=1e-4)


def test_a_client_without_a_dimension_gets_the_median() -> None:
    assert math.isnan(mean_lid([[0.5, 0.5]]))
    found = add_dimensions({}, {0: 1.0, 1: 3.0, 2: math.nan, 3: 2.0})
    assert found == {0: 1.0, 1: 3.0, 2: 2.0, 3: 2.0}
    assert add_dimensions({0: 1.0}, {0: math.nan}) == {0: 1.0}


def test_dimensions_are_summed_over_iterations() -> None:
    once = add_dimensions({}, {0: 1.0, 1: 2.0})
    assert add_dimensions(once, {0: 0.5, 1: 0.25}) == {0: 1.5, 1: 2.25}


# -- mixtures, losses, candidates ------------------------------------------------------------------

FIVE = [0.10, 0.20, 0.15, 0.90, 1.00]


def test_the_mixture_over_clients() -> None:
    split = AS_SCIKIT_LEARN.fit(FIVE)
    assert split.means == pytest.approx([0.15, 0.95], abs=1e-5)
    assert split.variances == pytest.approx([0.001668, 0.002501], abs=1e-6)
    assert split.weights == pytest.approx([0.6, 0.4], abs=1e-5)
    assert find_noisy(dict(enumerate(FIVE))) == [3, 4]


def test_equal_values_are_no_two_groups() -> None:
    assert find_noisy(dict.fromkeys(range(4), 1.5)) == []
    assert estimate_level(np.full(10, 0.3)) == 0.0


def test_losses_of_a_row() -> None:
    p = np.array([[0.7, 0.2, 0.1]] * 3)
    y = np.arange(3)
    assert soften_losses(p, y) == pytest.approx([0.767950, 1.267950, 1.367950], abs=1e-6)
    proper = compute_losses(np.log(p).astype(np.float32), y)
    assert proper == pytest.approx([0.356675, 1.609438, 2.302585], abs=1e-6)


@pytest.mark.parametrize(
    ("classes", "low", "high"), [(10, 1.461150, 2.461150), (100, 3.622207, 4.622207)]
)
def test_the_range_of_the_codes_losses(classes: int, low: float, high: float) -> None:
    sure = np.eye(classes)[:1]
    assert soften_losses(sure, np.array([0])) == pytest.approx([low], abs=1e-6)
    assert soften_losses(sure, np.array([1])) == pytest.approx([high], abs=1e-6)


@pytest.mark.parametrize(
    ("n", "mu", "count"), [(100, 0.37, 18), (60, 0.55, 16), (500, 0.66, 165), (9, 0.0, 0)]
)
def test_how_many_may_get_new_labels(n: int, mu: float, count: int) -> None:
    losses = np.random.default_rng(0).random(n)
    worst = find_worst(losses, mu, 0.5)
    assert len(worst) == count
    rest = np.delete(losses, worst)
    assert not count or losses[worst].min() >= rest.max()


# -- the proximal term -----------------------------------------------------------------------------


def pull_at(prox: Any, away: float, beta: float, mu: float) -> tuple[float, float]:
    """The proximal loss's slope along w - w_g, in the first batch of an epoch and in another."""
    method = FedCorr(prox=prox, beta=beta, alpha=0.0)
    client, w = toy_client()
    fitting = fedcorr.train_near(client, w, beta * mu, method)
    wish = next(fitting)
    direction = torch.zeros(len(w))
    direction[0] = 1.0
    slopes = []
    for step in (0, 1):
        gradient = torch.zeros(len(w))
        parameters = torch.from_numpy(w.copy())[: len(w)] + away * direction
        if isinstance(wish.adjust, fedcorr.NormPull):
            wish.adjust.begins = step == 0
            wish.adjust(parameters, gradient)
        elif wish.pull is not None:
            gradient += wish.pull.strength * (parameters - torch.from_numpy(wish.pull.anchor))
        slopes.append(float(gradient[0]))
    return slopes[0], slopes[1]


@pytest.mark.parametrize(
    ("prox", "mu", "first", "other"),
    [("norm", 0.4, 0.0, 2.0), ("squared", 0.4, 1.2, 1.2), ("norm", 0.0, 0.0, 0.0)],
)
def test_the_proximal_term(prox: Any, mu: float, first: float, other: float) -> None:
    assert pull_at(prox, 0.3, 5.0, mu) == pytest.approx((first, other), abs=1e-5)


@pytest.mark.parametrize(("prox", "penalty"), [("norm", 0.6), ("squared", 0.18)])
def test_the_penalty_on_the_way_to_a_distance(prox: Any, penalty: float) -> None:
    """beta 5, mu 0.4: the slope from ||w - w_g|| = 0 to 0.3, summed up."""
    steps = [pull_at(prox, 0.03 * (step + 0.5), 5.0, 0.4)[1] for step in range(10)]
    assert 0.03 * sum(steps) == pytest.approx(penalty, abs=1e-5)


def test_without_a_noise_level_there_is_no_penalty() -> None:
    client, w = toy_client()
    wish = next(fedcorr.train_near(client, w, 0.0, FedCorr()))
    assert wish.adjust is None
    assert wish.pull is None


@pytest.mark.parametrize("prox", ["norm", "squared"])
def test_the_model_stays_nearer(prox: Any) -> None:
    gaps = []
    for strength in (0.0, 2.0):
        client, w = toy_client(epochs=3)
        method = FedCorr(prox=prox)
        local = drive(client, fedcorr.train_near(client, w, strength, method))
        gaps.append(np.linalg.norm(local - w))
    assert gaps[1] < 0.9 * gaps[0]


def test_mixing_draws_from_the_batch_alone() -> None:
    """At alpha 0 it is plain training, to the bit."""
    (one, w), (other, _) = toy_client(epochs=2), toy_client(epochs=2)
    plain = carry_out(one, Fit(w)).weights
    mixed = drive(other, fedcorr.train_near(other, w, 0.0, FedCorr(alpha=0.0)))
    assert np.array_equal(mixed, plain)
    third, _ = toy_client(epochs=2)
    assert not np.array_equal(
        drive(third, fedcorr.train_near(third, w, 0.0, FedCorr(alpha=1.0))), plain
    )


# -- a client --------------------------------------------------------------------------------------


def test_a_visit_reports_its_dimension_and_remembers_its_losses() -> None:
    client, w = toy_client()
    out = run_phase(visit, client, w=w, mu=0.0, method=FedCorr())
    judged = judge(client, model_of(out))
    assert out.report == {"lid": pytest.approx(mean_lid(judged.probabilities, 20))}
    assert out.state["losses"] == pytest.approx(soften_losses(judged.probabilities, client.y))
    proper = run_phase(visit, toy_client()[0], w=w, mu=0.0, method=FedCorr(proper_ce=True))
    assert proper.state["losses"] == pytest.approx(judged.losses)


def test_the_worst_of_which_the_model_is_sure_get_its_answer() -> None:
    client, w = toy_client()
    losses = np.r_[np.full(20, 0.1), np.linspace(2.0, 2.2, 20)] + np.arange(40) * 1e-3
    client = replace(client, classes=4, state={"losses": losses})
    p = judge(client, 5 * w).probabilities
    out = run_phase(correct, client, w=5 * w, method=FedCorr(confidence=0.6))
    assert out.report["mu"] == pytest.approx(0.5)
    changed = np.flatnonzero(out.state["y"] != client.y)
    allowed = np.flatnonzero((p.max(axis=1) > 0.6) & (np.arange(40) >= 30))
    assert len(changed)
    assert set(changed) <= set(allowed)
    assert np.array_equal(out.state["y"][allowed], p.argmax(axis=1)[allowed])


@pytest.mark.parametrize("state", [{}, {"losses": np.full(40, np.nan)}])
def test_a_client_that_only_diverged_has_no_level(state: dict[str, Any]) -> None:
    client, w = toy_client()
    out = run_phase(correct, replace(client, state=state), w=w, method=FedCorr())
    assert out.report == {"mu": 0.0}
    assert out.state == {}


# -- stages ----------------------------------------------------------------------------------------


def script(monkeypatch: pytest.MonkeyPatch, log: list[Any], mu: dict[int, float]) -> None:
    """Phases that only write down who was visited; clients of a level report a larger LID."""

    def visited(client: Client, *, w: Vector, mu: float, method: FedCorr) -> Out:
        log.append(("visit", client.id, mu))
        return Out({"lid": 1.0 + LEVELS.get(client.id, 0.0)}, update=w + 1)

    def corrected(client: Client, *, w: Vector, method: FedCorr) -> Out:
        log.append(("correct", client.id))
        return Out({"mu": LEVELS[client.id]})

    def relabelled(client: Client, *, w: Vector, method: FedCorr) -> Out:
        log.append(("relabel", client.id))
        return Out()

    def trained(client: Client, *, w: Vector, method: FedCorr) -> Out:
        log.append(("train", client.id))
        return Out(update=w)

    LEVELS = mu
    monkeypatch.setattr(fedcorr, "visit", visited)
    monkeypatch.setattr(fedcorr, "correct", corrected)
    monkeypatch.setattr(fedcorr, "relabel_all", relabelled)
    monkeypatch.setattr(fedcorr, "train_mixed", trained)


def play(fleet: InlineFleet, method: FedCorr, rounds: int) -> list[Corrected]:
    states = [method.init(fleet, fleet.put(np.zeros(1, np.float32)))]
    for fleet.round in range(rounds):
        states.append(method.round(states[-1], fleet, fleet.round))
    return states[1:]


def toy_of(clients: int, cohort: int) -> InlineFleet:
    fleet = fleet_of([1] * clients)
    fleet.cohort = cohort
    fleet.spec = replace(fleet.spec, cohort=cohort)
    return fleet


@pytest.mark.parametrize(("visits", "rounds"), [(None, 3), (1, 7), (7, 1), (9, 1)])
def test_an_iteration_visits_everybody_once_in_turn(
    visits: int | None, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    script(monkeypatch, log, {5: 1.0, 6: 1.2})
    fleet = toy_of(7, 3)
    states = play(fleet, FedCorr(iterations=2, visits=visits), 2 * rounds)
    assert Counter(entry[1] for entry in log if entry[0] == "visit") == dict.fromkeys(range(7), 2)
    first = [entry[1] for entry in log if entry[0] == "visit"][:7]
    assert sorted(first) == list(range(7))
    # Each client begins with the model of the one before it.
    assert fleet.get(states[-1].model).tolist() == [14.0]
    assert states[rounds - 1].lid == {**dict.fromkeys(range(5), 1.0), 5: 2.0, 6: 2.2}
    assert states[-1].lid == {**dict.fromkeys(range(5), 2.0), 5: 4.0, 6: 4.4}
    assert states[rounds - 1].found == {}


def test_levels_of_an_iteration_hold_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    script(monkeypatch, log, {2: 0.7, 3: 0.9})
    play(toy_of(4, 4), FedCorr(iterations=2), 2)
    assert {entry[1:] for entry in log[:4]} == {(k, 0.0) for k in range(4)}
    assert log[4:6] == [("correct", 2), ("correct", 3)]
    assert {entry[1:] for entry in log[6:10]} == {(0, 0.0), (1, 0.0), (2, 0.7), (3, 0.9)}


def test_stages_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    script(monkeypatch, log, {2: 0.05, 3: 0.9, 4: 0.8})
    fleet = toy_of(5, 5)
    play(fleet, FedCorr(iterations=1, finetuning=2), 4)
    # Stage 1 calls 3 and 4 noisy, whose mean dimensions are apart from the others'.
    after = log[5 + 2 :]
    clean = [("train", k) for k in (0, 1, 2)]
    relabelled = [("relabel", 3), ("relabel", 4)]
    assert after == [*clean, *clean, *relabelled, *[("train", k) for k in range(5)]]


def test_without_a_clean_client_the_cleanest_is_tuned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = toy_of(3, 3)
    state = Corrected(fleet.put(np.zeros(1, np.float32)), mu={0: 0.5, 1: 0.2, 2: 0.9})
    assert FedCorr().find_clean(state, fleet) == [1]
    assert FedCorr(kappa=0.5).find_clean(state, fleet) == [0, 1]


def test_without_stages_it_is_usual_from_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    script(monkeypatch, log, {})
    play(toy_of(3, 3), FedCorr(iterations=0, finetuning=0), 1)
    assert log == [("train", k) for k in range(3)]


def test_a_client_that_diverges_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [], {})

    def visited(client: Client, *, w: Vector, mu: float, method: FedCorr) -> Out:
        return Out({"lid": 1.0}, update=np.full(1, np.nan, np.float32) if client.id == 1 else w + 1)

    monkeypatch.setattr(fedcorr, "visit", visited)
    fleet = toy_of(3, 3)
    (state,) = play(fleet, FedCorr(iterations=1), 1)
    assert fleet.get(state.model).tolist() == [2.0]
    assert state.lid == dict.fromkeys(range(3), 1.0)


# -- in the toy federation -------------------------------------------------------------------------

HALF_NOISY = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 0.6, 0.6, 0.6]}
EVERYBODY = {"clients_per_round": 6, "epochs": 4}


def test_labels_of_clean_clients_never_change(tmp_path: Path) -> None:
    method = {**QUICK, "confidence": 0.3}
    config = toy_config(ROWS[0], tmp_path, method, noise=HALF_NOISY, training=EVERYBODY)
    fleet = toy_fleet(config)
    algorithm = cast(FedCorr, config.method)
    states = [algorithm.init(fleet, fleet.initial())]
    for fleet.round in range(3):
        states.append(algorithm.round(states[-1], fleet, fleet.round))
    noisy = set(states[-1].mu)
    assert {k for k in fleet.clients if "y" in fleet.table[k]} == noisy
    assert 0 < len(noisy) < 6


def test_what_the_stages_cost(tmp_path: Path) -> None:
    config = toy_config(ROWS[0], tmp_path, QUICK, noise=HALF_NOISY, training=EVERYBODY)
    outcome, _ = run_toy(shortened(config, 3))
    visited, tuned, usual = (record["metrics"] for record in outcome.history)
    noisy = visited["fedcorr/noisy"]
    # E F and E B, one pass for the outputs, and one of the noisy clients for their new labels.
    assert visited["cost/forward"] == (4 + 1 + noisy / 6) * 360
    assert visited["cost/backward"] == 4 * 360
    assert tuned["cost/forward"] == (4 * tuned["fedcorr/eligible"] / 6 + noisy / 6) * 360
    assert usual["cost/forward"] == usual["cost/backward"] == 4 * 360
    # A model and a number from each client; a model to each, and to each noisy one once more.
    size = len(outcome.models[None]) * 4 / 1e6
    assert visited["cost/up_mb"] == pytest.approx(6 * (size + 4e-6) + noisy * 4e-6)
    assert visited["cost/down_mb"] == pytest.approx((6 + noisy) * size)


def test_levels_go_with_noise_and_labels_are_repaired(tmp_path: Path) -> None:
    method = {**QUICK, "iterations": 2}
    config = toy_config(ROWS[0], tmp_path, method, noise=HALF_NOISY, training=EVERYBODY)
    outcome, _ = run_toy(shortened(config, 3))
    second = outcome.history[1]["metrics"]
    assert second["level/noise_correlation"] > 0.5
    last = outcome.history[2]["metrics"]
    assert last["labels/right_after"] > last["labels/right_before"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"clients": 1, "training": {"clients_per_round": 1}},
            "take two clients and two classes or more; got 1 and 4",
        ),
        ({"method": {"name": "fedcorr", "k": 60}}, "more samples than method.k = 60 .* got 60"),
    ],
)
def test_federations_that_are_too_small_are_refused(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = toy_config(Row("small", {"name": "fedcorr"}), tmp_path, **more)
    with pytest.raises(ConfigError, match=message):
        run_toy(config)


def test_a_fleet_of_some_clients_is_all_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round within a group: clients and cohort are the fleet's that it is given."""
    log: list[Any] = []
    script(monkeypatch, log, {4: 0.9})
    fleet = toy_of(6, 2)
    fleet.clients = [1, 3, 4]
    play(fleet, FedCorr(iterations=1, finetuning=1), 4)
    assert {entry[1] for entry in log if entry[0] == "visit"} == {1, 3, 4}
    assert {entry[1] for entry in log if entry[0] == "train"} <= {1, 3, 4}
