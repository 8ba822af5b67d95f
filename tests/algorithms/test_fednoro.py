"""FedNoRo: logit adjustment, the ramp, detection, distances, and figures of the authors' code."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.algorithms import fednoro
from rayfl.algorithms.fednoro import Detected, FedNoRo, average_losses, find_noisy, train_adjusted
from rayfl.algorithms.parts.distance_weighting import ByDistance, dampen_by_largest
from rayfl.arrays import Floats
from rayfl.errors import ConfigError
from rayfl.estimate.scaling import fill_and_scale
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.distance import measure_distance
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.distillation import kl_divergence, soften
from rayfl.learn.losses.logit_adjustment import adjust_logits, log_prior
from rayfl.learn.resident import Resident
from rayfl.learn.schedules import ramp_exponentially
from rayfl.protocol import Client, Out, Replies
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_toys import toy_client
from tests.algorithms.toys import NoLearner, fleet_of, toy_fleet
from tests.phases import run_phase

QUICK = {"name": "fednoro", "warmup": 2, "begin": 2, "end": 4}
ADJUSTED = {"training": {"rounds": 8, "epochs": 4}}

ROWS = [
    Row(
        "fednoro",
        QUICK,
        config=ADJUSTED,
        neutral={"name": "fednoro", "warmup": 8, "tau": 0.0},
        same_as={"name": "fedavg"},
        refused=[
            ({"warmup": -1}, "warmup"),
            ({"begin": -1}, "begin"),
            ({"end": -1}, "end"),
            ({"a": 1.5}, "method.a"),
            ({"temperature": 0}, "temperature"),
            ({"tau": -1}, "tau"),
            ({"fits": 0}, "fits"),
        ],
    ),
    Row(
        "fednoro_misplaced",
        {**QUICK, "weighting": {"name": "distance", "misplaced": True}, "loss": "gce"},
        config={"training": {"rounds": 8, "epochs": 4, "clients_per_round": 6}},
    ),
]


# -- the losses ------------------------------------------------------------------------------------


def test_examples_in_docstrings_are_true() -> None:
    outcome = doctest.testmod(fednoro)
    assert outcome.attempted >= 2
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("z", "expected"),
    [
        ((0.0, 0.0, 0.0), (2.302585, 1.203973, 0.510826)),
        ((1.0, 0.0, -1.0), (1.070093, 0.971480, 1.278333)),
    ],
)
@pytest.mark.parametrize(("scale", "shift"), [(1, 0.0), (7, 0.0), (1, 3.5)])
def test_logit_adjustment(
    z: tuple[float, ...], expected: tuple[float, ...], scale: int, shift: float
) -> None:
    """Neither a constant in the logits nor a factor of the counts changes anything."""
    prior = log_prior(np.array([10, 30, 60]) * scale)
    logits = adjust_logits(torch.tensor([z] * 3) + shift, prior)
    losses = FedNoRo().loss(logits, torch.arange(3))
    assert losses.tolist() == pytest.approx(expected, abs=2e-6)


def test_equal_counts_are_cross_entropy() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0]] * 3)
    losses = FedNoRo().loss(adjust_logits(logits, log_prior([5, 5, 5])), torch.arange(3))
    assert losses.tolist() == pytest.approx([0.407606, 1.407606, 2.407606], abs=2e-6)


@pytest.mark.parametrize(
    ("t", "weight"),
    [(10, 0.005390), (20, 0.050400), (30, 0.244177), (40, 0.612984), (49, 0.8), (99, 0.8)],
)
def test_the_ramp(t: int, weight: float) -> None:
    method = FedNoRo()
    found = method.a * ramp_exponentially(t, method.begin, method.end)
    assert found == pytest.approx(weight, abs=1e-6)


class Table(nn.Module):
    """Logits that are parameters, one row an image: the image is its own number."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[(x[:, 0, 0, 0] * 255).round().long()]


def loss_of(
    rows: Any, teacher: Any, counts: Any, y: list[int], weight: float | None, tau: float = 1.0
) -> tuple[float, Tensor]:
    """The loss of the phase on one batch, and its gradient by the logits; `counts` decide the
    prior, `y` are the labels."""

    class Visited:
        """What the phase reads of a client."""

        class_counts = np.array(counts)

    net = Table(rows)
    asked = Table(teacher)

    def answer(client: object, w: object, name: str) -> Any:
        return lambda x: asked(x).detach()

    patch = pytest.MonkeyPatch()
    patch.setattr(fednoro, "Frozen", answer)
    try:
        visited = cast(Client, Visited())
        w = np.zeros(1, np.float32)
        wish = next(train_adjusted(visited, w=w, method=FedNoRo(tau=tau), weight=weight))
    finally:
        patch.undo()
    x = torch.arange(len(y)).reshape(-1, 1, 1, 1) / 255.0
    batch = type("Batch", (), {"x": x, "y": torch.tensor(y)})()
    assert callable(wish.loss)
    value = wish.loss(net, batch)  # type: ignore[arg-type]
    assert isinstance(value, Tensor)
    value.backward()  # type: ignore[no-untyped-call]
    assert net.rows.grad is not None
    return value.item(), net.rows.grad


def test_distillation_by_hand() -> None:
    q = soften(torch.tensor([[0.8, 0.0, 0.0]]), 0.8)
    assert q[0].tolist() == pytest.approx([0.576117, 0.211942, 0.211942], abs=1e-6)
    student = adjust_logits(torch.tensor([[1.0, 0.0, -1.0]]), log_prior([1, 1, 2]))
    assert student.log_softmax(1)[0].tolist() == pytest.approx(
        [-0.493812, -1.493812, -1.800665], abs=1e-6
    )
    assert kl_divergence(q, student).item() == pytest.approx(0.007402, abs=1e-6)
    found, _ = loss_of([[1.0, 0.0, -1.0]], [[0.8, 0.0, 0.0]], [1, 1, 2], [0], 0.8)
    assert found == pytest.approx(0.104684, abs=1e-6)


@pytest.mark.parametrize("weight", [None, 0.0])
def test_without_weight_it_is_logit_adjustment(weight: float | None) -> None:
    found, _ = loss_of([[1.0, 0.0, -1.0]], [[9.0, 0.0, 0.0]], [10, 30, 60], [1], weight)
    assert found == pytest.approx(0.971480, abs=1e-6)


# Figures of the authors' code, wnn2000/FedNoRo @ 6719ad7: utils/losses.py LogitAdjust and LA_KD on
# the CPU, utils/utils.py get_current_consistency_weight, utils/FedAvg.py model_dist and DaAgg, and
# the detection of train_FedNoRo.py; and of stha-prashant/fednoro @ da0072b, utils/FedAvg.py DaAgg.

Z = [
    [0.001, 0.299, -0.274, -0.891, -0.455],
    [-0.992, 0.06, 1.34, -0.492, -0.62],
    [0.49, 0.357, 0.105, -0.93, -0.029],
    [0.695, -1.344, -0.458, -1.901, -1.29],
]
Z_T = [
    [-1.842, -0.235, -1.267, 0.271, 0.157],
    [-0.187, -2.517, -0.539, -0.049, 0.113],
    [-1.53, -0.478, -0.979, -0.809, 1.061],
    [-0.808, -0.033, 0.884, -0.584, -0.112],
]
LACKING = [3, 0, 5, 0, 2]
WHOLE = [3, 1, 5, 4, 2]


@pytest.mark.parametrize(
    ("counts", "weight", "expected"),
    [
        (LACKING, None, 1.0184234380722046),
        (WHOLE, None, 1.210775375366211),
        (LACKING, 0.0, 1.0184234380722046),
        (LACKING, 0.3, 0.7081573605537415),
        (LACKING, 0.8, 0.19104722142219543),
        (WHOLE, 0.3, 1.1124905347824097),
        (WHOLE, 0.8, 0.9486823678016663),
    ],
)
def test_losses_of_the_authors(counts: list[int], weight: float | None, expected: float) -> None:
    found, _ = loss_of(Z, Z_T, counts, [0, 2, 4, 2], weight)
    assert found == pytest.approx(expected, abs=1e-6)


def test_gradient_of_the_authors() -> None:
    _, gradient = loss_of(Z, Z_T, WHOLE, [0, 2, 4, 2], 0.8)
    first = [0.012412064708769, -0.010143656283617, 0.074728317558765, -0.039371211081743]
    assert gradient[0].tolist() == pytest.approx([*first, -0.037625506520271], abs=1e-7)


def test_ramp_of_the_authors() -> None:
    found = [0.8 * ramp_exponentially(t, 10, 49) for t in (0, 17, 25, 48, 80)]
    expected = [0.0053903575992683, 0.0276162753228785, 0.1204362543494396, 0.7973744690490475, 0.8]
    assert found == pytest.approx(expected, rel=1e-12)


MODELS = {
    0: [0.11, 0.06, -1.23, 0.08, 1.36, -1.55, 0.86],
    1: [0.12, -0.64, 2.0, 0.76, -1.2, 0.07, 0.58],
    2: [-0.19, 0.68, -0.07, 0.67, 1.44, -0.68, 0.2],
    3: [-0.46, 0.13, -1.19, -0.58, -0.2, 0.9, 1.15],
}
"""A matrix of 2 x 2 and a vector of 3."""
SIZES = [10, 20, 30, 40]


class TwoTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2, 2))
        self.b = nn.Parameter(torch.zeros(3))


NETWORK = Resident(TwoTensors(), torch.device("cpu"))


class Place(NoLearner):
    """A place that has the network of two tensors."""

    def shape_of(self) -> Resident:
        return NETWORK


def send(client: Client, *, noisy: list[int]) -> Out:
    return Out({"_noisy": client.id in noisy}, update=np.array(MODELS[client.id], np.float32))


def replies(noisy: list[int]) -> tuple[Replies, InlineFleet]:
    fleet = fleet_of(SIZES)
    fleet.executor.learner = Place()  # type: ignore[assignment]
    return fleet.map(send, range(4), noisy=noisy), fleet


@pytest.mark.parametrize(
    ("one", "other", "expected"), [(0, 1, 6.416658878326416), (1, 2, 5.2468366622924805)]
)
def test_distances_of_the_authors(one: int, other: int, expected: float) -> None:
    a, b = (np.array(MODELS[k], np.float32) for k in (one, other))
    assert measure_distance(NETWORK, a, b).total == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("noisy", "misplaced", "matrix", "vector"),
    [
        (
            [1, 2],
            False,
            [-0.26326632499694824, 0.17672044038772583, -0.6165263652801514, -0.06327840685844421],
            [0.30069154500961304, 0.11673760414123535, 0.8291772603988647],
        ),
        (
            [0, 1, 3],
            False,
            [-0.20110851526260376, 0.29983651638031006, -0.26250821352005005, 0.25902390480041504],
            [0.6390340924263, -0.21847009658813477, 0.5873621702194214],
        ),
        (
            [1, 2],
            True,
            [-0.20600000023841858, 0.1340000033378601, -0.2200000286102295, 0.1290000081062317],
            [0.24800002574920654, 0.014999955892562866, 0.722000002861023],
        ),
        (
            [0, 1, 3],
            True,
            [-0.26124638319015503, 0.19059067964553833, -0.6014590263366699, -0.04306647181510925],
            [0.3320910632610321, 0.09477773308753967, 0.8118354082107544],
        ),
        (
            [0, 1, 2, 3],
            True,
            [-0.20600000023841858, 0.1340000033378601, -0.2200000286102295, 0.1290000081062317],
            [0.24800002574920654, 0.014999955892562866, 0.722000002861023],
        ),
    ],
)
def test_averages_of_the_authors(
    noisy: list[int], misplaced: bool, matrix: list[float], vector: list[float]
) -> None:
    """`misplaced` are the fork's; where no more clients are noisy than clean it has no distance."""
    got, fleet = replies(noisy)
    mean = fleet.get(got.mean(ByDistance(misplaced=misplaced)(got, fleet)))
    assert mean.tolist() == pytest.approx([*matrix, *vector], abs=2e-6)


def draw_losses(classes: int, clients: int, more: float) -> Floats:
    """M of clients of which some are noisy and most lack a class."""
    rng = np.random.default_rng(classes * clients)
    noisy = rng.random(clients) < 0.4
    usual = rng.gamma(2, 0.2, size=(clients, classes))
    extra = noisy[:, None] * rng.normal(more, 0.3, size=(clients, classes))
    held = rng.random((clients, classes)) < 0.8
    held[:2] = True
    return np.where(held, np.round(usual + extra, 3), np.nan)


@pytest.mark.parametrize(
    ("classes", "clients", "more", "total"),
    [
        (3, 8, 1.0, 9.701210544532678),
        (10, 20, 1.0, 64.25302662239355),
        (5, 12, 3.0, 23.740604043672224),
    ],
)
def test_scaled_tables_of_the_authors(
    classes: int, clients: int, more: float, total: float
) -> None:
    table = draw_losses(classes, clients, more)
    assert fill_and_scale(table).sum() == pytest.approx(total)


@pytest.mark.parametrize(
    ("classes", "clients", "more", "noisy"),
    [
        (3, 8, 2.0, [0, 7]),
        (10, 20, 2.0, [2, 3, 7, 8, 9, 10, 11, 12, 15, 16]),
        (10, 6, 1.0, [0, 1, 2]),
        (4, 30, 1.0, [1, 7, 10, 12, 13, 15, 17, 18, 20, 21, 29]),
    ],
)
def test_detection_of_the_authors(
    classes: int, clients: int, more: float, noisy: list[int]
) -> None:
    """Where their nine mixtures agree; where they do not, the starts decide."""
    found = find_noisy(draw_losses(classes, clients, more), np.random.default_rng(0))
    assert np.flatnonzero(found).tolist() == noisy


# -- detection and distances -----------------------------------------------------------------------


def test_gaps_are_filled_and_columns_scaled() -> None:
    found = fill_and_scale([[1.0, 2.0], [3.0, np.nan], [2.0, 5.0]])
    assert found.tolist() == [[0, 0], [1, 0], [0.5, 1]]


def test_a_class_that_nobody_has_is_left_out() -> None:
    table = np.array([[0.1, np.nan], [2.0, np.nan], [0.2, np.nan], [2.1, np.nan]])
    found = find_noisy(table, np.random.default_rng(0))
    assert found.tolist() == [False, True, False, True]


def test_a_row_of_losses_is_the_mean_of_each_label() -> None:
    client, w = toy_client()
    losses = judge(client, w).losses
    row = average_losses(replace(client, classes=5), w=w).report["losses"]
    expected = [losses[client.y == c].mean() for c in range(4)]
    assert row[:4].tolist() == pytest.approx(expected)
    assert math.isnan(row[4])


def test_losses_that_are_not_finite_look_noisy() -> None:
    client, w = toy_client()
    row = average_losses(replace(client, classes=4), w=np.full_like(w, 1e30)).report["losses"]
    assert np.isfinite(row).all()
    assert row.max() >= 1e5


def test_weights_by_hand() -> None:
    sizes = {0: 100.0, 1: 100.0, 2: 200.0}
    weights = dampen_by_largest(sizes, {0: 0.0, 1: 1.0, 2: 2.0})
    found = [w / sum(weights.values()) for w in weights.values()]
    assert found == pytest.approx([0.426933, 0.258948, 0.314120], abs=1e-6)
    # The client at the largest distance keeps 1/e of what it would count.
    assert weights[2] / sizes[2] == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("noisy", [[], [0, 1, 2, 3]])
def test_without_clean_or_noisy_clients_sizes_count(noisy: list[int]) -> None:
    got, fleet = replies(noisy)
    assert dict(ByDistance()(got, fleet)) == dict(enumerate(map(float, SIZES)))


# -- rounds ----------------------------------------------------------------------------------------


def states_of(fleet: InlineFleet, method: FedNoRo, rounds: int) -> list[Detected]:
    states = [method.init(fleet, fleet.initial())]
    for fleet.round in range(rounds):
        states.append(method.round(states[-1], fleet, fleet.round))
    return states[1:]


def test_noisy_clients_are_found_once_after_the_warm_up(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 0.0, 0.9, 0.9]}
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path, noise=noise, **ADJUSTED))
    states = states_of(fleet, FedNoRo(warmup=3), 5)
    assert [state.noisy for state in states] == [None, None, None, (4, 5), (4, 5)]


def test_noisy_participants_are_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(
        client: Client, *, w: Any, method: FedNoRo, weight: float | None = None
    ) -> Fitting[Out]:
        seen.append((client.id, weight))
        trained = yield Fit(w)
        return Out({"_noisy": weight is not None}, update=trained.weights)

    monkeypatch.setattr(fednoro, "train_adjusted", spy)
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path, training={"clients_per_round": 6}))
    method = FedNoRo(warmup=0, begin=0, end=1)
    fleet.round = 1
    method.round(Detected(fleet.initial(), (1, 4)), fleet, 1)
    assert {client for client, weight in seen if weight == 0.8} == {1, 4}
    assert {client for client, weight in seen if weight is None} == {0, 2, 3, 5}


def test_what_a_round_costs(tmp_path: Path) -> None:
    """Detection: one pass of everybody's samples and C numbers; teaching: one pass more a step."""
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 0.0, 0.9, 0.9]}
    everybody = {"clients_per_round": 6, "epochs": 4}
    config = toy_config(ROWS[0], tmp_path, QUICK, noise=noise, training=everybody)
    outcome, _ = run_toy(shortened(config, 4))
    warm, _, detected, taught = (record["metrics"] for record in outcome.history)
    noisy = detected["fednoro/noisy"]
    assert warm["cost/forward"] == warm["cost/backward"] == 4 * 360
    assert detected["cost/forward"] == (5 + 4 * noisy / 6) * 360
    assert taught["cost/forward"] == (4 + 4 * noisy / 6) * 360
    assert taught["cost/backward"] == 4 * 360
    assert taught["cost/up_mb"] == warm["cost/up_mb"]
    assert detected["cost/up_mb"] - warm["cost/up_mb"] == pytest.approx(6 * 4 * 8e-6)
    assert detected["cost/down_mb"] == pytest.approx(2 * warm["cost/down_mb"])


def test_a_warm_client_trains_on_what_it_lacks_nothing_of() -> None:
    """A class without samples has the logit minus infinity: its column of the head stays."""
    client, w = toy_client()
    client = replace(client, labels=np.where(client.y == 3, 0, client.y), classes=4)
    out = run_phase(train_adjusted, client, w=w, method=FedNoRo())
    head = client.learner.shape_of().span(cast(Any, client.learner.shape_of().net).head)
    bias = head[-1]
    assert isinstance(out.update, np.ndarray)
    assert out.update[bias][3] == w[bias][3]
    assert (out.update[bias][:3] != w[bias][:3]).all()


def test_a_federation_of_one_client_is_refused(tmp_path: Path) -> None:
    config = toy_config(
        Row(
            "one", {"name": "fednoro"}, config={"clients": 1, "training": {"clients_per_round": 1}}
        ),
        tmp_path,
    )
    with pytest.raises(ConfigError, match="takes two clients or more; got 1"):
        run_toy(config)
